//! `cwasi completions SHELL`: the shell's script, on stdout.

use std::process::ExitCode;

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use super::Arguments;
use crate::arguments::Global;
use crate::failure::Failure;
use crate::output;

/// Arguments of the verb.
#[derive(Debug, Args)]
pub struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    /// Prints the script.
    pub fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        global.refuse_json("completions", "it prints a script")?;
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Arguments::command(), "cwasi", &mut script);
        output::bytes(&script)?;
        Ok(ExitCode::SUCCESS)
    }
}
