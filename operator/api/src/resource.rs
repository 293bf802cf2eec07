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
    /// Backends of the functions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<FunctionStatus>,
    /// `Ready`, `Progressing`, `Degraded`; `Measured`, `PlacementAdvice`.
    pub conditions: Vec<Condition>,
    /// Share of the calls between functions that stayed on a node, as `93%`; `-` without calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local: Option<String>,
    /// What the last minutes' calls moved.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub edges: Vec<EdgeStatus>,
}

/// The calls from one function to another one in the last minutes.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EdgeStatus {
    /// With `:MODULE` behind it when an embedded module called.
    pub caller: String,
    /// In the caller's words.
    pub callee: String,
    pub calls: CallsByMode,
    /// A number; Kubernetes' objects have no fractions.
    pub calls_per_second: String,
    /// Bytes of requests and responses of its networked calls.
    pub network_bytes_per_second: i64,
    /// True if both functions should be on one node.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub move_advised: bool,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CallsByMode {
    pub embedded: i64,
    pub local: i64,
    pub networked: i64,
}

/// A function's objects, or a service's.
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
    /// URL of a function in the cluster, if it has a port; host and port of a service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
}
