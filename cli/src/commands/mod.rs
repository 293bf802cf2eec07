//! The verbs, one file each: its arguments, and `run`, which returns the command's exit code.

mod completions;
mod deploy;
mod gateway;
mod logs;
mod man;
mod ps;
mod rm;
mod run;
mod schema;
mod selected;
mod workflow_arguments;

use std::process::ExitCode;

use clap::Subcommand;

use crate::arguments::Arguments;
use crate::failure::Failure;

/// What a user can ask for.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Run a workflow to its end, and take it down
    Run(run::Run),
    /// Start the secondaries of a workflow, and leave them running
    Deploy(deploy::Deploy),
    /// List functions
    Ps(ps::Ps),
    /// Remove functions
    Rm(rm::Rm),
    /// Print what functions wrote
    Logs(logs::Logs),
    /// Print a script that completes commands in a shell
    Completions(completions::Completions),
    /// Serve functions to HTTP clients
    Gateway(gateway::Gateway),
    /// Write the manual pages
    Man(man::Man),
    /// Print the JSON Schema of workflow files
    Schema(schema::Schema),
}

/// Runs the verb.
///
/// # Errors
/// When it fails; the error has the exit code.
pub async fn run(Arguments { global, verb }: Arguments) -> Result<ExitCode, Failure> {
    match verb {
        Verb::Run(arguments) => arguments.run(&global).await,
        Verb::Deploy(arguments) => arguments.run(&global).await,
        Verb::Ps(arguments) => arguments.run(&global).await,
        Verb::Rm(arguments) => arguments.run(&global).await,
        Verb::Logs(arguments) => arguments.run(&global).await,
        Verb::Completions(arguments) => arguments.run(),
        Verb::Gateway(arguments) => arguments.run(&global).await,
        Verb::Man(arguments) => arguments.run(),
        Verb::Schema(arguments) => arguments.run(),
    }
}
