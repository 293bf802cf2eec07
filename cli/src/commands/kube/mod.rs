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
