//! The command `cwasi`. It speaks to containerd as any client does, and reads the runtime's state of this node.
//!
//! - [`commands`]: the command line, and one file for each verb; [`arguments`]: those of every verb.
//! - [`deployment`]: a workflow on its nodes; [`image`]: images of modules;
//!   [`module`]: what a module says about itself.
//! - [`containerd`]: its API; [`cluster`]: errors of clusters.
//! - [`registry`]: pushes images; [`table`]: output for people; [`gateway`]: HTTP in; [`openwhisk`]: actions by HTTP.
//! - `access`: the token of HTTP clients.
//! - [`metrics`]: for Prometheus; [`dashboard`]: a page for people; [`traces`]: recorded traces.
//! - [`output`]: prints; [`failure`]: errors and exit codes; [`interrupt`]: Ctrl-C; `keys`: other keys.
//!
//! Invariant: stdout has results only, so that a pipe gets nothing else. Progress and errors go to stderr.

// Both panic when their output is closed or full.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod access;
pub mod arguments;
pub mod cause;
pub mod cluster;
pub mod commands;
pub mod containerd;
pub mod dashboard;
pub mod deployment;
mod duration;
pub mod failure;
pub mod gateway;
mod http;
pub mod image;
pub mod interrupt;
mod keys;
pub mod metrics;
pub mod module;
pub mod openwhisk;
pub mod output;
pub mod registry;
pub mod table;
pub mod traces;

use std::process::ExitCode;

use clap::ArgMatches;

use self::commands::Arguments;
use self::failure::{Exit, Failure};

/// The program: reads the command line, runs its verb, prints an error.
#[must_use]
pub fn main() -> ExitCode {
    let parsed = commands::command().try_get_matches();
    program(parsed, commands::run)
}

/// Runs what a command line asks for by `verbs`, and prints an error.
pub fn program<F: Future<Output = Result<ExitCode, Failure>>>(
    parsed: Result<ArgMatches, clap::Error>,
    verbs: impl FnOnce(Arguments) -> F,
) -> ExitCode {
    let outcome = match parsed.and_then(|matches| Arguments::read(&matches)) {
        Ok(arguments) => run(verbs(arguments)),
        Err(error) => print_usage(&commands::with_ours(error)),
    };
    outcome.unwrap_or_else(|failure| {
        if failure.exit() != Exit::PipeClosed {
            output::note(format_args!("cwasi: {failure}"));
        }
        failure.exit().into()
    })
}

fn run(verb: impl Future<Output = Result<ExitCode, Failure>>) -> Result<ExitCode, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(verb)
}

/// Prints what is said about a command line: the help and the version are results, all else is an error.
fn print_usage(error: &clap::Error) -> Result<ExitCode, Failure> {
    let printed = error.print();
    if error.use_stderr() {
        return Ok(Exit::Usage.into());
    }
    printed.map(|()| ExitCode::SUCCESS).map_err(output::failure)
}
