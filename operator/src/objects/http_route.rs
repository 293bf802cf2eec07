//! The HTTPRoute of a function with `ingress.gateway`: a Gateway of the cluster sends it requests by host and path.

use cwasi_workflow::{GatewayName, Ingress};
use kube::api::{ApiResource, GroupVersionKind};
use serde_json::json;

use super::{Object, names};
use crate::plan::{Plan, PlannedFunction};

/// The Gateway API's kind.
#[must_use]
pub fn http_route_kind() -> ApiResource {
    ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk("gateway.networking.k8s.io", "v1", "HTTPRoute"),
        "httproutes",
    )
}

/// The HTTPRoute of a function; `port`: that of its Service.
pub(super) fn build(
    plan: &Plan,
    planned: &PlannedFunction,
    fields: &Ingress,
    gateway: &GatewayName,
    port: u16,
) -> Object {
    let function = &planned.function.name;
    let name = names::object(&plan.workflow, Some(function));
    let mut parent = json!({ "name": gateway.name });
    if let Some(namespace) = &gateway.namespace {
        parent["namespace"] = json!(namespace);
    }
    let mut spec = json!({
        "parentRefs": [parent],
        "rules": [{
            "matches": [{ "path": { "type": "PathPrefix", "value": fields.path } }],
            "backendRefs": [{ "name": name, "port": port }],
        }],
    });
    if let Some(host) = &fields.host {
        spec["hostnames"] = json!([host]);
    }
    let body = json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": { "name": name, "labels": names::labels(&plan.workflow, Some(function)) },
        "spec": spec,
    });
    Object { resource: http_route_kind(), name, body }
}
