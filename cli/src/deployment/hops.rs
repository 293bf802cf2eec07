//! The calls of a workflow's functions: mode, reason, numbers. The shims write them; this reads what they have written.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use cwasi_host::group::group_id;
use cwasi_host::metrics::node::groups;
use cwasi_host::metrics::snapshot::{EdgeKey, EdgeSnapshot, FunctionSnapshot};
use cwasi_host::metrics::starts::StartStages;
use cwasi_host::state::{GroupDir, StateDir};

use crate::table::Table;

/// Reads the calls of a workflow on one node: those of its running shim, or of the one that ended last. Empty when
/// there were none.
#[must_use]
pub fn read(state_dir: &Path, namespace: &str, workflow: &str) -> Vec<EdgeSnapshot> {
    let annotations = [("cwasi.workflow".to_owned(), workflow.to_owned())].into();
    let (state, group) = (StateDir::new(state_dir), group_id(namespace, "", &annotations));
    let (running, ended) = (state.group(&group).edges(), state.kept_edges(&group));
    let bytes = fs::read(running).or_else(|_| fs::read(ended)).unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_default()
}

/// Reads the calls of the host's processes in a namespace: those of the gateway and of `cwasi invoke`, while they run.
#[must_use]
pub fn of_host_callers(state_dir: &Path, namespace: &str) -> Vec<EdgeSnapshot> {
    let groups = groups(&StateDir::new(state_dir)).into_iter();
    let files = groups.filter(GroupDir::is_of_host).map(|group| group.edges());
    let lists = files.filter_map(|path| fs::read(path).ok());
    let calls = lists
        .flat_map(|bytes| serde_json::from_slice::<Vec<EdgeSnapshot>>(&bytes).unwrap_or_default());
    calls.filter(|hop| hop.key.namespace == namespace).collect()
}

/// One line for each edge, though several processes count it: two gateways, or the shims of two instances. Quantiles
/// are those of the process with the most calls.
#[must_use]
pub fn merged(hops: Vec<EdgeSnapshot>) -> Vec<EdgeSnapshot> {
    let mut merged: BTreeMap<EdgeKey, EdgeSnapshot> = BTreeMap::new();
    let mut most: BTreeMap<EdgeKey, u64> = BTreeMap::new();
    for hop in hops {
        let most = most.entry(hop.key.clone()).or_default();
        let has_most = hop.counts.calls > *most;
        *most = hop.counts.calls.max(*most);
        let Some(sum) = merged.get_mut(&hop.key) else {
            merged.insert(hop.key.clone(), hop);
            continue;
        };
        sum.counts.add(&hop.counts);
        if has_most {
            let EdgeSnapshot { reason, p50_us, p99_us, counted_since_ms, .. } = hop;
            (sum.reason, sum.p50_us, sum.p99_us) = (reason, p50_us, p99_us);
            sum.counted_since_ms = counted_since_ms;
        }
    }
    merged.into_values().collect()
}

/// Reads the workers and queues of a workflow's secondaries on one node, while its shim runs.
#[must_use]
pub fn functions(state_dir: &Path, namespace: &str, workflow: &str) -> Vec<FunctionSnapshot> {
    let annotations = [("cwasi.workflow".to_owned(), workflow.to_owned())].into();
    let group = StateDir::new(state_dir).group(&group_id(namespace, "", &annotations));
    serde_json::from_slice(&fs::read(group.functions()).unwrap_or_default()).unwrap_or_default()
}

/// Reads the stages of the starts of all containers of a namespace, by container.
#[must_use]
pub fn starts(state_dir: &Path, namespace: &str) -> BTreeMap<String, StartStages> {
    let files = groups(&StateDir::new(state_dir)).into_iter().map(|group| group.start_stages());
    let lists = files.filter_map(|path| fs::read(path).ok());
    let stages = lists
        .flat_map(|bytes| serde_json::from_slice::<Vec<StartStages>>(&bytes).unwrap_or_default());
    let own = stages.filter(|stages| stages.namespace == namespace);
    own.map(|stages| (stages.container.clone(), stages)).collect()
}

/// The calls since `before`. A shim that began to count after it has counted nothing else. Where it counted calls
/// before, quantiles are within the bounds of the histogram, because the exact ones cannot be subtracted.
#[must_use]
pub fn since(before: &[EdgeSnapshot], mut now: Vec<EdgeSnapshot>) -> Vec<EdgeSnapshot> {
    let shim_and_edge = |hop: &EdgeSnapshot| (hop.counted_since_ms, hop.key.clone());
    let before: BTreeMap<_, _> =
        before.iter().map(|hop| (shim_and_edge(hop), &hop.counts)).collect();
    for hop in &mut now {
        if let Some(before) = before.get(&shim_and_edge(hop)) {
            hop.counts.subtract(before);
            if before.calls > 0 {
                hop.p50_us = hop.counts.quantile_us(0.5);
                hop.p99_us = hop.counts.quantile_us(0.99);
            }
        }
    }
    now.retain(|hop| hop.counts.calls > 0);
    now
}

/// The table for people.
#[must_use]
pub fn table(hops: &[EdgeSnapshot]) -> Table {
    let mut table = Table::new([
        "CALLER", "CALLEE", "MODE", "CALLS", "ERRORS", "SENT", "RECEIVED", "P50", "P99", "WHY",
    ]);
    for EdgeSnapshot { key, reason, counts, p50_us, p99_us, .. } in hops {
        table.row([
            key.caller.clone(),
            key.callee.clone(),
            key.mode_and_path(),
            counts.calls.to_string(),
            counts.errors.to_string(),
            bytes(counts.request_bytes),
            bytes(counts.response_bytes),
            time(*p50_us),
            time(*p99_us),
            reason.clone(),
        ]);
    }
    table
}

/// A number of bytes for people.
#[must_use]
pub fn bytes(bytes: u64) -> String {
    bytesize::ByteSize(bytes).display().iec_short().to_string()
}

/// A time for people.
#[must_use]
pub fn time(us: f64) -> String {
    match us {
        us if us < 1_000.0 => format!("{us:.0}us"),
        us if us < 1_000_000.0 => format!("{:.1}ms", us / 1e3),
        us => format!("{:.2}s", us / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use cwasi_host::metrics::snapshot::{BUCKETS, EdgeCounts, EdgeKey, bucket};

    use super::*;

    fn hop(callee: &str, calls: u64) -> EdgeSnapshot {
        EdgeSnapshot {
            key: EdgeKey { callee: callee.into(), ..EdgeKey::default() },
            reason: "callee on this host".into(),
            counts: EdgeCounts { calls, request_bytes: 10 * calls, ..EdgeCounts::default() },
            p50_us: 1.0,
            p99_us: 2_000.0,
            counted_since_ms: 1,
        }
    }

    #[test]
    fn a_run_counts_its_own_calls() {
        let before = [hop("b", 3), hop("c", 7)];
        let found = since(&before, vec![hop("b", 5), hop("c", 7), hop("d", 1)]);
        let calls: Vec<_> = found.iter().map(|it| (&*it.key.callee, it.counts.calls)).collect();
        assert_eq!(calls, [("b", 2), ("d", 1)]);
        assert_eq!(found[1], hop("d", 1), "the first calls of an edge have exact quantiles");
    }

    #[test]
    fn quantiles_are_of_this_run() {
        let with = |calls: u64, latency_ms: u64, p50_us| {
            let mut hop = EdgeSnapshot { p50_us, ..hop("b", calls) };
            hop.counts.latency_counts = vec![0; BUCKETS];
            hop.counts.latency_counts[bucket(latency_ms * 1_000_000)] = calls;
            hop
        };
        let before = with(90, 1, 1_000.0);
        let mut now = with(10, 180, 1_000.0);
        now.counts.add(&before.counts);
        let [found] = since(&[before], vec![now]).try_into().unwrap();
        for quantile in [found.p50_us, found.p99_us] {
            assert!((100_000.0..=200_000.0).contains(&quantile), "{found:?}");
        }
    }

    #[test]
    fn two_processes_count_one_edge_together() {
        let more = EdgeSnapshot { p50_us: 7.0, counted_since_ms: 2, ..hop("b", 5) };
        let found = merged(vec![hop("b", 3), hop("c", 1), more]);
        let shown: Vec<_> = found
            .iter()
            .map(|hop| (hop.key.callee.as_str(), hop.counts.calls, hop.p50_us))
            .collect();
        assert_eq!(shown, [("b", 8, 7.0), ("c", 1, 1.0)]);
    }

    /// A second run has a shim of its own, whose counts are as large, larger or smaller than those of the first one's.
    #[test]
    fn a_new_shim_counts_from_zero() {
        let before = [hop("b", 3)];
        for calls in [1, 3, 5] {
            let of_new_shim = EdgeSnapshot { counted_since_ms: 2, ..hop("b", calls) };
            assert_eq!(since(&before, vec![of_new_shim.clone()]), [of_new_shim]);
        }
    }
}
