//! Decides which functions a function's pods should be near to: a pure function of the plan, of the advice in the
//! Workflow's status, and of what its workload has.
//!
//! Invariant: advice alone changes no pod template, so no running pod is replaced for it. A workload records the state of
//! its function for which its place was decided ([`names::PLACED_FOR`]). While that state holds, the place stays what it
//! is; another image, another field or `kubectl rollout restart` replaces the pods anyway, and the new ones follow the
//! advice of that time.

use std::collections::BTreeMap;

use cwasi_workflow::Placement;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use kube::ResourceExt as _;

use crate::edges::advice;
use crate::objects::names;
use crate::observe::Observed;
use crate::plan::Plan;
use crate::resource::EdgeStatus;

/// What `kubectl rollout restart` writes into a pod template: the time.
const RESTARTED_AT: &str = "kubectl.kubernetes.io/restartedAt";

/// A workload's record.
#[derive(Debug, Default)]
struct Record {
    placed_for: Option<String>,
    near: Vec<String>,
    restarted_at: Option<String>,
}

/// Decides for all functions of a plan.
pub fn decide(plan: &mut Plan, observed: &Observed, edges: &[EdgeStatus]) {
    let places: Vec<_> =
        (0..plan.functions.len()).map(|index| place(plan, index, observed, edges)).collect();
    for (planned, (placed_for, near)) in plan.functions.iter_mut().zip(places) {
        (planned.placed_for, planned.near) = (placed_for, near);
    }
}

/// The state of a function, and what it should be near to.
fn place(
    plan: &Plan,
    index: usize,
    observed: &Observed,
    edges: &[EdgeStatus],
) -> (String, Vec<String>) {
    let planned = &plan.functions[index];
    let name = &planned.function.name;
    let record = record(observed, &names::object(&plan.workflow, Some(name)));
    let state = match record.as_ref().and_then(|it| it.restarted_at.as_ref()) {
        Some(at) => format!("{} {at}", planned.revision),
        None => planned.revision.clone(),
    };
    // Other policies say where functions are.
    if plan.placement != Placement::Auto {
        return (state, Vec::new());
    }
    // An operator of an older version left no record: as if it had been made for this state.
    let is_settled = record
        .as_ref()
        .is_some_and(|it| it.placed_for.as_ref().is_none_or(|before| *before == state));
    let mut near = record.map(|it| it.near).unwrap_or_default();
    if !is_settled {
        if plan.may_move {
            // Where it is near to already, little moves over the network: the advice was followed, and still holds.
            near.extend(advised(plan, name, edges));
        } else {
            near.clear();
        }
        near.retain(|other| advice::function(plan, other).is_some());
        near.sort();
        near.dedup();
    }
    // What the file says about an edge is said instead.
    let is_placed = |other: &String| {
        plan.placed_edges.iter().any(|edge| edge.other_end(name) == Some(other.as_str()))
    };
    near.retain(|other| !is_placed(other));
    (state, near)
}

/// Functions at the other ends of edges that should move.
fn advised<'a>(
    plan: &'a Plan,
    name: &'a str,
    edges: &'a [EdgeStatus],
) -> impl Iterator<Item = String> + 'a {
    edges.iter().filter(|edge| edge.move_advised).filter_map(move |edge| {
        let ends = [&edge.caller, &edge.callee].map(|end| advice::function(plan, end));
        let [Some(caller), Some(callee)] = ends else { return None };
        match (caller.function.name.as_str(), callee.function.name.as_str()) {
            (caller, callee) if caller == name && callee != name => Some(callee.to_owned()),
            (caller, callee) if callee == name && caller != name => Some(caller.to_owned()),
            _ => None,
        }
    })
}

/// The record of a Deployment or CronJob. A Job has none: each revision is another Job.
fn record(observed: &Observed, name: &str) -> Option<Record> {
    let of = |annotations: &BTreeMap<String, String>, template: Option<&PodTemplateSpec>| {
        let near = annotations.get(names::NEAR).map(String::as_str).unwrap_or_default();
        let in_template = template.and_then(|it| it.metadata.as_ref()?.annotations.as_ref());
        Record {
            placed_for: annotations.get(names::PLACED_FOR).cloned(),
            near: near.split(',').filter(|it| !it.is_empty()).map(str::to_owned).collect(),
            restarted_at: in_template.and_then(|it| it.get(RESTARTED_AT)).cloned(),
        }
    };
    if let Some(deployment) = observed.deployment(name) {
        let template = deployment.spec.as_ref().map(|it| &it.template);
        return Some(of(deployment.annotations(), template));
    }
    let job = observed.cron_job(name)?;
    Some(of(job.annotations(), None))
}
