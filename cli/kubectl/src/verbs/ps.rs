//! `cwasi ps --kube`: the functions of Workflows, where they run, and what needs a person.

use std::collections::BTreeSet;
use std::process::ExitCode;

use cwasi_operator_api::names;
use cwasi_operator_api::resource::{FunctionStatus, Workflow};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use serde::Serialize;

use crate::cluster::workflows::{Need, functions_of_spec, needs};
use crate::cluster::{Cluster, pods};
use cwasi_cli::arguments::Global;
use cwasi_cli::failure::Failure;
use cwasi_cli::output;
use cwasi_cli::table::Table;

/// Digits of a digest in the table.
const DIGEST_LEN: usize = "sha256:".len() + 12;
/// A cell without a value.
const NONE: &str = "-";

#[derive(Debug, PartialEq, Eq, Serialize)]
struct WorkflowRow {
    workflow: String,
    namespace: String,
    /// Functions that are ready, of all: `2/3`.
    ready_functions: String,
    needs: Vec<Need>,
    functions: Vec<FunctionRow>,
    services: Vec<FunctionRow>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct FunctionRow {
    function: String,
    workload: String,
    ready: i32,
    replicas: i32,
    nodes: BTreeSet<String>,
    image: String,
    image_digest: Option<String>,
    url: Option<String>,
}

/// Prints them.
pub async fn run(
    cluster: &Cluster,
    workflow: Option<&str>,
    global: &Global,
) -> Result<ExitCode, Failure> {
    let workflows = match workflow {
        Some(name) => vec![cluster.workflow(name).await?],
        None => cluster.workflows().await?,
    };
    let pods = cluster.pods(names::WORKFLOW).await?;
    let rows: Vec<_> = workflows.iter().map(|it| row(it, &pods)).collect();
    if global.json {
        output::json(&rows)?;
        return Ok(ExitCode::SUCCESS);
    }
    if rows.is_empty() {
        output::note(format_args!(
            "cwasi: namespace {} has no workflows; -n names another one",
            cluster.namespace
        ));
    }
    output::text(table(&rows))?;
    for row in &rows {
        for Need { reason, message } in &row.needs {
            output::line(format_args!("\n{}: {reason}: {message}", row.workflow))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn row(workflow: &Workflow, pods: &[Pod]) -> WorkflowRow {
    let name = workflow.name_any();
    let status = workflow.status.clone().unwrap_or_default();
    let mut functions = status.functions;
    // The operator has not read it, or cannot: the spec has the names.
    if functions.is_empty() {
        let named = |name| FunctionStatus { name, ..FunctionStatus::default() };
        functions = functions_of_spec(workflow).into_iter().map(named).collect();
    }
    let row_of = |function: FunctionStatus| {
        let live = pods.iter().filter(|pod| pods::is_live(pod));
        let own = live.filter(|pod| pods::runs(pod, &name, &function.name));
        FunctionRow {
            nodes: own.filter_map(pods::node).map(str::to_owned).collect(),
            function: function.name,
            workload: function.workload,
            ready: function.ready_replicas,
            replicas: function.replicas,
            image: function.image,
            image_digest: function.image_digest,
            url: function.endpoint,
        }
    };
    let functions = functions.into_iter().map(row_of).collect();
    let services = status.services.into_iter().map(row_of).collect();
    WorkflowRow {
        namespace: workflow.namespace().unwrap_or_default(),
        ready_functions: status.ready_functions,
        needs: needs(workflow),
        functions,
        services,
        workflow: name,
    }
}

fn table(rows: &[WorkflowRow]) -> Table {
    let mut table =
        Table::new(["WORKFLOW", "FUNCTION", "WORKLOAD", "READY", "NODES", "IMAGE DIGEST", "URL"]);
    let or_none = |text: &str| if text.is_empty() { NONE.to_owned() } else { text.to_owned() };
    for row in rows {
        let functions = row.functions.iter().map(|it| (it, it.function.clone()));
        let services = row.services.iter().map(|it| (it, format!("{} (service)", it.function)));
        for (function, name) in functions.chain(services) {
            let nodes: Vec<_> = function.nodes.iter().map(String::as_str).collect();
            let digest = function.image_digest.as_deref().unwrap_or(NONE);
            table.row([
                row.workflow.clone(),
                name,
                or_none(&function.workload),
                format!("{}/{}", function.ready, function.replicas),
                or_none(&nodes.join(",")),
                digest.get(..DIGEST_LEN).unwrap_or(digest).to_owned(),
                or_none(function.url.as_deref().unwrap_or_default()),
            ]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn functions_without_a_status_are_those_of_the_spec() {
        let workflow: Workflow = serde_json::from_value(json!({
            "apiVersion": "cwasi.dev/v1alpha1", "kind": "Workflow",
            "metadata": { "name": "w", "namespace": "n" },
            "spec": { "functions": { "front": { "image": "i" } } },
        }))
        .unwrap();
        let row = row(&workflow, &[]);
        assert_eq!(row.needs[0].reason, "NoStatus");
        let text = table(&[row]).to_string();
        assert!(
            text.ends_with("\nw         front     -         0/0    -      -             -\n"),
            "{text}"
        );
    }

    #[test]
    fn services_are_below_the_functions() {
        let workflow: Workflow = serde_json::from_value(json!({
            "apiVersion": "cwasi.dev/v1alpha1", "kind": "Workflow",
            "metadata": { "name": "w", "namespace": "n" },
            "spec": {},
            "status": {
                "functions": [{ "name": "front", "workload": "Deployment/w-front", "replicas": 1, "readyReplicas": 1 }],
                "services": [{ "name": "db", "workload": "StatefulSet/w-db", "replicas": 1, "endpoint": "w-db:5432" }],
            },
        }))
        .unwrap();
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "name": "w-db-0", "labels": { "cwasi.dev/workflow": "w", "cwasi.dev/service": "db" } },
            "spec": { "nodeName": "one", "containers": [{ "name": "db" }] },
        }))
        .unwrap();
        let row = row(&workflow, &[pod]);
        assert!(row.functions[0].nodes.is_empty(), "{row:?}");
        let text = table(&[row]).to_string();
        let line = text.lines().last().unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(line, "w db (service) StatefulSet/w-db 0/1 one - w-db:5432");
    }
}
