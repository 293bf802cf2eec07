//! What `--help` and the manual pages say beside the arguments: examples of the main verbs, and where the options of
//! every verb are described.

use clap::{Command, CommandFactory as _};

use super::Arguments;

/// In place of the options of every verb, in the help of one.
const GLOBAL: &str =
    "Options of every verb: --address, --namespace, --snapshotter, --json (cwasi --help)";

/// Verbs with what people do with them most. Words have no quotes, so that a test can divide them at spaces.
const EXAMPLES: [(&str, &[&str]); 14] = [
    (
        "run",
        &["cwasi run workflow.yaml", "cwasi run --local workflow.yaml --input photos=./photos"],
    ),
    (
        "deploy",
        &[
            "cwasi deploy workflow.yaml",
            "cwasi deploy workflow.yaml --set spec.functions.greeter.queue=8",
        ],
    ),
    ("ps", &["cwasi ps", "cwasi ps -v --workflow hello", "cwasi ps --kube hello"]),
    ("rm", &["cwasi rm greeter", "cwasi rm --workflow hello", "cwasi rm --kube hello"]),
    (
        "logs",
        &[
            "cwasi logs -f greeter",
            "cwasi logs --workflow hello --since 10m --timestamps",
            "cwasi logs --kube hello/greeter",
        ],
    ),
    ("scale", &["cwasi scale greeter 3"]),
    (
        "invoke",
        &[
            "cwasi invoke greeter --data Ada",
            "cwasi invoke greeter --data @request.json --timeout 5 --verbose",
            "cwasi invoke greeter --data -",
            "cwasi invoke --kube -n shop greeter --data Ada",
        ],
    ),
    ("top", &["cwasi top", "cwasi top --json --count 1 --interval 5"]),
    ("trace", &["cwasi trace", "cwasi trace last --html trace.html", "cwasi trace --kube last"]),
    ("lint", &["cwasi lint workflow.yaml"]),
    (
        "explain",
        &["cwasi explain hello greeter", "cwasi explain --file workflow.yaml hello greeter"],
    ),
    ("inspect", &["cwasi inspect greeter.wasm"]),
    ("compile", &["cwasi compile greeter.wasm"]),
    ("gateway", &["cwasi gateway", "cwasi gateway --listen 0.0.0.0:8080 --token-file token"]),
];

/// The command line as people read it. It parses as that of [`Arguments`] does.
#[must_use]
pub fn command() -> Command {
    let whole = Arguments::command();
    let global: Vec<_> = whole.get_arguments().filter(|it| it.is_global_set()).cloned().collect();
    whole.mut_subcommands(|verb| with_help(verb, &global))
}

fn with_help(verb: Command, global: &[clap::Arg]) -> Command {
    let name = verb.get_name();
    let examples = EXAMPLES.iter().find(|(of, _)| *of == name).map(|(_, examples)| examples);
    let examples = examples
        .map_or_else(String::new, |examples| format!("Examples:\n  {}\n\n", examples.join("\n  ")));
    verb.args(global.iter().map(|argument| argument.clone().hide(true)))
        .after_help(GLOBAL)
        .after_long_help(format!("{examples}{GLOBAL}"))
        .mut_subcommands(|below| with_help(below, global))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_example_is_a_command() {
        for (verb, examples) in EXAMPLES {
            for example in examples {
                let parsed = command().try_get_matches_from(example.split(' '));
                let parsed = parsed.unwrap_or_else(|error| panic!("{example}: {error}"));
                assert_eq!(parsed.subcommand_name(), Some(verb));
            }
        }
    }

    #[test]
    fn a_verb_s_help_has_examples_and_no_options_of_every_verb() {
        let help = |verb: &str, flag: &str| {
            let shown = command().try_get_matches_from(["cwasi", verb, flag]).unwrap_err();
            shown.to_string()
        };
        let long = help("invoke", "--help");
        assert!(long.contains("cwasi invoke greeter --data Ada\n"), "{long}");
        for text in [long, help("invoke", "-h"), help("image", "-h")] {
            assert!(text.contains(GLOBAL) && !text.contains("-a, --address"), "{text}");
        }
        let whole = command().try_get_matches_from(["cwasi", "--help"]).unwrap_err().to_string();
        assert!(whole.contains("-a, --address") && whole.contains("--snapshotter"), "{whole}");
    }

    #[test]
    fn options_of_every_verb_stand_before_and_after_the_verb() {
        use clap::FromArgMatches as _;
        for words in ["cwasi -n shop ps", "cwasi ps -n shop", "cwasi image -n shop build m --tag t"]
        {
            let matches = command().try_get_matches_from(words.split(' ')).unwrap();
            let arguments = Arguments::from_arg_matches(&matches).unwrap();
            assert_eq!(arguments.global.namespace, "shop", "{words}");
        }
    }
}
