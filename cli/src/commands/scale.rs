//! `cwasi scale FUNCTION N`: as many containers of a function as this, each like the first one.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use oci_spec::runtime::{LinuxNamespaceType, Spec};
use serde_json::json;

use crate::arguments::Global;
use crate::containerd::containers::{Container, NewContainer};
use crate::containerd::tasks::Task;
use crate::deployment::platform::Platform as _;
use crate::deployment::service_containers::SHARED;
use crate::deployment::{Node, container_id};
use crate::failure::{Exit, Failure};
use crate::interrupt::Interrupt;
use crate::output;

/// Most containers of one function, as in a workflow file.
const REPLICAS_MAX: i64 = 64;

/// Arguments of the verb.
#[derive(Debug, Args)]
pub struct Scale {
    /// A function that `cwasi deploy` has started
    function: String,
    /// Number of its containers
    #[arg(value_parser = clap::value_parser!(u32).range(0..=REPLICAS_MAX))]
    replicas: u32,
}

impl Scale {
    /// Starts what is missing, removes what is too much, and prints both.
    pub async fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        let node = Node::connect(global).await?;
        let mut known = node.containerd.containers().await?;
        known.retain(|it| it.label("function") == self.function && it.is_secondary());
        let Some(first) = known.first() else {
            let text = format!(
                "namespace {} has no secondary {} that cwasi started: cwasi deploy FILE",
                global.namespace, self.function
            );
            return Err(Failure::text(Exit::Missing, text));
        };
        let workflow = first.label("workflow").to_owned();
        if let Some(other) = known.iter().find(|it| it.label("workflow") != workflow) {
            let (function, other) = (&self.function, other.label("workflow"));
            let text = format!(
                "workflows {workflow} and {other} both have a function {function}: use cwasi deploy"
            );
            return Err(Failure::text(Exit::Failed, text));
        }
        let wanted: Vec<_> = (1..=self.replicas)
            .map(|replica| container_id(&workflow, &self.function, replica))
            .collect();
        let mut interrupt = Interrupt::new()?;
        let (mut printed, mut changes) = (Ok(()), Vec::new());
        let mut report = |id: &str, state: &str| {
            if !global.json {
                printed = std::mem::replace(&mut printed, Ok(()))
                    .and_then(|()| output::line(format_args!("{id} {state}")));
            }
            changes.push(json!({ "container": id, "state": state }));
        };
        let tasks = node.containerd.tasks().await?;
        // One that has ended serves nothing: it is made anew.
        let serves = |id: &String| tasks.get(id).is_some_and(Task::is_alive);
        for id in wanted.iter().filter(|id| !serves(id)) {
            if known.iter().any(|it| it.id == *id) {
                node.remove(id).await?;
            }
            if let Err(failure) = interrupt.or(start(&node, first, id)).await {
                node.settled().await;
                node.remove(id).await?;
                return Err(failure);
            }
            report(id, "started");
        }
        let kept = (self.replicas == 0).then(|| first.id.clone());
        for container in known.iter().filter(|it| !wanted.contains(&it.id)) {
            if kept.as_ref() == Some(&container.id) {
                // Its container stays: it says what a later `scale` starts.
                node.containerd.stop_task(&container.id).await?;
                report(&container.id, "stopped");
                continue;
            }
            node.remove(&container.id).await?;
            report(&container.id, "removed");
        }
        if global.json {
            printed = output::json(&changes);
        }
        printed.map(|()| ExitCode::SUCCESS)
    }
}

/// Starts a container like `first`.
async fn start(node: &Node, first: &Container, id: &str) -> Result<(), Failure> {
    let image = node.containerd.image(&first.image).await?;
    let parent = node.containerd.unpack(&image).await?;
    let mut spec = renamed(first, node.containerd.namespace(), id)?;
    if first.label("network") == SHARED {
        // That of the first container is by a process that may have ended.
        let network = node.services_network(first.label("workflow"), id).await?;
        enter(&mut spec, network);
    }
    let labels = first.labels.clone();
    let new = NewContainer { id, image: &first.image, parent: &parent, spec: &spec, labels };
    let stdio = node.create_log(id)?;
    let started = async {
        let rootfs = node.containerd.create_container(new).await?;
        node.containerd.create_task(id, rootfs, &stdio).await?;
        node.containerd.start_task(id).await
    };
    started.await.map_err(|error| Failure::from(error).with(&node.log_tail(id)))
}

/// Gives a container another network.
fn enter(spec: &mut Spec, network: PathBuf) {
    let linux = spec.linux_mut().as_mut();
    let namespaces = linux.and_then(|linux| linux.namespaces_mut().as_mut());
    for namespace in namespaces.into_iter().flatten() {
        if namespace.typ() == LinuxNamespaceType::Network {
            namespace.set_path(Some(network.clone()));
        }
    }
}

/// The configuration of `first` for another container.
fn renamed(first: &Container, namespace: &str, id: &str) -> Result<Spec, Failure> {
    let mut spec = first.spec.clone();
    let Some(linux) = spec.linux_mut() else {
        return Err(Failure::text(
            Exit::Failed,
            format!("container {} is none of Linux", first.id),
        ));
    };
    linux.set_cgroups_path(Some(format!("/{namespace}/{id}").into()));
    Ok(spec)
}
