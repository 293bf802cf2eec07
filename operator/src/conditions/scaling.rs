//! The condition `ScalesToZero`: whether functions with `scale.min: 0` can be without a pod. It says nothing of those
//! whose number others decide.

use kube::api::DynamicObject;

use super::{Verdict, View, found};
use crate::objects::names;
use crate::observe::{is_old, is_scaled};
use crate::plan::{Plan, PlannedFunction};

/// What KEDA says while the operator's scaler answers with an error.
const TRIGGER_ERROR: &str = "TriggerError";

/// The condition; `None` without such functions.
pub(super) fn verdict(plan: &Plan, view: &View<'_>) -> Option<Verdict> {
    let ours = plan.functions.iter().filter(|it| !it.scaled_by_others);
    let on_demand: Vec<_> = ours.filter(|it| it.announcement.is_some()).collect();
    if on_demand.is_empty() {
        return None;
    }
    let (is_true, reason, message) = if view.facilities.scaler.is_none() {
        (
            false,
            "NoRedis".to_owned(),
            "functions with scale.min: 0 keep one pod: the operator has no Redis, through which callers ask for one; set \
             CWASI_REDIS_URL"
                .to_owned(),
        )
    } else if !view.facilities.has_keda {
        (
            false,
            "NoKeda".to_owned(),
            "functions with scale.min: 0 keep one pod: KEDA is not in this cluster; install it (https://keda.sh)"
                .to_owned(),
        )
    } else {
        with_keda(plan, view, &on_demand)
    };
    Some(Verdict { kind: "ScalesToZero", is_true, reason, message })
}

/// What KEDA says of the ScaledObjects; and ports that are not reached at zero.
fn with_keda(
    plan: &Plan,
    view: &View<'_>,
    on_demand: &[&PlannedFunction],
) -> (bool, String, String) {
    let mut reason = None;
    let mut messages = Vec::new();
    for planned in on_demand {
        let function = &planned.function.name;
        let name = names::object(&plan.workflow, Some(function));
        if view.observed.is_terminating(&name) {
            messages.push(format!(
                "{function}: it keeps one pod: ScaledObject {name} is being deleted, which only KEDA finishes; if KEDA is \
                 gone: kubectl patch scaledobject {name} --type merge -p '{{\"metadata\":{{\"finalizers\":null}}}}'"
            ));
            reason.get_or_insert_with(|| "KedaIsGone".to_owned());
            continue;
        }
        let Some(object) = found(&view.observed.scaled_objects, &name) else {
            messages.push(format!(
                "{function}: it keeps one pod: the API has not taken ScaledObject {name}; `Degraded` says why"
            ));
            reason.get_or_insert_with(|| "Refused".to_owned());
            continue;
        };
        if !is_scaled(object) && is_old(object) {
            messages.push(format!(
                "{function}: KEDA says nothing of ScaledObject {name}, so nothing starts its first pod: does KEDA's \
                 operator run (`kubectl -n keda get pods`)?"
            ));
            reason.get_or_insert_with(|| "NoAnswer".to_owned());
        }
        if let Some((why, message)) = failure(object) {
            let remedy = match why.as_str() {
                TRIGGER_ERROR => format!(
                    "pods stay as they are until KEDA reaches the operator's scaler ({}), and the operator Redis",
                    view.facilities.scaler.as_deref().unwrap_or_default()
                ),
                _ => format!("see `kubectl describe scaledobject {name}`"),
            };
            messages.push(format!(
                "{function}: KEDA does not scale ScaledObject {name}: {message}; {remedy}"
            ));
            reason.get_or_insert(why);
        }
    }
    let is_true = reason.is_none();
    let unreached = on_demand.iter().filter_map(|planned| {
        let port = planned.function.port_unreached_at_zero()?;
        let function = &planned.function.name;
        Some(format!(
            "{function}: port {port} is not reached while it has no pod: send clients to the gateway (`http: \"{port}, \
             gateway\"`), or keep one pod (`scale.min: 1`)"
        ))
    });
    messages.extend(unreached);
    (is_true, reason.unwrap_or_else(|| "Keda".to_owned()), messages.join("\n"))
}

/// Reason and message of a ScaledObject that is not ready. One of which KEDA has not said anything yet is no failure.
fn failure(object: &DynamicObject) -> Option<(String, String)> {
    let conditions = object.data["status"]["conditions"].as_array()?;
    let ready = conditions.iter().find(|it| it["type"] == "Ready" && it["status"] == "False")?;
    let text = |key: &str| ready[key].as_str().filter(|it| !it.is_empty()).map(str::to_owned);
    Some((
        text("reason").unwrap_or_else(|| "NotReady".to_owned()),
        text("message").unwrap_or_else(|| "no message".to_owned()),
    ))
}
