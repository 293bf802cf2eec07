//! What the status of a Workflow says about its edges: a pure function of the Workflow and of what was measured.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;

use super::advice;
use super::rounding::{percent, settled, settled_count};
use super::window::{EdgeKey, Moved, MovedEdges, WINDOW};
use crate::conditions::{Verdict, condition};
use crate::plan::Plan;
use crate::resource::{CallsByMode, EdgeStatus, Workflow, WorkflowStatus};

/// Conditions that are written here.
pub const CONDITIONS: [&str; 2] = ["Measured", "PlacementAdvice"];
/// Most edges of a Workflow in its status: those with most calls.
const EDGES_MAX: usize = 64;
/// A workflow without calls is told by the table as this.
const NO_CALLS: &str = "-";

/// What is known about the edges of all Workflows.
#[derive(Debug)]
pub struct Measurement {
    pub state: State,
    pub moved: MovedEdges,
    /// The time in which that moved.
    pub covered: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Nodes answer.
    Measured,
    /// There are no pods to ask.
    NoMetrics,
    /// No pod has answered for the whole window; why not.
    Unreachable(String),
    /// The API does not let the operator find them; what it says.
    Forbidden(String),
}

/// The fields of the status that are written here.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    pub local: String,
    pub edges: Vec<EdgeStatus>,
    pub conditions: Vec<Condition>,
}

impl Measured {
    /// What a status has of it.
    #[must_use]
    pub fn of(status: &WorkflowStatus) -> Self {
        let is_own = |it: &&Condition| CONDITIONS.contains(&it.type_.as_str());
        Self {
            local: status.local.clone().unwrap_or_default(),
            edges: status.edges.clone(),
            conditions: status.conditions.iter().filter(is_own).cloned().collect(),
        }
    }
}

/// What the status is to say. Numbers that are about those before stay as they are. So does what cannot be known: edges
/// of which a new leader has seen no call yet, and advice while the Workflow has faults.
#[must_use]
pub fn describe(workflow: &Workflow, measurement: &Measurement) -> Measured {
    let previous = Measured::of(&workflow.status.clone().unwrap_or_default());
    let plan = Plan::read(workflow).ok();
    let key = (workflow.namespace().unwrap_or_default(), workflow.name_any());
    let nothing = BTreeMap::new();
    let moved = match measurement.state {
        State::Measured => measurement.moved.get(&key).unwrap_or(&nothing),
        State::NoMetrics | State::Unreachable(_) | State::Forbidden(_) => &nothing,
    };
    let is_young = measurement.state == State::Measured && measurement.covered < WINDOW;
    let earlier = if is_young { previous.edges.as_slice() } else { &[] };
    let edges = edges(plan.as_ref(), (moved, earlier), measurement.covered, &previous);
    let mut verdicts = vec![measured(&measurement.state, moved.len() > EDGES_MAX)];
    if let Some(plan) = plan.as_ref().filter(|_| measurement.state == State::Measured) {
        let advice = advice::verdict(plan, &edges);
        verdicts.extend(advice.map(|(is_true, reason, message)| Verdict {
            kind: CONDITIONS[1],
            is_true,
            reason: reason.to_owned(),
            message,
        }));
    }
    let generation = workflow.metadata.generation.unwrap_or(0);
    let mut conditions: Vec<_> = verdicts
        .into_iter()
        .map(|verdict| condition(verdict, &previous.conditions, generation))
        .collect();
    if plan.is_none() {
        let advice = previous.conditions.iter().filter(|it| it.type_ == CONDITIONS[1]);
        conditions.extend(advice.cloned());
    }
    let local = match local(workflow, moved, &previous) {
        none if none == NO_CALLS && is_young && !previous.local.is_empty() => {
            previous.local.clone()
        }
        local => local,
    };
    Measured { local, edges, conditions }
}

fn measured(state: &State, is_cut: bool) -> Verdict {
    let (is_true, reason, message) = match state {
        State::Measured if is_cut => {
            (true, "Scraped", format!("status.edges has the {EDGES_MAX} edges with most calls"))
        }
        State::Measured => (true, "Scraped", String::new()),
        State::NoMetrics => (
            false,
            "NoMetrics",
            "no pod counts calls: `kubectl apply -f metrics.yaml` (docs/kubernetes.md#metrics)"
                .to_owned(),
        ),
        State::Unreachable(why) => (
            false,
            "Unreachable",
            format!(
                "no pod of the DaemonSet cwasi-metrics answers: its NetworkPolicy has to admit the operator; {why}"
            ),
        ),
        State::Forbidden(why) => (
            false,
            "Forbidden",
            format!("the operator needs the right to list pods in its own namespace: {why}"),
        ),
    };
    Verdict { kind: CONDITIONS[0], is_true, reason: reason.to_owned(), message }
}

/// The share of calls between functions that stayed on a node. What clients ask of a function's port is no such call.
fn local(workflow: &Workflow, moved: &BTreeMap<EdgeKey, Moved>, previous: &Measured) -> String {
    let functions = workflow.spec.fields.get("functions");
    let is_function = |caller: &str| {
        let name = caller.split_once(':').map_or(caller, |(function, _)| function);
        functions.is_some_and(|it| it.get(name).is_some())
    };
    let (mut stayed, mut all) = (0_u64, 0_u64);
    for (_, moved) in moved.iter().filter(|((caller, _), _)| is_function(caller)) {
        stayed = stayed.saturating_add(moved.embedded).saturating_add(moved.local);
        all = all.saturating_add(moved.calls());
    }
    if all == 0 { NO_CALLS.to_owned() } else { percent(&previous.local, stayed, all) }
}

/// The edges that moved something, and `earlier` ones.
fn edges(
    plan: Option<&Plan>,
    (moved, earlier): (&BTreeMap<EdgeKey, Moved>, &[EdgeStatus]),
    covered: Duration,
    previous: &Measured,
) -> Vec<EdgeStatus> {
    let mut most: Vec<_> = moved.iter().collect();
    most.sort_by_key(|(_, moved)| std::cmp::Reverse(moved.calls()));
    most.truncate(EDGES_MAX);
    let edge = |((caller, callee), moved): (&EdgeKey, &Moved)| {
        let mut before = previous.edges.iter();
        let before = before.find(|it| it.caller == *caller && it.callee == *callee);
        let mut edge =
            shown(moved, covered.as_secs_f64(), before.unwrap_or(&EdgeStatus::default()));
        (edge.caller, edge.callee) = (caller.clone(), callee.clone());
        let ends = (caller.as_str(), callee.as_str());
        let was_advised = before.is_some_and(|it| it.move_advised);
        edge.move_advised = plan.map_or(was_advised, |plan| {
            advice::is_advised(plan, ends, moved, covered.as_secs_f64(), was_advised)
        });
        edge
    };
    let mut all: Vec<_> = most.into_iter().map(edge).collect();
    let is_new = |it: &&EdgeStatus| !moved.contains_key(&(it.caller.clone(), it.callee.clone()));
    let room = EDGES_MAX - all.len();
    all.extend(earlier.iter().filter(is_new).take(room).cloned());
    all.sort_by(|one, other| (&one.caller, &one.callee).cmp(&(&other.caller, &other.callee)));
    all
}

/// The numbers of an edge.
fn shown(moved: &Moved, seconds: f64, before: &EdgeStatus) -> EdgeStatus {
    #[expect(clippy::cast_precision_loss, reason = "two digits are shown")]
    let [calls, bytes] =
        [moved.calls(), moved.network_bytes].map(|it| it as f64 / seconds.max(1.0));
    let rate_before = before.calls_per_second.parse().unwrap_or(0.0);
    #[expect(clippy::cast_precision_loss, reason = "two digits are shown")]
    let bytes_before = before.network_bytes_per_second as f64;
    #[expect(clippy::cast_possible_truncation, reason = "beyond i64::MAX it is i64::MAX")]
    let network_bytes_per_second = settled(bytes_before, bytes).ceil() as i64;
    EdgeStatus {
        calls: CallsByMode {
            embedded: settled_count(before.calls.embedded, moved.embedded),
            local: settled_count(before.calls.local, moved.local),
            networked: settled_count(before.calls.networked, moved.networked),
        },
        calls_per_second: settled(rate_before, calls).to_string(),
        network_bytes_per_second,
        ..EdgeStatus::default()
    }
}
