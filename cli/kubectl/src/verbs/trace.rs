//! `cwasi trace --kube`: lists the traces of all nodes, or prints one.

use std::process::ExitCode;

use cwasi_cli::arguments::Global;
use cwasi_cli::commands::trace::{ShowTrace, list, one, prefix};
use cwasi_cli::failure::Failure;

use super::connect;
use super::traces::Nodes;

/// Where they were looked for.
const PLACE: &str = "on a node of this cluster";

/// Prints the list or one trace.
pub async fn run(trace: &ShowTrace, global: &Global) -> Result<ExitCode, Failure> {
    let id = trace.id.as_deref().map(prefix).transpose()?;
    let cluster = connect(&trace.on.cluster, global).await?;
    let nodes = Nodes { cluster: &cluster, system_namespace: &trace.on.system_namespace, global };
    match id {
        None => list(&nodes.summaries(trace.limit).await?, global, PLACE)?,
        Some(id) => {
            let found = nodes.find(&id).await?;
            let found = one(&found.iter().collect::<Vec<_>>(), &id, PLACE)?;
            trace.print(found, global, "no node has")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
