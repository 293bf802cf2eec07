//! The command `cwasi`. It speaks to containerd as any client does, and reads the runtime's state of this node.
//!
//! - [`arguments`]: the command line; [`commands`]: one file for each verb.
//! - [`workflow`]: the workflow file; [`deployment`]: a workflow on its nodes; [`image`]: images of modules;
//!   [`module`]: what a module says about itself.
//! - [`containerd`]: its API; [`registry`]: pushes images; [`table`]: output for people; [`gateway`]: HTTP in.
//! - [`metrics`]: for Prometheus; [`dashboard`]: a page for people; [`traces`]: recorded traces.
//! - [`failure`]: errors and exit codes; [`interrupt`]: Ctrl-C.
//!
//! Invariant: stdout has results only, so that a pipe gets nothing else. Progress and errors go to stderr.

pub mod arguments;
mod cause;
pub mod commands;
pub mod containerd;
pub mod dashboard;
pub mod deployment;
pub mod failure;
pub mod gateway;
mod http;
pub mod image;
pub mod interrupt;
pub mod metrics;
pub mod module;
pub mod registry;
pub mod table;
pub mod traces;
pub mod workflow;

use std::process::ExitCode;

use clap::Parser as _;

use self::arguments::Arguments;
use self::failure::{Exit, Failure};

/// The program: reads the command line, runs its verb, prints an error.
#[must_use]
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Exit::Failed, anyhow::Error::new(error)))
        .and_then(|runtime| runtime.block_on(commands::run(arguments)));
    outcome.unwrap_or_else(|failure| {
        eprintln!("cwasi: {failure}");
        failure.exit().into()
    })
}
