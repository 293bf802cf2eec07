//! `--kube`: the verbs of a cluster are in a program of their own, so that the programs of a node link no client of
//! Kubernetes.

use std::env;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use crate::failure::{Exit, Failure};

/// The program with the verbs of a cluster. kubectl finds it by its name, as `kubectl cwasi`.
const PROGRAM: &str = "kubectl-cwasi";

/// Replaces this process by [`PROGRAM`], which gets the same command line: the one beside this program, or that of
/// `PATH`. Returns why it cannot be started.
pub fn exec() -> Failure {
    let beside = env::current_exe().ok().map(|program| program.with_file_name(PROGRAM));
    let program = beside.filter(|it| it.is_file()).unwrap_or_else(|| PROGRAM.into());
    let error = Command::new(&program).args(env::args_os().skip(1)).exec();
    let text = format!(
        "--kube is done by {PROGRAM}, which cannot be started: {error}. It has to be beside this program or in PATH: \
         `make install` puts it there, `cargo build -p {PROGRAM}` builds it"
    );
    Failure::text(Exit::Missing, text)
}
