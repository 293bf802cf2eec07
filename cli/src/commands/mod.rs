//! The verbs, one file each: its arguments, and `run`, which returns the command's exit code.

mod completions;
mod gateway;
mod man;
mod schema;

use std::process::ExitCode;

use clap::Subcommand;

use crate::arguments::Arguments;
use crate::failure::Failure;

/// What a user can ask for.
#[derive(Debug, Subcommand)]
pub enum Verb {
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
        Verb::Completions(arguments) => arguments.run(),
        Verb::Gateway(arguments) => arguments.run(&global).await,
        Verb::Man(arguments) => arguments.run(),
        Verb::Schema(arguments) => arguments.run(),
    }
}
