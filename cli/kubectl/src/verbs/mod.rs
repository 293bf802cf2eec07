//! The verbs, one file each.
//!
//! - [`ps`], [`logs`], [`rm`]: of Workflows, by Kubernetes' API.
//! - [`invoke`], [`explain`]: by a node's own command ([`on_node`]).
//! - [`trace`]: of all nodes, by their own commands.

mod explain;
mod invoke;
mod logs;
mod on_node;
mod ps;
mod rm;
mod trace;

use std::process::ExitCode;

use cwasi_cli::arguments::{ClusterArguments, Global};
use cwasi_cli::cluster::ClusterError;
use cwasi_cli::commands::{Arguments, Verb};
use cwasi_cli::failure::{Exit, Failure};
use cwasi_cli::output;

use crate::cluster::Cluster;
use crate::cluster::node::NodePod;

/// The names of the verbs.
pub const NAMES: [&str; 6] = ["ps", "logs", "rm", "invoke", "explain", "trace"];

/// Runs the verb.
///
/// # Errors
/// When it fails; the error has the exit code.
pub async fn run(Arguments { global, verb }: Arguments) -> Result<ExitCode, Failure> {
    let global = &global;
    match verb {
        Verb::Ps(verb) => {
            let cluster = connect(&verb.cluster, global).await?;
            let workflow = verb.name.or(verb.workflow);
            ps::run(&cluster, workflow.as_deref(), global).await
        }
        Verb::Rm(verb) => {
            let cluster = connect(&verb.cluster, global).await?;
            let names: Vec<_> = verb.names.into_iter().chain(verb.workflow).collect();
            rm::run(&cluster, &names, verb.timeout, global).await
        }
        Verb::Logs(verb) => {
            let cluster = connect(&verb.cluster, global).await?;
            let wanted = logs::Wanted::of(&verb, global);
            let names: Vec<_> = verb.names.into_iter().chain(verb.workflow).collect();
            logs::run(&cluster, &names, wanted).await
        }
        Verb::Invoke(verb) => invoke::run(&verb, global).await,
        Verb::Explain(verb) => explain::run(&verb, global).await,
        Verb::Trace(verb) => trace::run(&verb, global).await,
        _ => {
            let text = format!("on a cluster there are {}; cwasi has the others", NAMES.join(", "));
            Err(Failure::text(Exit::Usage, text))
        }
    }
}

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
