//! Decides which containers share one shim daemon (docs/architecture.md). Runs in the launcher.
//!
//! A Kubernetes pod is one group. The functions of one workflow in one identity scope are one group. Any other
//! container is a group of its own.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use cwasi_config::annotations::{CRI_SANDBOX_ID, CRI_SANDBOX_NAMESPACE};
use cwasi_wire::ids::short_hash;

/// The annotation with a function's workflow.
const WORKFLOW: &str = "cwasi.workflow";

#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// The file is unreadable.
    #[error("{} cannot be read: {source}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// Not JSON of the expected shape.
    #[error("{} is no OCI configuration: {source}", path.display())]
    Parse {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
}

/// The fields of `config.json` that grouping needs; the coordinator reads the rest.
#[derive(Deserialize)]
struct AnnotationsOnly {
    #[serde(default)]
    annotations: Option<HashMap<String, String>>,
}

/// The group's id of the container in `bundle`.
///
/// # Errors
/// When its `config.json` cannot be read.
pub fn group_of_bundle(bundle: &Path, namespace: &str, id: &str) -> Result<String, GroupError> {
    let path = bundle.join("config.json");
    let bytes =
        std::fs::read(&path).map_err(|source| GroupError::Read { path: path.clone(), source })?;
    let config: AnnotationsOnly =
        serde_json::from_slice(&bytes).map_err(|source| GroupError::Parse { path, source })?;
    Ok(group_id(namespace, id, &config.annotations.unwrap_or_default()))
}

/// The group's id of a container with these annotations.
#[must_use]
pub fn group_id(namespace: &str, id: &str, annotations: &HashMap<String, String>) -> String {
    let value = |key: &str| annotations.get(key).map_or("", String::as_str).trim();
    let (sandbox, workflow) = (value(CRI_SANDBOX_ID), value(WORKFLOW));
    if !sandbox.is_empty() {
        short_hash(&[namespace, "pod", sandbox])
    } else if !workflow.is_empty() {
        short_hash(&[namespace, "workflow", value(CRI_SANDBOX_NAMESPACE), workflow])
    } else {
        short_hash(&[namespace, "container", id])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(namespace: &str, id: &str, annotations: &[(&str, &str)]) -> String {
        let map = annotations.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        group_id(namespace, id, &map)
    }

    #[test]
    fn workflows_pods_and_lone_containers_are_grouped() {
        let workflow = [(WORKFLOW, "w")];
        assert_eq!(group("n", "a", &workflow), group("n", "b", &workflow));
        assert_ne!(group("n", "a", &workflow), group("m", "a", &workflow));
        assert_ne!(group("n", "a", &[]), group("n", "b", &[]));
        let pod = [(CRI_SANDBOX_ID, "p"), (WORKFLOW, "w")];
        assert_eq!(group("n", "a", &pod), group("n", "b", &[(CRI_SANDBOX_ID, "p")]));
    }

    #[test]
    fn the_pods_namespace_separates_workflows_of_one_name() {
        let tenant = |name| [(WORKFLOW, "w"), (CRI_SANDBOX_NAMESPACE, name)];
        assert_ne!(group("k8s.io", "a", &tenant("x")), group("k8s.io", "a", &tenant("y")));
    }
}
