//! `cwasi schema`: the JSON Schema of workflow files, for editors, or the table of fields.

use std::process::ExitCode;

use clap::Args;

use crate::arguments::Global;
use crate::failure::Failure;
use crate::output;
use cwasi_workflow::schema::{json_schema, markdown};

/// Arguments of the verb.
#[derive(Debug, Args)]
pub struct Schema {
    /// Print the table of fields instead
    #[arg(long)]
    markdown: bool,
}

impl Schema {
    /// Prints it.
    pub fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        if self.markdown {
            global.refuse_json("schema --markdown", "without --markdown it prints JSON")?;
            output::text(markdown())?;
        } else {
            output::json(&json_schema())?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
