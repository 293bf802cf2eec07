//! Metrics of the calls between a group's functions, merged from all workers' reports into a file. Runs in the shim
//! daemon.
//!
//! The file is written at most once a second, and when a container ends.
//!
//! Invariant: reports come from sandboxes, so their number and sizes are bounded, and the caller's name is the shim's
//! own.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;
use tokio::sync::Notify;

use super::state::{self, StateError};
use crate::dispatcher::edges::{LATENCY_MAX_NS, histogram};
use crate::wire::control::EdgeReport;

/// Most edges of one group. Further ones are not counted, which is logged once.
const EDGES_MAX: usize = 512;
/// Longest stored name or reason in bytes.
const TEXT_MAX: usize = 512;
/// Shortest time between two writes of the file.
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// One line of the file.
#[derive(Debug, Serialize)]
struct EdgeLine<'a> {
    caller: &'a str,
    callee: &'a str,
    mode: &'a str,
    reason: &'a str,
    calls: u64,
    errors: u64,
    request_bytes: u64,
    response_bytes: u64,
    p50_us: f64,
    p99_us: f64,
}

#[derive(Debug)]
struct Totals {
    reason: String,
    calls: u64,
    errors: u64,
    request_bytes: u64,
    response_bytes: u64,
    latency: Histogram<u64>,
}

/// Caller, callee, mode.
type EdgeKey = (String, String, String);

/// The metrics of each edge.
#[derive(Debug, Default)]
pub struct EdgeTable {
    edges: BTreeMap<EdgeKey, Totals>,
    full: bool,
    dirty: bool,
}

/// The group's edges; clones share them.
#[derive(Clone, Debug)]
pub struct Edges {
    table: Arc<Mutex<EdgeTable>>,
    changed: Arc<Notify>,
    path: PathBuf,
}

impl Edges {
    /// Edges in the file `path`. A task of its own writes the file.
    #[must_use]
    pub fn start(path: PathBuf) -> Self {
        let edges = Self { table: Arc::default(), changed: Arc::default(), path };
        let writer = edges.clone();
        tokio::spawn(async move {
            loop {
                writer.changed.notified().await;
                writer.write_now().await;
                tokio::time::sleep(WRITE_EVERY).await;
            }
        });
        edges
    }

    fn table(&self) -> MutexGuard<'_, EdgeTable> {
        // A panic elsewhere can only have lost one report.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds reports of the function `caller`.
    pub fn add(&self, caller: &str, reports: Vec<EdgeReport>) {
        let mut table = self.table();
        for report in reports {
            table.add(caller, report);
        }
        drop(table);
        self.changed.notify_one();
    }

    /// Writes the file if something changed.
    pub async fn write_now(&self) {
        let edges = self.clone();
        let written = tokio::task::spawn_blocking(move || edges.write()).await;
        match written {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "edges cannot be written"),
            Err(error) => tracing::error!(%error, "writing edges failed"),
        }
    }

    fn write(&self) -> Result<(), StateError> {
        let mut table = self.table();
        if !std::mem::take(&mut table.dirty) {
            return Ok(());
        }
        let bytes = table.to_json();
        // Held while writing, so that writers do not mix their temporary files.
        let bytes =
            bytes.map_err(|source| StateError::Content { path: self.path.clone(), source })?;
        state::write_file(&self.path, &bytes)
    }
}

impl EdgeTable {
    /// Adds a report of the function `caller`.
    pub fn add(&mut self, caller: &str, report: EdgeReport) {
        let caller = match report.module.as_str() {
            "" => caller.to_owned(),
            module => format!("{caller}:{}", shortened(module.to_owned())),
        };
        let key = (caller, shortened(report.callee), shortened(report.mode));
        if self.edges.len() >= EDGES_MAX && !self.edges.contains_key(&key) {
            if !std::mem::replace(&mut self.full, true) {
                tracing::warn!(
                    caller = key.0,
                    "more than {EDGES_MAX} edges; later ones are not counted"
                );
            }
            return;
        }
        let totals = self.edges.entry(key).or_insert_with(|| Totals {
            reason: String::new(),
            calls: 0,
            errors: 0,
            request_bytes: 0,
            response_bytes: 0,
            latency: histogram(),
        });
        totals.reason = shortened(report.reason);
        totals.calls = totals.calls.saturating_add(report.calls);
        totals.errors = totals.errors.saturating_add(report.errors);
        totals.request_bytes = totals.request_bytes.saturating_add(report.request_bytes);
        totals.response_bytes = totals.response_bytes.saturating_add(report.response_bytes);
        for (value, count) in report.latency_ns {
            // The histogram would panic beyond `u64::MAX` counts.
            let room = u64::MAX - totals.latency.len();
            totals.latency.saturating_record_n(value.min(LATENCY_MAX_NS), count.min(room));
        }
        self.dirty = true;
    }

    /// The content of the file.
    ///
    /// # Errors
    /// None for any report.
    pub fn to_json(&self) -> serde_json::Result<Vec<u8>> {
        let lines: Vec<_> = self.edges.iter().map(|(key, totals)| totals.line(key)).collect();
        serde_json::to_vec_pretty(&lines)
    }
}

impl Totals {
    fn line<'a>(&'a self, (caller, callee, mode): &'a EdgeKey) -> EdgeLine<'a> {
        #[expect(clippy::cast_precision_loss, reason = "an hour in nanoseconds is exact in an f64")]
        let quantile_us = |quantile| self.latency.value_at_quantile(quantile) as f64 / 1000.0;
        EdgeLine {
            caller,
            callee,
            mode,
            reason: &self.reason,
            calls: self.calls,
            errors: self.errors,
            request_bytes: self.request_bytes,
            response_bytes: self.response_bytes,
            p50_us: quantile_us(0.5),
            p99_us: quantile_us(0.99),
        }
    }
}

fn shortened(mut text: String) -> String {
    let end = (0..=TEXT_MAX.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text.truncate(end.unwrap_or(0));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(callee: &str, calls: u64, latency_ns: u64) -> EdgeReport {
        EdgeReport {
            caller: "somebody else".into(),
            module: String::new(),
            callee: callee.into(),
            mode: "local".into(),
            reason: "callee on this host".into(),
            calls,
            errors: 1,
            request_bytes: 10,
            response_bytes: 20,
            latency_ns: BTreeMap::from([(latency_ns, calls)]),
        }
    }

    #[tokio::test]
    async fn reports_add_up_under_the_true_callers_name() {
        let dir = tempfile::tempdir().unwrap();
        let edges = Edges::start(dir.path().join("edges.json"));
        edges.add("a", vec![report("b", 3, 1_000_000), report("b", 1, 9_000_000)]);
        edges.write_now().await;
        let text = std::fs::read(dir.path().join("edges.json")).unwrap();
        let lines: Vec<serde_json::Value> = serde_json::from_slice(&text).unwrap();
        assert_eq!(lines.len(), 1);
        assert_eq!((&lines[0]["caller"], &lines[0]["calls"]), (&"a".into(), &4.into()));
        assert_eq!((&lines[0]["errors"], &lines[0]["request_bytes"]), (&2.into(), &20.into()));
        assert!((990.0..1020.0).contains(&lines[0]["p50_us"].as_f64().unwrap()));
        assert!((8900.0..9200.0).contains(&lines[0]["p99_us"].as_f64().unwrap()));
    }

    #[test]
    fn hostile_reports_are_bounded() {
        let mut table = EdgeTable::default();
        for number in 0..=EDGES_MAX {
            table.add(
                "a",
                report(&format!("{number}-{}", "é".repeat(TEXT_MAX)), u64::MAX, u64::MAX),
            );
        }
        assert_eq!(table.edges.len(), EDGES_MAX);
        assert!(table.edges.keys().all(|(_, callee, _)| callee.len() <= TEXT_MAX));
    }

    #[test]
    fn counts_whose_sum_is_no_number_have_quantiles() {
        let latency_ns = BTreeMap::from([(1, u64::MAX - 1), (2, 5), (1_000_000, u64::MAX)]);
        let mut table = EdgeTable::default();
        table.add("a", EdgeReport { latency_ns, ..report("b", 1, 1) });
        let lines: Vec<serde_json::Value> =
            serde_json::from_slice(&table.to_json().unwrap()).unwrap();
        assert_eq!(lines[0]["p99_us"], 0.001);
    }
}
