//! KEDA's ScaledObject of a function that is started on demand (`scale.min: 0`). KEDA asks the operator's scaler
//! ([`crate::scaler`]) for the function's calls.

use cwasi_networked::streams::StreamReader;
use cwasi_workflow::Scale;
use kube::api::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

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
    let mut metadata = json!({
        "scalerAddress": address,
        scaler::FUNCTION: function,
        scaler::CALLS: calls,
    });
    let streams: Vec<&str> = planned.streams.iter().map(String::as_str).collect();
    if !streams.is_empty() {
        metadata[scaler::STREAMS] = json!(streams.join(","));
    }
    let body = json!({
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {
            "name": name,
            "labels": names::labels(&plan.workflow, Some(function)),
            "annotations": { names::STREAMS: groups(planned) },
        },
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
                "metadata": metadata,
            }],
        },
    });
    Object { resource: scaled_object_kind(), name, body }
}

/// Keys and groups of all streams that run the function, in JSON: for a `redis-streams` trigger of a user's own.
fn groups(planned: &PlannedFunction) -> String {
    let Some(function) = planned.announcement.as_ref().map(|it| &it.identity) else {
        return String::new();
    };
    let triggers = planned.streams.iter().map(|it| StreamReader::of_trigger(function, it));
    let readers = std::iter::once(StreamReader::of_messages(function)).chain(triggers);
    let groups = readers.map(|it| json!({ "stream": it.key(), "group": it.group() }));
    Value::from(groups.collect::<Vec<_>>()).to_string()
}
