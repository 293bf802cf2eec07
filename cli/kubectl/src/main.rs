//! `kubectl-cwasi`: the verbs of `cwasi` that work on a Kubernetes cluster. `cwasi VERB --kube` starts it, and so does
//! kubectl: `kubectl cwasi VERB`. The command line is that of `cwasi` (`cwasi_cli::commands`).
//!
//! - [`verbs`]: one file for each; [`cluster`]: Kubernetes' API, and the command on nodes of a cluster.

mod cluster;
mod verbs;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Command;

/// clap's own verb.
const HELP: &str = "help";

fn main() -> ExitCode {
    let parsed = command().try_get_matches_from(on_cluster(std::env::args_os().collect()));
    cwasi_cli::program(parsed, verbs::run)
}

/// The command line of `cwasi`, of which the help shows the verbs that a cluster has.
fn command() -> Command {
    cwasi_cli::commands::command()
        .bin_name("kubectl cwasi")
        .about("Inspect, call and remove functions on a Kubernetes cluster")
        .mut_subcommands(|verb| {
            let is_local = !verbs::NAMES.contains(&verb.get_name());
            verb.hide(is_local)
        })
}

/// The words with `--kube`, which `kubectl cwasi ps` need not say: behind a verb of a cluster, before `--`. `help ps`
/// has no such flag.
fn on_cluster(mut words: Vec<OsString>) -> Vec<OsString> {
    let is_verb =
        |word: &&OsString| word.to_str().is_some_and(|it| it == HELP || verbs::NAMES.contains(&it));
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let said = &words[..end];
    let verb = said.iter().find(is_verb).filter(|verb| *verb != HELP);
    if verb.is_some() && !said.iter().any(|word| word == "--kube") {
        words.insert(end, "--kube".into());
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verb_of_a_cluster_needs_no_flag() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        for (said, meant) in [
            ("kubectl-cwasi ps", "kubectl-cwasi ps --kube"),
            ("kubectl-cwasi -n shop ps --kube", "kubectl-cwasi -n shop ps --kube"),
            ("kubectl-cwasi rm -- --kube", "kubectl-cwasi rm --kube -- --kube"),
            ("kubectl-cwasi invoke help", "kubectl-cwasi invoke help --kube"),
            ("kubectl-cwasi help ps", "kubectl-cwasi help ps"),
            ("kubectl-cwasi lint w.yaml", "kubectl-cwasi lint w.yaml"),
        ] {
            assert_eq!(on_cluster(words(said)), words(meant), "{said}");
        }
    }

    #[test]
    fn the_help_shows_verbs_of_a_cluster() {
        let help = command().render_help().to_string();
        for (verb, shown) in verbs::NAMES.map(|it| (it, true)).into_iter().chain([("run", false)]) {
            assert_eq!(help.contains(&format!("\n  {verb} ")), shown, "{verb}: {help}");
        }
    }
}
