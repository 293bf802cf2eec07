//! `cwasi completions SHELL`: the shell's script, on stdout.

use std::process::ExitCode;

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use crate::arguments::Arguments;
use crate::failure::Failure;

/// Arguments of the verb.
#[derive(Debug, Args)]
pub struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    /// Prints the script.
    pub fn run(self) -> Result<ExitCode, Failure> {
        clap_complete::generate(
            self.shell,
            &mut Arguments::command(),
            "cwasi",
            &mut std::io::stdout(),
        );
        Ok(ExitCode::SUCCESS)
    }
}
