//! Traces for the page: the recent ones, and one of them as the rows of a waterfall.
//!
//! Invariant: only spans of the page's containerd namespace are shown.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use cwasi_wire::trace::SpanKind;
use serde::Serialize;
use tokio::sync::Mutex;

use crate::traces::{self, Trace, TreeSpan};

/// How long a reading of the span files serves the page: they have up to tens of megabytes, and every user may ask.
const READ_EVERY: Duration = Duration::from_secs(2);
/// Most traces that can be asked for: more than the list has, for a page whose list is a moment old.
const KEPT_MAX: usize = 256;
/// Most traces in the list.
const LISTED_MAX: usize = 24;
/// Most rows of a waterfall.
const ROWS_MAX: usize = 500;

#[derive(Debug, Serialize)]
pub(super) struct ListedTrace {
    id: String,
    title: String,
    spans: usize,
    errors: usize,
    duration_us: f64,
    began_unix_ms: u64,
    /// No more spans are expected.
    settled: bool,
}

/// A trace as a waterfall.
#[derive(Debug, Serialize)]
pub(super) struct Waterfall {
    #[serde(flatten)]
    trace: ListedTrace,
    /// The first ones, if the trace has very many.
    rows: Vec<Row>,
}

/// A span in the waterfall.
#[derive(Debug, Serialize)]
struct Row {
    title: String,
    mode: String,
    error: Option<String>,
    /// What else it says: terms and texts.
    facts: Vec<(&'static str, String)>,
    depth: usize,
    /// Its parent is not on this node, or not kept.
    orphan: bool,
    /// The callee's side of a call.
    server: bool,
    /// A whole run, which waits for its functions between its phases.
    run: bool,
    #[serde(flatten)]
    extent: Extent,
    duration_us: f64,
    phases: Vec<RowPhase>,
}

/// A phase within a span.
#[derive(Debug, Serialize)]
struct RowPhase {
    kind: &'static str,
    #[serde(flatten)]
    extent: Extent,
}

/// Begin and length as parts of the whole trace, from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Extent {
    offset: f64,
    share: f64,
}

/// What the span files said at a moment.
#[derive(Debug)]
struct Reading {
    at: Instant,
    traces: Arc<Vec<Trace>>,
}

/// The latest reading; clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct RecentTraces(Arc<Mutex<Option<Reading>>>);

impl RecentTraces {
    /// The newest traces for the list.
    pub(super) async fn list(&self, state_dir: &Path, namespace: &str) -> Vec<ListedTrace> {
        let traces = self.read(state_dir, namespace).await;
        traces.iter().take(LISTED_MAX).map(ListedTrace::of).collect()
    }

    /// One trace; `None` if it is not among the newest ones.
    pub(super) async fn waterfall(
        &self,
        state_dir: &Path,
        namespace: &str,
        id: &str,
    ) -> Option<Waterfall> {
        let traces = self.read(state_dir, namespace).await;
        traces.iter().find(|trace| trace.id.to_string() == id).map(Waterfall::of)
    }

    /// The newest traces, the newest first. Concurrent requests wait for the same reading.
    async fn read(&self, state_dir: &Path, namespace: &str) -> Arc<Vec<Trace>> {
        let mut latest = self.0.lock().await;
        if let Some(reading) = latest.as_ref().filter(|it| it.at.elapsed() < READ_EVERY) {
            return Arc::clone(&reading.traces);
        }
        let (state_dir, namespace) = (state_dir.to_owned(), namespace.to_owned());
        let reading = move || of_namespace(traces::read(&[&state_dir]).traces, &namespace);
        let traces = Arc::new(tokio::task::spawn_blocking(reading).await.unwrap_or_default());
        *latest = Some(Reading { at: Instant::now(), traces: Arc::clone(&traces) });
        traces
    }
}

fn of_namespace(mut traces: Vec<Trace>, namespace: &str) -> Vec<Trace> {
    for trace in &mut traces {
        trace.spans.retain(|span| span.recorded.namespace == namespace);
    }
    traces.retain(|trace| !trace.spans.is_empty());
    traces.truncate(KEPT_MAX);
    traces
}

impl ListedTrace {
    fn of(trace: &Trace) -> Self {
        Self {
            id: trace.id.to_string(),
            title: trace.title(),
            spans: trace.spans.len(),
            errors: trace.errors(),
            duration_us: micros(trace.duration_ns()),
            began_unix_ms: trace.start_ns() / 1_000_000,
            settled: trace.has_settled(SystemTime::now()),
        }
    }
}

impl Waterfall {
    fn of(trace: &Trace) -> Self {
        let (began_ns, whole_ns) = (trace.start_ns(), trace.duration_ns().max(1));
        let part = |ns: u64| micros(ns) / micros(whole_ns);
        let extent = |start_ns: u64, end_ns: u64| Extent {
            offset: part(start_ns.saturating_sub(began_ns)),
            share: part(end_ns.saturating_sub(start_ns)),
        };
        let rows = trace.spans.iter().take(ROWS_MAX).map(|span| Row::of(span, extent));
        Self { trace: ListedTrace::of(trace), rows: rows.collect() }
    }
}

impl Row {
    /// The row of a span; `extent` says where a time from one moment to another lies.
    fn of(tree: &TreeSpan, extent: impl Fn(u64, u64) -> Extent) -> Self {
        let span = &tree.recorded.span;
        let phases = span.phases.iter().map(|phase| RowPhase {
            kind: phase.kind.name(),
            extent: extent(phase.start_ns, phase.end_ns),
        });
        Self {
            title: tree.title(),
            mode: span.mode.clone(),
            error: tree.error(),
            facts: tree.facts(),
            depth: tree.depth,
            orphan: !tree.has_parent,
            server: span.kind == SpanKind::Server,
            run: span.kind == SpanKind::Run,
            extent: extent(span.start_ns, span.end_ns),
            duration_us: micros(tree.duration_ns()),
            phases: phases.collect(),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn micros(ns: u64) -> f64 {
    ns as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traces::tests::trace;

    #[test]
    fn rows_lie_at_their_times() {
        let Waterfall { trace, rows } = Waterfall::of(&trace());
        assert_eq!((trace.spans, trace.errors, trace.duration_us), (3, 0, 100.0));
        let extent = |offset, share| Extent { offset, share };
        let places: Vec<_> = rows.iter().map(|row| (row.depth, row.server, row.extent)).collect();
        let expected = [
            (0, false, extent(0.0, 1.0)),
            (1, false, extent(0.2, 0.6)),
            (2, true, extent(0.3, 0.4)),
        ];
        assert_eq!(places, expected);
        let phases: Vec<_> =
            rows[2].phases.iter().map(|phase| (phase.kind, phase.extent)).collect();
        assert_eq!(phases, [("run", extent(0.3, 0.4))]);
        assert!(rows[2].facts.contains(&("run", "40.0us".to_owned())), "{:?}", rows[2].facts);
    }

    #[test]
    fn spans_of_other_namespaces_are_not_shown() {
        let mut mixed = trace();
        mixed.spans[0].recorded.namespace = "other".into();
        let own = of_namespace(vec![mixed, trace()], "n");
        assert_eq!(own.iter().map(|trace| trace.spans.len()).collect::<Vec<_>>(), [2, 3]);
        assert!(of_namespace(vec![trace()], "m").is_empty());
    }
}
