//! The calls of a workflow's functions: mode, reason, numbers. The shims write them; this reads what they have written.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use cwasi::shim::group::group_id;
use cwasi::shim::metrics::node::groups;
use cwasi::shim::metrics::snapshot::FunctionSnapshot;
use cwasi::shim::metrics::starts::StartStages;
use cwasi::shim::state::StateDir;
use serde::{Deserialize, Serialize};

use crate::table::Table;

/// The calls from one function to another one in one mode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hop {
    /// The calling function.
    pub caller: String,
    /// The called function.
    pub callee: String,
    /// `embedded`, `local` or `networked`.
    pub mode: String,
    /// Why this mode.
    pub reason: String,
    /// Number of calls.
    pub calls: u64,
    /// Of these, failed ones.
    pub errors: u64,
    /// Failed calls by kind: the name of the errno.
    #[serde(default)]
    pub error_kinds: BTreeMap<String, u64>,
    /// Bytes of requests.
    pub request_bytes: u64,
    /// Bytes of responses.
    pub response_bytes: u64,
    /// Half of the calls took at most this many microseconds.
    pub p50_us: f64,
    /// 99 of 100 took at most this many.
    pub p99_us: f64,
}

/// Reads the calls of a workflow on one node: those of its running shim, or of the one that ended last. Empty when
/// there were none.
#[must_use]
pub fn read(state_dir: &Path, namespace: &str, workflow: &str) -> Vec<Hop> {
    let annotations = [("cwasi.workflow".to_owned(), workflow.to_owned())].into();
    let (state, group) = (StateDir::new(state_dir), group_id(namespace, "", &annotations));
    let (running, ended) = (state.group(&group).edges(), state.kept_edges(&group));
    let bytes = fs::read(running).or_else(|_| fs::read(ended)).unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_default()
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

/// The calls since `before`. Quantiles are those of all calls: they cannot be subtracted.
#[must_use]
pub fn since(before: &[Hop], now: Vec<Hop>) -> Vec<Hop> {
    let key = |hop: &Hop| (hop.caller.clone(), hop.callee.clone(), hop.mode.clone());
    let before: BTreeMap<_, _> = before.iter().map(|hop| (key(hop), hop)).collect();
    let new = now.into_iter().map(|mut hop| {
        // A shim that is newer than `before` counts from 0.
        if let Some(old) = before.get(&key(&hop)).filter(|old| old.calls <= hop.calls) {
            hop.calls -= old.calls;
            hop.errors = hop.errors.saturating_sub(old.errors);
            for (kind, errors) in &mut hop.error_kinds {
                let before = old.error_kinds.get(kind).copied().unwrap_or(0);
                *errors = errors.saturating_sub(before);
            }
            hop.error_kinds.retain(|_, errors| *errors > 0);
            hop.request_bytes = hop.request_bytes.saturating_sub(old.request_bytes);
            hop.response_bytes = hop.response_bytes.saturating_sub(old.response_bytes);
        }
        hop
    });
    new.filter(|hop| hop.calls > 0).collect()
}

/// The table for people.
#[must_use]
pub fn table(hops: &[Hop]) -> Table {
    let mut table = Table::new([
        "CALLER", "CALLEE", "MODE", "CALLS", "ERRORS", "SENT", "RECEIVED", "P50", "P99", "WHY",
    ]);
    for hop in hops {
        table.row([
            hop.caller.clone(),
            hop.callee.clone(),
            hop.mode.clone(),
            hop.calls.to_string(),
            hop.errors.to_string(),
            bytes(hop.request_bytes),
            bytes(hop.response_bytes),
            time(hop.p50_us),
            time(hop.p99_us),
            hop.reason.clone(),
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
    use super::*;

    fn hop(callee: &str, calls: u64) -> Hop {
        Hop {
            caller: "a".into(),
            callee: callee.into(),
            mode: "local".into(),
            reason: "callee on this host".into(),
            calls,
            errors: 2 * calls,
            error_kinds: [("timeout".to_owned(), 2 * calls)].into(),
            request_bytes: 10 * calls,
            response_bytes: 0,
            p50_us: 1.0,
            p99_us: 2_000.0,
        }
    }

    #[test]
    fn a_run_counts_its_own_calls() {
        let before = [hop("b", 3), hop("c", 7)];
        let found = since(&before, vec![hop("b", 5), hop("c", 7), hop("d", 1)]);
        assert_eq!(found, [Hop { request_bytes: 20, ..hop("b", 2) }, hop("d", 1)]);
        // A new shim began to count again.
        assert_eq!(since(&before, vec![hop("c", 2)]), [hop("c", 2)]);
    }
}
