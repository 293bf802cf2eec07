//! `cwasi rm`: removes containers of functions, or all of a workflow; on a cluster, Workflows.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::kube;
use super::selected::selected;
use crate::arguments::{ClusterArguments, Global};
use crate::deployment::platform::{Platform as _, RUN};
use crate::deployment::{Node, run_folder};
use crate::duration;
use crate::failure::Failure;
use crate::output;

/// Arguments of the verb.
#[derive(Debug, Args)]
pub struct Rm {
    /// Containers or functions; with --kube Workflows
    #[arg(required_unless_present = "workflow", value_name = "NAME")]
    names: Vec<String>,
    /// All of this workflow
    #[arg(long, value_name = "NAME", conflicts_with = "names")]
    workflow: Option<String>,
    /// Longest wait until the pods of a Workflow are gone; a plain number is of seconds
    #[arg(long, default_value = "2m", requires = "kube", value_parser = duration::parse)]
    timeout: Duration,
    #[command(flatten)]
    cluster: ClusterArguments,
}

impl Rm {
    /// Ends and removes them, and prints their ids.
    pub async fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        if self.cluster.kube {
            let cluster = kube::connect(&self.cluster, global).await?;
            let mut names = self.names;
            names.extend(self.workflow);
            return kube::rm::run(&cluster, &names, self.timeout, global).await;
        }
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
