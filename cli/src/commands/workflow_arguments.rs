//! Arguments of the verbs that read a workflow file.

use std::path::PathBuf;

use clap::Args;

use crate::failure::Failure;
use cwasi_workflow::services::Address;
use cwasi_workflow::{Additions, Workflow};

/// A workflow file, and changes to it.
#[derive(Debug, Args)]
pub struct WorkflowArguments {
    /// Workflow file
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Source of the mount with this name
    #[arg(long = "input", value_name = "NAME=PATH", value_parser = pair)]
    pub inputs: Vec<(String, String)>,
    /// Change a value, such as spec.functions.NAME.queue=8
    #[arg(long, value_name = "FIELD=VALUE", value_parser = pair)]
    pub set: Vec<(String, String)>,
    /// Address of a service that runs already: it is not started
    #[arg(long = "service", value_name = "NAME=HOST:PORT", value_parser = service)]
    pub services: Vec<(String, Address)>,
}

fn service(text: &str) -> Result<(String, Address), String> {
    let (name, address) = pair(text)?;
    Ok((name, address.parse()?))
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("it must have the form NAME=VALUE".to_owned()),
    }
}

impl WorkflowArguments {
    /// Reads the file.
    ///
    /// # Errors
    /// All its faults.
    pub fn load(&self) -> Result<Workflow, Failure> {
        let inputs = self.inputs.iter().map(|(name, path)| (name.clone(), PathBuf::from(path)));
        let (set, services) = (self.set.clone(), self.services.clone());
        let additions = Additions { set, inputs: inputs.collect(), services };
        Ok(Workflow::load(&self.file, &additions)?)
    }
}
