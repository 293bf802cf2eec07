//! The verbs that work on a cluster: `cwasi VERB --kube`.
//!
//! - [`ps`], [`logs`], [`rm`]: of Workflows, by Kubernetes' API.
//! - [`on_node`]: `invoke` and `explain`, which a node's own command does; [`traces`]: those of all nodes.

pub mod logs;
pub mod on_node;
pub mod ps;
pub mod rm;
pub mod traces;

use crate::arguments::{ClusterArguments, Global};
use crate::cluster::node::NodePod;
use crate::cluster::{Cluster, ClusterError};
use crate::output;

/// Connects to the cluster of the command line.
///
/// # Errors
/// When there is no configuration, or a wrong one.
pub async fn connect(
    arguments: &ClusterArguments,
    global: &Global,
) -> Result<Cluster, ClusterError> {
    let namespace = global.given.namespace.then_some(global.namespace.as_str());
    Cluster::connect(arguments.context.as_deref(), namespace).await
}

/// The node from which `target` is called: one that runs it, or any if its pods are started on demand and it has none.
/// Also the Workflow of the pod that runs it.
///
/// # Errors
/// When nothing runs or starts it, or the API refuses.
pub async fn calling_node(
    cluster: &Cluster,
    system_namespace: &str,
    target: &str,
) -> Result<(NodePod, Option<String>), ClusterError> {
    let none = match cluster.function(target).await {
        Ok(function) => {
            let node = cluster.node_pod(system_namespace, &function.node).await?;
            return Ok((node, function.workflow));
        }
        Err(error) => error,
    };
    let ClusterError::NoFunction { namespace, name, .. } = &none else { return Err(none) };
    match cluster.is_on_demand(namespace, name).await {
        Ok(true) => {}
        Ok(false) => return Err(none),
        // The name may be misspelt, and a function that always has a pod needs no right to read Workflows.
        Err(denied @ ClusterError::Denied { .. }) => {
            output::note(format_args!(
                "cwasi: whether {target} starts on demand is not known: {denied}"
            ));
            return Err(none);
        }
        Err(error) => return Err(error),
    }
    let any = cluster.node_pods(system_namespace).await?.pop_first();
    any.map(|(_, node)| (node, None)).ok_or(none)
}
