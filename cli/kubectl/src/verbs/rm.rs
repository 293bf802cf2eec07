//! `cwasi rm --kube`: deletes Workflows, and waits until their pods are gone.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;

use crate::cluster::Cluster;
use crate::cluster::workflows::workloads;
use cwasi_cli::arguments::Global;
use cwasi_cli::failure::Failure;
use cwasi_cli::interrupt::Interrupt;
use cwasi_cli::output;

/// Deletes them, and prints their names when they are gone.
pub async fn run(
    cluster: &Cluster,
    names: &[String],
    timeout: Duration,
    global: &Global,
) -> Result<ExitCode, Failure> {
    let mut found = Vec::new();
    // All of them before the first one goes.
    for name in names {
        found.push((name, workloads(&cluster.workflow(name).await?)));
    }
    let mut interrupt = Interrupt::new()?;
    let (mut printed, mut removed) = (Ok(()), Vec::new());
    for (name, workloads) in found {
        let with = if workloads.is_empty() {
            String::new()
        } else {
            format!(", with {}", workloads.join(", "))
        };
        output::note(format_args!(
            "cwasi: deleting workflow {name} of namespace {}{with}",
            cluster.namespace
        ));
        interrupt.or(async { Ok(cluster.delete(name, timeout).await?) }).await?;
        if !global.json {
            printed = printed.and(output::line(name));
        }
        removed.push(json!({ "workflow": name, "workloads": workloads, "state": "removed" }));
    }
    if global.json {
        printed = output::json(&removed);
    }
    printed.map(|()| ExitCode::SUCCESS)
}
