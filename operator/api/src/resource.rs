//! The kind `Workflow` of Kubernetes' API. Its spec is the `spec` of a workflow file, which the operator's `plan` reads.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// `spec` of a workflow file.
#[derive(CustomResource, Clone, Debug, Default, Deserialize, Serialize)]
#[kube(
    group = "cwasi.dev",
    version = "v1alpha1",
    kind = "Workflow",
    plural = "workflows",
    status = "WorkflowStatus",
    schema = "disabled",
    namespaced
)]
pub struct WorkflowSpec {
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkflowStatus {
    /// Generation of the spec that this status is about.
    pub observed_generation: i64,
    /// Functions that are ready, of all: `2/3`.
    pub ready_functions: String,
    pub functions: Vec<FunctionStatus>,
    /// `Ready`, `Progressing`, `Degraded`.
    pub conditions: Vec<Condition>,
}

/// A function's objects.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FunctionStatus {
    pub name: String,
    /// What runs it: `Deployment/hello-greeter`.
    pub workload: String,
    pub image: String,
    /// Digest of the image that its pods run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_digest: Option<String>,
    /// Pods that are wanted, and that are ready. A Job that has completed is ready.
    pub replicas: i32,
    pub ready_replicas: i32,
    /// URL in the cluster, if it has a port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
}
