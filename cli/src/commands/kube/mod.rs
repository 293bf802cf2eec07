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
///
/// # Errors
/// When nothing runs or starts it, or the API refuses.
pub async fn calling_node(
    cluster: &Cluster,
    system_namespace: &str,
    target: &str,
) -> Result<NodePod, ClusterError> {
    let none = match cluster.function(target).await {
        Ok(function) => return cluster.node_pod(system_namespace, &function.node).await,
        Err(error) => error,
    };
    if let ClusterError::NoFunction { namespace, name, .. } = &none
        && cluster.is_on_demand(namespace, name).await
        && let Some((_, any)) = cluster.node_pods(system_namespace).await?.pop_first()
    {
        return Ok(any);
    }
    Err(none)
}
