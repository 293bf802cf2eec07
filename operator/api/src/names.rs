//! Names and labels of what belongs to a Workflow.

use std::collections::BTreeMap;

/// Label of all objects and pods: the Workflow's name.
pub const WORKFLOW: &str = "cwasi.dev/workflow";
/// Label of a function's pods and objects: its name.
pub const FUNCTION: &str = "cwasi.dev/function";
/// Label of a service's pod and objects: its name.
pub const SERVICE: &str = "cwasi.dev/service";
/// Field manager of server-side apply.
pub const MANAGER: &str = "cwasi-operator";
/// Field manager of the numbers of pods that the operator sets once and leaves to others.
pub const REPLICAS_MANAGER: &str = "cwasi-operator-replicas";
/// Field manager of what the status says about edges.
pub const EDGES_MANAGER: &str = "cwasi-operator-edges";
/// Annotation of a workload: for which state of its function it was decided where its pods are (`crate::placement`).
pub const PLACED_FOR: &str = "cwasi.dev/placed-for";
/// Annotation of a workload: functions whose nodes its pods prefer, with commas.
pub const NEAR: &str = "cwasi.dev/near";
/// Annotation of a ScaledObject: the streams of Redis that run its function, and the function's groups in them.
pub const STREAMS: &str = "cwasi.dev/streams";
/// Annotation of a Workflow: functions whose number of pods others decide, with commas.
pub const SCALED_BY_OTHERS: &str = "cwasi.dev/scaled-by-others";

/// Annotation of an object: digest of what was applied last.
pub const APPLIED: &str = "cwasi.dev/applied";

/// Labels of an object; `function` = `None` for those of the whole workflow.
#[must_use]
pub fn labels(workflow: &str, function: Option<&str>) -> BTreeMap<String, String> {
    further(selector(workflow, function), workflow, function.unwrap_or(workflow))
}

/// Labels of an object of a service.
#[must_use]
pub fn service_labels(workflow: &str, service: &str) -> BTreeMap<String, String> {
    further(service_selector(workflow, service), workflow, service)
}

/// Adds the labels that Kubernetes recommends.
fn further(
    mut labels: BTreeMap<String, String>,
    workflow: &str,
    name: &str,
) -> BTreeMap<String, String> {
    labels.insert("app.kubernetes.io/name".to_owned(), name.to_owned());
    labels.insert("app.kubernetes.io/part-of".to_owned(), workflow.to_owned());
    labels.insert("app.kubernetes.io/managed-by".to_owned(), MANAGER.to_owned());
    labels
}

/// Labels that select the pod of a service.
#[must_use]
pub fn service_selector(workflow: &str, service: &str) -> BTreeMap<String, String> {
    [(WORKFLOW, workflow), (SERVICE, service)]
        .map(|(label, name)| (label.to_owned(), name.to_owned()))
        .into()
}

/// Labels that select the pods.
#[must_use]
pub fn selector(workflow: &str, function: Option<&str>) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::from([(WORKFLOW.to_owned(), workflow.to_owned())]);
    labels.extend(function.map(|name| (FUNCTION.to_owned(), name.to_owned())));
    labels
}

/// Name of the objects of a function or service; `None` = of the whole workflow.
#[must_use]
pub fn object(workflow: &str, function: Option<&str>) -> String {
    match function {
        Some(function) => format!("{workflow}-{function}"),
        None => workflow.to_owned(),
    }
}
