//! `cwasi rm`: removes containers of functions, or all of a workflow.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::selected::selected;
use crate::arguments::{ClusterArguments, Global};
use crate::containerd::containers::Container;
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
    pub names: Vec<String>,
    /// All of this workflow
    #[arg(long, value_name = "NAME", conflicts_with = "names")]
    pub workflow: Option<String>,
    /// Longest wait until the pods of a Workflow are gone; a plain number is of seconds
    #[arg(long, default_value = "2m", requires = "kube", value_parser = duration::parse)]
    pub timeout: Duration,
    #[command(flatten)]
    pub cluster: ClusterArguments,
}

impl Rm {
    /// Ends and removes them, and prints their ids.
    pub async fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        let node = Node::connect(global).await?;
        let containers = node.containerd.containers().await?;
        run_folder::remove_abandoned(&node.runs(), RUN);
        let workflow = self.workflow.as_deref();
        let mut removed = Removed { json: global.json, printed: Ok(()), list: Vec::new() };
        let chosen = selected(containers, &self.names, workflow, global);
        // After a run, the storage of its services may be all that is left.
        let left = match &chosen {
            Ok(_) => None,
            Err(_) => workflow.map(|name| node.remove_storage(name, None)).transpose()?.flatten(),
        };
        if let Some(folder) = left {
            removed.storage(&folder);
            return removed.print();
        }
        removed.containers(&node, chosen?, workflow.is_none()).await?;
        if let Some(folder) =
            workflow.map(|name| node.remove_storage(name, None)).transpose()?.flatten()
        {
            removed.storage(&folder);
        }
        removed.print()
    }
}

/// What was removed.
struct Removed {
    json: bool,
    printed: Result<(), Failure>,
    list: Vec<Value>,
}

impl Removed {
    /// Removes containers, then services that no container uses any more. The storage of a service goes with it if the
    /// user has named it.
    async fn containers(
        &mut self,
        node: &Node,
        mut chosen: Vec<Container>,
        are_named: bool,
    ) -> Result<(), Failure> {
        // Services outlive the functions that use them.
        chosen.sort_by_key(Container::is_service);
        for container in &chosen {
            node.remove(&container.id).await?;
            self.report("container", &container.id);
            if are_named && container.is_service() {
                let folder =
                    node.remove_storage(container.workflow(), Some(container.function()))?;
                folder.iter().for_each(|folder| self.storage(folder));
            }
        }
        let workflows: BTreeSet<&str> = chosen.iter().map(Container::workflow).collect();
        for workflow in workflows {
            for id in node.remove_unused_services(workflow).await? {
                self.report("container", &id);
            }
        }
        Ok(())
    }

    fn storage(&mut self, folder: &Path) {
        self.report("storage", &folder.display().to_string());
    }

    fn report(&mut self, what: &str, name: &str) {
        if !self.json && self.printed.is_ok() {
            self.printed = output::line(name);
        }
        self.list.push(json!({ what: name, "state": "removed" }));
    }

    fn print(self) -> Result<ExitCode, Failure> {
        if self.json {
            output::json(&self.list)?;
        }
        self.printed.map(|()| ExitCode::SUCCESS)
    }
}
