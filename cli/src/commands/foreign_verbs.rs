//! Verbs of docker, kubectl, spin and others, which people try, and what this command has in their place.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// What to type instead of other commands' verbs. Verbs of ours are none of them.
const FOREIGN: [(&[&str], &str); 11] = [
    (&["list", "ls", "get", "functions"], "ps"),
    (&["apply", "create", "start", "add"], "deploy FILE"),
    (&["delete", "remove", "stop", "kill", "down", "undeploy"], "rm"),
    (&["call", "exec", "test"], "invoke FUNCTION"),
    (&["up", "dev", "watch"], "run --local FILE"),
    (&["serve", "expose"], "gateway"),
    (&["build", "push", "pull", "images"], "image build MODULE --tag NAME"),
    (&["describe", "status"], "ps -v"),
    (&["stats", "monitor"], "top"),
    (&["validate", "check"], "lint FILE"),
    (&["config", "info"], "doctor"),
];

/// The error of a command line, with our verb in place of another command's.
#[must_use]
pub fn with_ours(mut error: clap::Error) -> clap::Error {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return error;
    }
    let Some(ContextValue::String(verb)) = error.get(ContextKind::InvalidSubcommand) else {
        return error;
    };
    if let Some(ours) = ours(verb) {
        error.remove(ContextKind::SuggestedSubcommand);
        let tip = format!("use 'cwasi {ours}'");
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

fn ours(verb: &str) -> Option<&'static str> {
    FOREIGN.iter().find(|(foreign, _)| foreign.contains(&verb)).map(|(_, ours)| *ours)
}

#[cfg(test)]
mod tests {
    use super::super::command;
    use super::*;

    #[test]
    fn another_command_s_verb_is_answered_with_ours() {
        let said = |words: &[&str]| {
            with_ours(command().try_get_matches_from(words).unwrap_err()).to_string()
        };
        let list = said(&["cwasi", "list"]);
        assert!(list.contains("tip: use 'cwasi ps'"), "{list}");
        assert!(!list.contains("lint"), "{list}");
        // A misspelt verb of ours is left to clap, and so is a verb below another one.
        let misspelt = said(&["cwasi", "invok"]);
        assert!(misspelt.contains("'invoke'") && !misspelt.contains("use 'cwasi"), "{misspelt}");
        assert!(!said(&["cwasi", "ps", "--list"]).contains("use 'cwasi"));
    }

    #[test]
    fn each_verb_is_another_command_s_and_each_answer_ours() {
        let command = command();
        let is_ours = |verb: &str| command.find_subcommand(verb).is_some();
        for (foreign, ours) in FOREIGN {
            assert!(ours.split(' ').next().is_some_and(is_ours), "{ours}");
            for verb in foreign {
                assert!(!is_ours(verb), "{verb}");
            }
        }
    }
}
