//! Names and labels of what belongs to a Workflow.

use std::collections::BTreeMap;

/// Label of all objects and pods: the Workflow's name.
pub const WORKFLOW: &str = "cwasi.dev/workflow";
/// Label of a function's pods and objects: its name.
pub const FUNCTION: &str = "cwasi.dev/function";
/// Field manager of server-side apply.
pub const MANAGER: &str = "cwasi-operator";
/// Field manager of what the status says about edges.
pub const EDGES_MANAGER: &str = "cwasi-operator-edges";
/// Annotation of a workload: for which state of its function it was decided where its pods are (`crate::placement`).
pub const PLACED_FOR: &str = "cwasi.dev/placed-for";
/// Annotation of a workload: functions whose nodes its pods prefer, with commas.
pub const NEAR: &str = "cwasi.dev/near";

/// Labels of an object; `function` = `None` for those of the whole workflow.
#[must_use]
pub fn labels(workflow: &str, function: Option<&str>) -> BTreeMap<String, String> {
    let mut labels = selector(workflow, function);
    labels.insert("app.kubernetes.io/name".to_owned(), function.unwrap_or(workflow).to_owned());
    labels.insert("app.kubernetes.io/part-of".to_owned(), workflow.to_owned());
    labels.insert("app.kubernetes.io/managed-by".to_owned(), MANAGER.to_owned());
    labels
}

/// Labels that select the pods.
#[must_use]
pub fn selector(workflow: &str, function: Option<&str>) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::from([(WORKFLOW.to_owned(), workflow.to_owned())]);
    labels.extend(function.map(|name| (FUNCTION.to_owned(), name.to_owned())));
    labels
}

/// Name of the objects of a function; `None` = of the whole workflow.
#[must_use]
pub fn object(workflow: &str, function: Option<&str>) -> String {
    match function {
        Some(function) => format!("{workflow}-{function}"),
        None => workflow.to_owned(),
    }
}
