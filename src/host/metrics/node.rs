//! Metrics of all groups of a node since its start: those that run, and the sums of those that ended. Runs in processes
//! that read them, and in the process that removes a group.
//!
//! Invariants:
//! - Counts never fall: a group's counts are either in its own files or in the node's sums. Readers and the process
//!   that moves them hold one lock.
//! - The number of edges and functions is bounded. Further ones are counted together under the name [`OTHERS`].

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use super::snapshot::{
    EdgeCounts, EdgeKey, EdgeSnapshot, FunctionGauges, FunctionKey, FunctionSnapshot,
};
use cwasi_dispatcher::edges::NO_ROUTE;

use crate::state::{self, GroupDir, StateDir, StateError};

/// Most edges of a node.
pub const EDGES_MAX: usize = 2048;
/// Most of them when a call that found no route gets one: guests choose its callee's name.
const MISSED_MAX: usize = EDGES_MAX / 2;
/// Most functions of a node.
pub const FUNCTIONS_MAX: usize = 1024;
/// The name of all further ones.
pub const OTHERS: &str = "other";
/// Longest wait for the lock. A process that was stopped while it held the lock delays the end of groups by this.
const LOCK_MAX: Duration = Duration::from_secs(1);
/// Pause between two attempts.
const LOCK_PAUSE: Duration = Duration::from_millis(2);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeMetrics {
    pub edges: BTreeMap<EdgeKey, EdgeCounts>,
    pub functions: BTreeMap<FunctionKey, FunctionGauges>,
    /// Files that cannot be read.
    pub unreadable: u64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Sums {
    edges: Vec<EdgeSnapshot>,
    functions: Vec<FunctionSnapshot>,
}

impl NodeMetrics {
    #[must_use]
    pub fn read(state: &StateDir) -> Self {
        // Without the lock a group that ends in this moment may be missing.
        let _lock = lock(state, FlockArg::LockSharedNonblock);
        let mut metrics = Self::default();
        metrics.add_sums(state);
        for group in groups(state) {
            metrics.add_group(&group);
        }
        metrics
    }

    fn add_sums(&mut self, state: &StateDir) {
        match state::read_json::<Sums>(&state.metrics()) {
            Ok(sums) => {
                let Sums { edges, functions } = sums.unwrap_or_default();
                self.add_edges(edges);
                self.add_functions(functions);
            }
            Err(_damaged) => self.unreadable += 1,
        }
    }

    fn add_group(&mut self, group: &GroupDir) {
        match state::read_json(&group.edges()) {
            Ok(edges) => self.add_edges(edges.unwrap_or_default()),
            Err(_damaged) => self.unreadable += 1,
        }
        match state::read_json(&group.functions()) {
            Ok(functions) => self.add_functions(functions.unwrap_or_default()),
            Err(_damaged) => self.unreadable += 1,
        }
    }

    fn add_edges(&mut self, edges: Vec<EdgeSnapshot>) {
        for EdgeSnapshot { mut key, counts, .. } in edges {
            let most = if key.mode == NO_ROUTE { MISSED_MAX } else { EDGES_MAX };
            if self.edges.len() >= most && !self.edges.contains_key(&key) {
                let (caller, callee) = (OTHERS.to_owned(), OTHERS.to_owned());
                let EdgeKey { mode, path, .. } = key;
                key = EdgeKey { caller, callee, mode, path, ..EdgeKey::default() };
            }
            self.edges.entry(key).or_default().add(&counts);
        }
    }

    fn add_functions(&mut self, functions: Vec<FunctionSnapshot>) {
        for FunctionSnapshot { mut key, gauges } in functions {
            if self.functions.len() >= FUNCTIONS_MAX && !self.functions.contains_key(&key) {
                key = FunctionKey { function: OTHERS.to_owned(), ..FunctionKey::default() };
            }
            self.functions.entry(key).or_default().add(&gauges);
        }
    }

    fn sums(&self) -> Sums {
        let edges = self.edges.iter().map(|(key, counts)| EdgeSnapshot {
            key: key.clone(),
            reason: String::new(),
            counts: counts.clone(),
            p50_us: 0.0,
            p99_us: 0.0,
            counted_since_ms: 0,
        });
        let functions = self.functions.iter().map(|(key, gauges)| FunctionSnapshot {
            key: key.clone(),
            gauges: FunctionGauges { refused: gauges.refused, ..FunctionGauges::default() },
        });
        Sums { edges: edges.collect(), functions: functions.collect() }
    }
}

/// The groups that exist, in the order of their ids.
#[must_use]
pub fn groups(state: &StateDir) -> Vec<GroupDir> {
    let entries = fs::read_dir(state.root().join("g")).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    // Groups that are being removed have other names.
    let mut ids: Vec<_> = names.filter(|id| !id.starts_with('.')).collect();
    ids.sort();
    ids.iter().map(|id| state.group(id)).collect()
}

/// Adds the counts of a group to the node's sums and removes its files, while no reader reads. The group has ended.
///
/// # Errors
/// When the sums cannot be written; the group's files stay.
pub fn move_to_sums(state: &StateDir, group: &GroupDir) -> Result<(), StateError> {
    if !group.edges().exists() && !group.functions().exists() {
        return Ok(());
    }
    let _lock = lock(state, FlockArg::LockExclusiveNonblock);
    let mut metrics = NodeMetrics::default();
    metrics.add_sums(state);
    metrics.add_group(group);
    state::write_json(&state.metrics(), &metrics.sums())?;
    state::remove_file(&group.functions())?;
    state::remove_file(&group.edges())
}

/// Takes the lock; `None` when another process keeps it, or when there is no state.
fn lock(state: &StateDir, kind: FlockArg) -> Option<Flock<File>> {
    let path = state.metrics().with_extension("lock");
    let until = Instant::now() + LOCK_MAX;
    let mut file = open(&path)?;
    loop {
        match Flock::lock(file, kind) {
            Ok(lock) => return Some(lock),
            Err((again, _)) if Instant::now() < until => file = again,
            Err(_) => return None,
        }
        std::thread::sleep(LOCK_PAUSE);
    }
}

fn open(path: &Path) -> Option<File> {
    OpenOptions::new().create(true).write(true).truncate(false).open(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edge(callee: &str, calls: u64) -> EdgeSnapshot {
        let key = EdgeKey { callee: callee.into(), mode: "local".into(), ..EdgeKey::default() };
        let counts = EdgeCounts { calls, ..EdgeCounts::default() };
        EdgeSnapshot {
            key,
            reason: String::new(),
            counts,
            p50_us: 1.0,
            p99_us: 1.0,
            counted_since_ms: 0,
        }
    }

    fn group(state: &StateDir, id: &str, edges: &[EdgeSnapshot], refused: u64) -> GroupDir {
        let group = state.group(id);
        state::write_json(&group.edges(), &edges).unwrap();
        let key = FunctionKey { function: "f".into(), ..FunctionKey::default() };
        let gauges = FunctionGauges { refused, queued: 7, ..FunctionGauges::default() };
        state::write_json(&group.functions(), &[FunctionSnapshot { key, gauges }]).unwrap();
        group
    }

    fn calls(metrics: &NodeMetrics) -> u64 {
        metrics.edges.values().map(|counts| counts.calls).sum()
    }

    #[test]
    fn counts_outlive_their_group() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::new(dir.path());
        let first = group(&state, "a", &[edge("b", 3), edge("c", 4)], 2);
        let _other = group(&state, "z", &[edge("b", 1)], 1);
        let before = NodeMetrics::read(&state);
        assert_eq!(calls(&before), 8);
        assert_eq!(
            before.functions.values().map(|it| (it.refused, it.queued)).next(),
            Some((3, 14))
        );
        move_to_sums(&state, &first).unwrap();
        move_to_sums(&state, &first).unwrap();
        let after = NodeMetrics::read(&state);
        assert_eq!(after.edges, before.edges);
        assert_eq!(after.functions.values().map(|it| (it.refused, it.queued)).next(), Some((3, 7)));
        let again = group(&state, "a", &[edge("b", 5)], 0);
        assert_eq!(calls(&NodeMetrics::read(&state)), 13);
        move_to_sums(&state, &again).unwrap();
        assert_eq!(calls(&NodeMetrics::read(&state)), 13);
    }

    #[test]
    fn edges_beyond_the_bound_are_counted_together() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::new(dir.path());
        for number in 0..5 {
            let edges: Vec<_> =
                (0..EDGES_MAX / 4).map(|callee| edge(&format!("{number}-{callee}"), 1)).collect();
            move_to_sums(&state, &group(&state, "a", &edges, 0)).unwrap();
        }
        let metrics = NodeMetrics::read(&state);
        assert_eq!(metrics.edges.len(), EDGES_MAX + 1);
        assert_eq!(calls(&metrics), 5 * (EDGES_MAX as u64 / 4));
        assert_eq!(metrics.unreadable, 0);
        fs::write(state.group("a").edges(), "no JSON").unwrap();
        assert_eq!(NodeMetrics::read(&state).unreadable, 1);
    }
}
