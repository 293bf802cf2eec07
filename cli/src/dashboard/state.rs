//! What the page shows: calls, functions and their containers, of one containerd namespace. Without containerd it shows
//! what the shims' files say.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use cwasi_config::NodeConfig;
use cwasi_host::metrics::snapshot::{EdgeSnapshot, FunctionGauges, FunctionKey, FunctionSnapshot};
use cwasi_host::metrics::starts::StartStages;
use serde::Serialize;

use super::files::Files;
use super::rates::Rates;
use crate::arguments::Global;
use crate::deployment::Node;
use crate::failure::Failure;

#[derive(Debug, Serialize)]
pub(super) struct PageState {
    node: String,
    namespace: String,
    /// What is missing, for people.
    notes: Vec<String>,
    edges: Vec<PageEdge>,
    /// Callers that are no functions.
    host_callers: BTreeSet<String>,
    functions: Vec<FunctionState>,
}

/// A function with its containers.
#[derive(Debug, Default, Serialize)]
struct FunctionState {
    #[serde(flatten)]
    key: FunctionKey,
    containers: Vec<ContainerState>,
    gauges: Option<FunctionGauges>,
}

#[derive(Debug, Serialize)]
struct ContainerState {
    id: String,
    status: String,
    stages: Option<StartStages>,
}

/// An edge with its rates.
#[derive(Debug, Serialize)]
struct PageEdge {
    #[serde(flatten)]
    edge: EdgeSnapshot,
    calls_per_second: f64,
    bytes_per_second: f64,
}

pub(super) async fn read(global: &Global, config: &NodeConfig, rates: &Rates) -> PageState {
    let (state_dir, namespace) = (config.state_dir.clone(), global.namespace.clone());
    let mut notes = Vec::new();
    let reading = tokio::task::spawn_blocking(move || Files::read(&state_dir, &namespace));
    let files = reading.await.unwrap_or_default();
    if files.unreadable > 0 {
        notes.push(format!(
            "{} files below {} cannot be read",
            files.unreadable,
            config.state_dir.display()
        ));
    }
    let mut functions: BTreeMap<FunctionKey, FunctionState> = BTreeMap::new();
    for FunctionSnapshot { key, gauges } in files.functions {
        functions.entry(key).or_default().gauges = Some(gauges);
    }
    match containers(global).await {
        Ok(containers) => {
            for (key, id, status) in containers {
                let stages = files.starts.get(&id).cloned();
                let container = ContainerState { id, status, stages };
                functions.entry(key).or_default().containers.push(container);
            }
        }
        Err(error) => notes.push(format!("the states of containers are missing: {error}")),
    }
    for (key, function) in &mut functions {
        function.key = key.clone();
    }
    // Gauges of a function whose containers are gone say nothing.
    let is_there = |it: &FunctionState| {
        !it.containers.is_empty() || it.gauges.is_some_and(|gauges| gauges.instances > 0)
    };
    let is_function = |name: &String| functions.keys().any(|key| key.function == *name);
    let host_callers = files.host_callers.into_iter().filter(|name| !is_function(name)).collect();
    let now = Instant::now();
    let edges = files.edges.into_iter().map(|edge| {
        let (calls_per_second, bytes_per_second) = rates.of(&edge.key, now, &edge.counts);
        PageEdge { edge, calls_per_second, bytes_per_second }
    });
    PageState {
        node: node_name(config),
        namespace: global.namespace.clone(),
        notes,
        edges: edges.collect(),
        host_callers,
        functions: functions.into_values().filter(is_there).collect(),
    }
}

/// The node's name, or its host's.
fn node_name(config: &NodeConfig) -> String {
    if !config.node.is_empty() {
        return config.node.clone();
    }
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// Function, id and status of each container.
async fn containers(global: &Global) -> Result<Vec<(FunctionKey, String, String)>, Failure> {
    let containerd = Node::connect(global).await?.containerd;
    let (containers, tasks) = (containerd.containers().await?, containerd.tasks().await?);
    let listed = containers.iter().map(|container| {
        let key = FunctionKey {
            namespace: global.namespace.clone(),
            pod_namespace: container.annotation("io.kubernetes.cri.sandbox-namespace").to_owned(),
            workflow: container.workflow().to_owned(),
            function: container.function().to_owned(),
        };
        let status = tasks.get(&container.id).map_or("CREATED", |task| task.status);
        (key, container.id.clone(), status.to_owned())
    });
    Ok(listed.collect())
}
