//! The group of a process of the host that calls functions: a folder of counts as a shim's, without daemon and
//! containers. So everything that reads the shims' counts reads those of the gateway, too. Runs in that process.
//!
//! Invariant: the process holds the group's lock as long as it lives. When the lock is free, the next process that
//! looks ([`ended_groups::sweep`]) moves the counts to the node's sums and removes the folder.

use std::fs::File;
use std::path::Path;

use nix::fcntl::Flock;

use super::ended_groups;
use super::group_lock;
use super::state::{GroupDir, StateDir, StateError};

/// The group of this process. Dropping it removes it and keeps its counts.
#[derive(Debug)]
pub struct HostGroup {
    state: StateDir,
    group: GroupDir,
    _lock: Flock<File>,
}

impl HostGroup {
    /// Makes it, and removes those of processes that were killed. Blocks.
    ///
    /// # Errors
    /// When the state directory cannot be written.
    pub fn start(state_dir: &Path) -> Result<Self, StateError> {
        let state = StateDir::new(state_dir);
        ended_groups::sweep(&state);
        let group = state.new_host_group();
        let _lock = group_lock::lock(&group)?;
        Ok(Self { state, group, _lock })
    }

    #[must_use]
    pub const fn files(&self) -> &GroupDir {
        &self.group
    }
}

impl Drop for HostGroup {
    fn drop(&mut self) {
        ended_groups::remove_group(&self.state, &self.group);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::node::NodeMetrics;
    use crate::metrics::snapshot::{EdgeCounts, EdgeKey, EdgeSnapshot};
    use crate::state;

    fn count(group: &GroupDir, calls: u64) {
        let edge = EdgeSnapshot {
            key: EdgeKey { caller: "gateway".into(), callee: "f".into(), ..EdgeKey::default() },
            reason: String::new(),
            counts: EdgeCounts { calls, ..EdgeCounts::default() },
            p50_us: 0.0,
            p99_us: 0.0,
            counted_since_ms: 0,
        };
        state::write_json(&group.edges(), &[edge]).unwrap();
    }

    #[test]
    fn counts_outlive_their_process() {
        let dir = tempfile::tempdir().unwrap();
        let calls = || {
            let counted = NodeMetrics::read(&StateDir::new(dir.path())).edges;
            counted.values().map(|counts| counts.calls).sum::<u64>()
        };
        let killed = StateDir::new(dir.path()).group("host-killed");
        drop(group_lock::lock(&killed).unwrap());
        count(&killed, 1);
        let [one, other] = [(); 2].map(|()| HostGroup::start(dir.path()).unwrap());
        assert!(!killed.path().exists() && one.files().path().exists());
        count(one.files(), 20);
        count(other.files(), 300);
        assert_eq!(calls(), 321);
        drop(one);
        drop(other);
        assert_eq!(calls(), 321);
        let left = |folder| std::fs::read_dir(dir.path().join(folder)).map_or(0, Iterator::count);
        // Nor do they take the places of the edges that `cwasi run` shows.
        assert_eq!((left("g"), left("edges")), (0, 0));
    }
}
