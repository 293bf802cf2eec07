//! Where the scheduler puts pods: near to the workflow's other pods, near to or apart from those of single functions, or
//! over the nodes. All of it is a preference. A pod that finds no room there runs elsewhere, and its calls take the
//! network.

use cwasi_workflow::{EdgePlacement, Placement};
use k8s_openapi::api::core::v1::{
    Affinity, PodAffinity, PodAffinityTerm, PodAntiAffinity, TopologySpreadConstraint,
    WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::names;
use crate::plan::{Plan, PlannedFunction};

/// Label of a node that is its own.
const HOSTNAME: &str = "kubernetes.io/hostname";
/// Weight of a single function's pods: the most that a preference weighs. The scheduler adds it once for each pod that a
/// node has already.
const FUNCTION_WEIGHT: i32 = 100;
/// Weight of the workflow's pods. It is small also where it is the only one: the scheduler adds the preferences of the
/// pods that a node has, and those must not outweigh where a new pod should be.
const WORKFLOW_WEIGHT: i32 = 1;

/// The preferences of the pods of a function, or of the one pod of the workflow.
#[must_use]
pub fn of(
    plan: &Plan,
    planned: Option<&PlannedFunction>,
) -> (Option<Affinity>, Option<Vec<TopologySpreadConstraint>>) {
    let mut near = planned.map(|it| it.near.clone()).unwrap_or_default();
    let mut apart = Vec::new();
    if let Some(planned) = planned {
        near.extend(neighbours(plan, planned, EdgePlacement::Node));
        apart.extend(neighbours(plan, planned, EdgePlacement::Spread));
    }
    near.sort();
    near.dedup();
    let workflow = &plan.workflow;
    // What the file says about an edge is said instead of the policy.
    let spread = plan.placement == Placement::Spread && near.is_empty();
    let is_near = matches!(plan.placement, Placement::Auto | Placement::Node);
    let of_function = |name: &String| term(workflow, FUNCTION_WEIGHT, Some(name));
    let mut terms: Vec<_> = near.iter().map(of_function).collect();
    terms.extend(is_near.then(|| term(workflow, WORKFLOW_WEIGHT, None)));
    let against: Vec<_> = apart.iter().map(of_function).collect();
    let pod_affinity = (!terms.is_empty()).then(|| PodAffinity {
        preferred_during_scheduling_ignored_during_execution: Some(terms),
        ..PodAffinity::default()
    });
    let pod_anti_affinity = (!against.is_empty()).then(|| PodAntiAffinity {
        preferred_during_scheduling_ignored_during_execution: Some(against),
        ..PodAntiAffinity::default()
    });
    let affinity = (pod_affinity.is_some() || pod_anti_affinity.is_some()).then(|| Affinity {
        pod_affinity,
        pod_anti_affinity,
        ..Affinity::default()
    });
    (affinity, spread.then(|| vec![over_nodes(workflow)]))
}

/// Functions at the other ends of edges for which the file says this.
fn neighbours<'a>(
    plan: &'a Plan,
    planned: &'a PlannedFunction,
    placement: EdgePlacement,
) -> impl Iterator<Item = String> + 'a {
    let name = &planned.function.name;
    let edges = plan.placed_edges.iter().filter(move |edge| edge.placement == placement);
    edges.filter_map(move |edge| edge.other_end(name)).map(str::to_owned)
}

fn term(workflow: &str, weight: i32, function: Option<&str>) -> WeightedPodAffinityTerm {
    WeightedPodAffinityTerm {
        weight,
        pod_affinity_term: PodAffinityTerm {
            label_selector: Some(pods_of(workflow, function)),
            topology_key: HOSTNAME.to_owned(),
            ..PodAffinityTerm::default()
        },
    }
}

/// Divides the workflow's pods between the nodes, if that is possible.
fn over_nodes(workflow: &str) -> TopologySpreadConstraint {
    TopologySpreadConstraint {
        max_skew: 1,
        topology_key: HOSTNAME.to_owned(),
        when_unsatisfiable: "ScheduleAnyway".to_owned(),
        label_selector: Some(pods_of(workflow, None)),
        ..TopologySpreadConstraint::default()
    }
}

/// Pods of a function, or of the whole workflow.
fn pods_of(workflow: &str, function: Option<&str>) -> LabelSelector {
    LabelSelector {
        match_labels: Some(names::selector(workflow, function)),
        ..LabelSelector::default()
    }
}
