//! KEDA's ScaledObject of a function that is started on demand (`scale.min: 0`). KEDA asks the operator's scaler
//! ([`crate::scaler`]) for the function's calls.

use cwasi_workflow::Scale;
use kube::api::{ApiResource, GroupVersionKind};
use serde_json::json;

use super::{Object, names};
use crate::plan::{Plan, PlannedFunction};
use crate::scaler;

/// How often KEDA asks whether there are calls, in seconds: KEDA's own value, and less for a short cooldown. The first
/// call does not wait for it.
const POLLING_SECONDS: u64 = 30;

/// KEDA's kind.
#[must_use]
pub fn scaled_object_kind() -> ApiResource {
    ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk("keda.sh", "v1alpha1", "ScaledObject"),
        "scaledobjects",
    )
}

/// The ScaledObject of a function; `address`: the scaler's.
pub(super) fn build(plan: &Plan, planned: &PlannedFunction, scale: Scale, address: &str) -> Object {
    let function = &planned.function.name;
    let name = names::object(&plan.workflow, Some(function));
    let cooldown = scale.cooldown.as_secs().max(1);
    let calls = scale.calls.unwrap_or(planned.workers).to_string();
    let body = json!({
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": { "name": name, "labels": names::labels(&plan.workflow, Some(function)) },
        "spec": {
            "scaleTargetRef": { "name": name },
            "minReplicaCount": 0,
            "maxReplicaCount": scale.max,
            "cooldownPeriod": cooldown,
            // The first pod shows that the function starts, and its node has the image and the native code then.
            "initialCooldownPeriod": cooldown,
            "pollingInterval": cooldown.div_ceil(2).min(POLLING_SECONDS),
            "triggers": [{
                "type": "external-push",
                "metadata": {
                    "scalerAddress": address,
                    scaler::FUNCTION: function,
                    scaler::CALLS: calls,
                },
            }],
        },
    });
    Object { resource: scaled_object_kind(), name, body }
}
