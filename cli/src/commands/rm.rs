//! `cwasi rm`: removes containers of functions, or all of a workflow.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::selected::selected;
use crate::arguments::Global;
use crate::deployment::platform::{Platform as _, RUN};
use crate::deployment::{Node, run_folder};
use crate::failure::Failure;
use crate::output;

/// Arguments of the verb.
#[derive(Debug, Args)]
pub struct Rm {
    /// Containers or functions
    #[arg(required_unless_present = "workflow", value_name = "NAME")]
    names: Vec<String>,
    /// All of this workflow
    #[arg(long, value_name = "NAME", conflicts_with = "names")]
    workflow: Option<String>,
}

impl Rm {
    /// Ends and removes them, and prints their ids.
    pub async fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        let node = Node::connect(global).await?;
        let containers = node.containerd.containers().await?;
        run_folder::remove_abandoned(&node.runs(), RUN);
        let (mut printed, mut removed) = (Ok(()), Vec::new());
        for container in selected(containers, &self.names, self.workflow.as_deref(), global)? {
            node.remove(&container.id).await?;
            if !global.json {
                printed = printed.and(output::line(&container.id));
            }
            removed.push(json!({ "container": container.id, "state": "removed" }));
        }
        if global.json {
            printed = output::json(&removed);
        }
        printed.map(|()| ExitCode::SUCCESS)
    }
}
