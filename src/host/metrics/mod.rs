//! Metrics of a group's calls and functions, merged from all reports of its sandboxes into three files. Runs in the shim
//! daemon; other processes read the files.
//!
//! The files are written at most once a second, and when a container ends. What is counted after the group's directory
//! was removed is lost.
//!
//! - [`edges`]: calls, from workers' reports. [`functions`]: workers and queues, from inits' reports.
//! - [`starts`]: stages of containers' starts.
//! - [`snapshot`]: the files' formats. [`node`]: all groups of the node, and the sums of those that ended.
//!
//! Invariant: reports come from sandboxes, so their number and sizes are bounded, and the caller's identity is the
//! shim's own.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::state::{self, GroupDir, StateError};
use cwasi_wire::control::{EdgeReport, FunctionReport};

pub mod edges;
pub mod functions;
pub mod node;
pub mod snapshot;
pub mod starts;

use self::edges::EdgeTable;
use self::functions::FunctionTable;
use self::snapshot::FunctionKey;
use self::starts::{StartStages, StartTable};

/// Shortest time between two writes of the files.
const WRITE_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
struct Tables {
    edges: EdgeTable,
    functions: FunctionTable,
    starts: StartTable,
}

/// The group's metrics; clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    tables: Arc<Mutex<Tables>>,
    changed: Arc<Notify>,
    edges_path: PathBuf,
    functions_path: PathBuf,
    starts_path: PathBuf,
}

impl Metrics {
    /// Metrics in files of the group. A task of its own writes them.
    #[must_use]
    pub fn start(group: &GroupDir) -> Self {
        let metrics = Self {
            tables: Arc::new(Mutex::new(Tables { edges: EdgeTable::new(), ..Tables::default() })),
            changed: Arc::default(),
            edges_path: group.edges(),
            functions_path: group.functions(),
            starts_path: group.start_stages(),
        };
        let writer = metrics.clone();
        tokio::spawn(async move {
            loop {
                writer.changed.notified().await;
                writer.write_now().await;
                tokio::time::sleep(WRITE_EVERY).await;
            }
        });
        metrics
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        // A panic elsewhere can only have lost one report.
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds reports about the calls of `caller`.
    pub fn add(&self, caller: &FunctionKey, reports: Vec<EdgeReport>) {
        let mut tables = self.tables();
        for report in reports {
            tables.edges.add(caller, report);
        }
        drop(tables);
        self.changed.notify_one();
    }

    /// Replaces what is known about an instance of a secondary.
    pub fn set(&self, function: &FunctionKey, instance: &str, report: FunctionReport) {
        self.tables().functions.set(function, instance, report);
        self.changed.notify_one();
    }

    /// Removes an instance that ended. What it counted stays.
    pub fn end(&self, function: &FunctionKey, instance: &str) {
        self.tables().functions.end(function, instance);
        self.changed.notify_one();
    }

    /// Records the stages of a container's start.
    pub fn set_start(&self, stages: StartStages) {
        self.tables().starts.set(stages);
        self.changed.notify_one();
    }

    /// Records the end of a container's run.
    pub fn end_run(&self, container: &str, run: Option<Duration>, exit: u32) {
        self.tables().starts.end(container, run, exit);
        self.changed.notify_one();
    }

    /// Forgets a deleted container.
    pub fn remove_start(&self, container: &str) {
        self.tables().starts.remove(container);
        self.changed.notify_one();
    }

    /// Writes the files that changed.
    pub async fn write_now(&self) {
        let metrics = self.clone();
        if let Err(error) = tokio::task::spawn_blocking(move || metrics.write_logged()).await {
            tracing::error!(%error, "writing metrics failed");
        }
    }

    /// Writes the files that changed. Blocks.
    pub fn write_logged(&self) {
        if let Err(error) = self.write() {
            tracing::warn!(%error, "metrics cannot be written");
        }
    }

    fn write(&self) -> Result<(), StateError> {
        // Held while writing, so that writers do not mix their temporary files.
        let mut tables = self.tables();
        if let Some(edges) = tables.edges.changed() {
            state::write_json_if_dir_exists(&self.edges_path, &edges)?;
        }
        if let Some(functions) = tables.functions.changed() {
            state::write_json_if_dir_exists(&self.functions_path, &functions)?;
        }
        if let Some(starts) = tables.starts.changed() {
            state::write_json_if_dir_exists(&self.starts_path, &starts)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::state::StateDir;

    #[tokio::test]
    async fn what_is_counted_late_brings_no_removed_group_back() {
        let dir = tempfile::tempdir().unwrap();
        let group = StateDir::new(dir.path()).group("g");
        fs::create_dir_all(group.path()).unwrap();
        let metrics = Metrics::start(&group);
        metrics.set_start(StartStages::begin("n", "container"));
        metrics.write().unwrap();
        assert!(group.start_stages().exists());
        fs::remove_dir_all(group.path()).unwrap();
        metrics.set_start(StartStages::begin("n", "late"));
        metrics.write().unwrap();
        assert!(!group.path().exists());
    }
}
