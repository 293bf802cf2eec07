//! `cwasi man FOLDER`: `cwasi.1`, and a page for each verb.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;

use super::help;
use crate::arguments::Global;
use crate::failure::Failure;

/// Arguments of the verb.
#[derive(Debug, Args)]
pub struct Man {
    /// Existing folder for the pages, such as /usr/local/share/man/man1
    folder: PathBuf,
}

impl Man {
    /// Writes the pages.
    pub fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        global.refuse_json("man", "it writes manual pages")?;
        clap_mangen::generate_to(help::command(), &self.folder).with_context(|| {
            format!("manual pages cannot be written to {}", self.folder.display())
        })?;
        Ok(ExitCode::SUCCESS)
    }
}
