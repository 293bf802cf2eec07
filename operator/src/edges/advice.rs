//! Which edges move so much over the network that both functions should be on one node, and the condition that says it.
//!
//! A call over the network takes at least 0.6 ms, one on the node 10 µs (docs/performance.md). Below one such call a
//! second a better place gains less than a thousandth of the time; below a tenth of an edge's calls most of them stay on
//! the node already, and the rest is what spreads over replicas. 1 MiB/s is what a Redis carries for a few hundred edges
//! on a link of 10 Gbit/s.

use cwasi_workflow::{Placement, Role};

use super::window::Moved;
use crate::objects::pods;
use crate::plan::{Plan, PlannedFunction};
use crate::resource::EdgeStatus;

/// From here on an edge moves much.
const BYTES_PER_SECOND: f64 = 1_048_576.0;
const CALLS_PER_SECOND: f64 = 1.0;
const PART_OF_CALLS: f64 = 0.1;
/// Advice that was given holds until an edge moves less than this part of that.
const HELD_ABOVE: f64 = 0.5;
/// Most edges in the message.
const EDGES_MAX: usize = 5;

/// A condition's status, reason and message.
pub type Verdict = (bool, &'static str, String);

/// True if an edge moves much over the network, and both functions could be on one node.
#[must_use]
pub fn is_advised(
    plan: &Plan,
    (caller, callee): (&str, &str),
    moved: &Moved,
    seconds: f64,
    was_advised: bool,
) -> bool {
    plan.placement == Placement::Auto
        && !is_placed(plan, caller, callee)
        && moves_much(moved, seconds, if was_advised { HELD_ABOVE } else { 1.0 })
        && could_share_a_node(plan, caller, callee)
}

fn moves_much(moved: &Moved, seconds: f64, part: f64) -> bool {
    #[expect(clippy::cast_precision_loss, reason = "thresholds need no exact numbers")]
    let [networked, calls, bytes] =
        [moved.networked, moved.calls(), moved.network_bytes].map(|it| it as f64);
    bytes > part * BYTES_PER_SECOND * seconds
        || (networked > part * CALLS_PER_SECOND * seconds
            && networked > part * PART_OF_CALLS * calls)
}

/// True if the file says where the edge's functions are.
fn is_placed(plan: &Plan, caller: &str, callee: &str) -> bool {
    let [caller, callee] = [caller, callee].map(|it| function(plan, it));
    caller.zip(callee).is_some_and(|(caller, callee)| {
        let (caller, callee) = (&caller.function.name, &callee.function.name);
        plan.placed_edges.iter().any(|edge| edge.other_end(caller) == Some(callee.as_str()))
    })
}

/// The function of the plan that an edge's caller or callee is; embedded modules are their function's.
#[must_use]
pub fn function<'a>(plan: &'a Plan, name: &str) -> Option<&'a PlannedFunction> {
    let name = name.split_once(':').map_or(name, |(function, _)| function);
    let mut running = plan.functions.iter().filter(|it| it.function.role != Role::Library);
    running.find(|it| it.function.name == name)
}

/// False if their templates name different nodes. Affinities of the user's own are not looked at.
fn could_share_a_node(plan: &Plan, caller: &str, callee: &str) -> bool {
    let (Some(caller), Some(callee)) = (function(plan, caller), function(plan, callee)) else {
        return false;
    };
    if caller.function.name == callee.function.name {
        return false;
    }
    let [caller, callee] = [caller, callee]
        .map(|planned| pods::of_function(plan, planned, None).spec.unwrap_or_default());
    let (one, other) =
        (caller.node_selector.unwrap_or_default(), callee.node_selector.unwrap_or_default());
    let is_same_name = match (&caller.node_name, &callee.node_name) {
        (Some(one), Some(other)) => one == other,
        _ => true,
    };
    is_same_name && one.iter().all(|(key, value)| other.get(key).is_none_or(|it| it == value))
}

/// The condition `PlacementAdvice` of a workflow whose placement is `auto`.
#[must_use]
pub fn verdict(plan: &Plan, edges: &[EdgeStatus]) -> Option<Verdict> {
    if plan.placement != Placement::Auto {
        return None;
    }
    let advised: Vec<_> = edges.iter().filter(|edge| edge.move_advised).collect();
    if advised.is_empty() {
        return Some((false, "CallsStayLocal", String::new()));
    }
    let mut lines: Vec<_> = advised.iter().take(EDGES_MAX).map(|edge| line(edge)).collect();
    if advised.len() > EDGES_MAX {
        lines.push("and further edges: see status.edges".to_owned());
    }
    let remedy = if plan.may_move {
        "the next rollout of either function prefers the other's node (`kubectl rollout restart` begins one); if they stay apart then, that node has no room"
    } else {
        "set `placement.move: true`, and the next rollout of either function prefers the other's node; or `placement.policy: pod`"
    };
    Some((true, "NetworkedEdges", format!("{}\n{remedy}", lines.join("\n"))))
}

/// What moves, and what a common node would gain.
fn line(edge: &EdgeStatus) -> String {
    let calls = &edge.calls;
    let all = calls.embedded.saturating_add(calls.local).saturating_add(calls.networked).max(1);
    let percent = (i128::from(calls.networked) * 100 / i128::from(all)).max(1);
    let bytes = mebibytes(edge.network_bytes_per_second);
    format!(
        "{} -> {}: {percent}% of {} calls/s and {bytes} MiB/s go over the network, and would stay in the memory of one node",
        edge.caller, edge.callee, edge.calls_per_second
    )
}

fn mebibytes(bytes: i64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "two digits are shown")]
    let number = bytes as f64 / BYTES_PER_SECOND;
    if number < 10.0 { format!("{number:.1}") } else { format!("{number:.0}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECONDS: f64 = 100.0;

    #[test]
    fn much_is_a_mebibyte_or_a_tenth_of_the_calls() {
        let moved = |local, networked, network_bytes| Moved {
            embedded: 0,
            local,
            networked,
            network_bytes,
        };
        for (moved, is_much) in [
            (moved(0, 1, 104_857_600), false),
            (moved(0, 1, 104_857_601), true),
            // One call a second, and one more.
            (moved(0, 100, 0), false),
            (moved(0, 101, 0), true),
            // A tenth of all calls, and one more.
            (moved(1800, 200, 0), false),
            (moved(1800, 201, 0), true),
            (moved(1_000_000, 0, 0), false),
        ] {
            assert_eq!(moves_much(&moved, SECONDS, 1.0), is_much, "{moved:?}");
        }
        assert!(moves_much(&moved(0, 60, 0), SECONDS, HELD_ABOVE));
        assert!(!moves_much(&moved(0, 50, 0), SECONDS, HELD_ABOVE));
    }
}
