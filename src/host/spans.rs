//! Spans of a group's functions, from all workers' reports into a file and to the exporter. Runs in the shim daemon, and
//! in processes of the host that call functions.
//!
//! A file holds one JSON document a line: a [`RecordedSpan`], or `{"dropped":n}`. It is written at most once a second, and
//! when a container ends. A full file replaces the one before it, so that both together are bounded.
//!
//! Invariant: reports come from sandboxes. Their number, rate, texts and moments are bounded, and the service's name is
//! the shim's own.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::Notify;

use super::otlp::Exporter;
use super::state::{StateError, create_private_dir};
use cwasi_modes::ModeKind;
use cwasi_sys::clock::{monotonic_epoch_unix_ns, monotonic_ns};
use cwasi_wire::ids::Identity;
use cwasi_wire::trace::{
    PHASES_MAX, Phase, RecordedSpan, SPAN_TEXT_MAX, SPANS_PER_REPORT, Span, SpanReport,
};
use cwasi_wire::trace_headers;

/// Longest span file in bytes; a group has two.
const FILE_MAX: u64 = 4 << 20;
/// Most bytes between two writes.
const UNWRITTEN_MAX: usize = 2 << 20;
/// Shortest time between two writes of the file.
const WRITE_EVERY: Duration = Duration::from_secs(1);
/// Spans that a group may report at once, and per second from then on.
const SPANS_AT_ONCE: u32 = 8192;
const SPANS_PER_SECOND: u32 = 1024;
/// Longest span in nanoseconds, and furthest future.
const SPAN_MAX_NS: u64 = 24 * 3_600_000_000_000;
const FUTURE_MAX_NS: u64 = 1_000_000_000;
/// Permissions of a file: who calls what is for its owner.
pub(super) const FILE_MODE: u32 = 0o600;
/// Extension of a full file.
const FULL: &str = "full.jsonl";

/// The line of dropped spans.
#[derive(Debug, Serialize)]
struct Dropped {
    dropped: u64,
}

/// Allows a burst and then a rate.
#[derive(Debug)]
struct TokenBucket {
    tokens: u32,
    filled: Instant,
}

impl TokenBucket {
    fn take(&mut self) -> bool {
        let new = self.filled.elapsed().as_secs_f64() * f64::from(SPANS_PER_SECOND);
        if new >= 1.0 {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "at least 1, and saturates"
            )]
            let new = new as u32;
            self.tokens = self.tokens.saturating_add(new).min(SPANS_AT_ONCE);
            self.filled = Instant::now();
        }
        let taken = self.tokens > 0;
        self.tokens -= u32::from(taken);
        taken
    }
}

#[derive(Debug)]
struct Unwritten {
    lines: Vec<u8>,
    dropped: u64,
    bucket: TokenBucket,
}

#[derive(Debug)]
struct Inner {
    unwritten: Mutex<Unwritten>,
    /// Held while the file is written.
    writing: Mutex<()>,
    changed: Notify,
    path: PathBuf,
    node: String,
    exporter: Option<Exporter>,
}

/// Whose spans are reported, as the shim knows it.
#[derive(Clone, Copy, Debug)]
pub struct SpanSource<'a> {
    pub identity: &'a Identity,
    /// Its workflow; empty without one.
    pub workflow: &'a str,
    pub instance: &'a str,
}

/// Recorded spans; clones share them.
#[derive(Clone, Debug)]
pub struct Spans {
    inner: Arc<Inner>,
}

impl Spans {
    /// Spans in the file `path`, and for the exporter if there is one. A task of its own writes the file.
    #[must_use]
    pub fn start(path: PathBuf, node: &str, exporter: Option<Exporter>) -> Self {
        let bucket = TokenBucket { tokens: SPANS_AT_ONCE, filled: Instant::now() };
        let inner = Inner {
            unwritten: Mutex::new(Unwritten { lines: Vec::new(), dropped: 0, bucket }),
            writing: Mutex::default(),
            changed: Notify::new(),
            path,
            node: node.to_owned(),
            exporter,
        };
        let spans = Self { inner: Arc::new(inner) };
        let writer = spans.clone();
        tokio::spawn(async move {
            loop {
                writer.inner.changed.notified().await;
                writer.write_now().await;
                tokio::time::sleep(WRITE_EVERY).await;
            }
        });
        spans
    }

    fn unwritten(&self) -> MutexGuard<'_, Unwritten> {
        // A panic elsewhere can only have lost one span.
        self.inner.unwritten.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a report of `source`.
    pub fn add(&self, source: SpanSource<'_>, report: SpanReport) {
        let (now, epoch) = (monotonic_ns(), monotonic_epoch_unix_ns());
        let surplus = report.spans.len().saturating_sub(SPANS_PER_REPORT) as u64;
        let mut unwritten = self.unwritten();
        unwritten.dropped =
            unwritten.dropped.saturating_add(report.dropped).saturating_add(surplus);
        for span in report.spans.into_iter().take(SPANS_PER_REPORT) {
            let span = accepted(span, now, epoch).filter(|_| unwritten.bucket.take());
            match span.map(|span| self.recorded(source, span)) {
                Some(recorded) => self.keep(&mut unwritten, recorded),
                None => unwritten.dropped = unwritten.dropped.saturating_add(1),
            }
        }
        drop(unwritten);
        self.inner.changed.notify_one();
    }

    fn recorded(&self, source: SpanSource<'_>, span: Span) -> RecordedSpan {
        RecordedSpan {
            service: source.identity.function.clone(),
            namespace: source.identity.namespace.clone(),
            pod_namespace: source.identity.pod_namespace.clone(),
            workflow: source.workflow.to_owned(),
            instance: source.instance.to_owned(),
            node: self.inner.node.clone(),
            span,
        }
    }

    fn keep(&self, unwritten: &mut Unwritten, recorded: RecordedSpan) {
        match serde_json::to_vec(&recorded) {
            Ok(line) if unwritten.lines.len() + line.len() < UNWRITTEN_MAX => {
                unwritten.lines.extend(line);
                unwritten.lines.push(b'\n');
            }
            _ => unwritten.dropped = unwritten.dropped.saturating_add(1),
        }
        if let Some(exporter) = &self.inner.exporter {
            exporter.offer(recorded);
        }
    }

    /// Writes what is not written yet.
    pub async fn write_now(&self) {
        let spans = self.clone();
        match tokio::task::spawn_blocking(move || spans.write()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "spans cannot be written"),
            Err(error) => tracing::error!(%error, "writing spans failed"),
        }
    }

    /// Waits until the exporter has sent what it has, at most this long.
    pub async fn flush(&self, longest: Duration) {
        self.write_now().await;
        if let Some(exporter) = &self.inner.exporter {
            exporter.flush(longest).await;
        }
    }

    /// Spans that cannot be written are counted as dropped; the next lines say so.
    fn write(&self) -> Result<(), StateError> {
        let _writing = self.inner.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let (lines, lost) = {
            let mut unwritten = self.unwritten();
            let mut lines = std::mem::take(&mut unwritten.lines);
            let dropped = std::mem::take(&mut unwritten.dropped);
            let spans = lines.iter().filter(|byte| **byte == b'\n').count() as u64;
            if dropped > 0 && serde_json::to_writer(&mut lines, &Dropped { dropped }).is_ok() {
                lines.push(b'\n');
            }
            (lines, dropped.saturating_add(spans))
        };
        if lines.is_empty() {
            return Ok(());
        }
        let written = self.append(&lines);
        if written.is_err() {
            let mut unwritten = self.unwritten();
            unwritten.dropped = unwritten.dropped.saturating_add(lost);
        }
        written
    }

    fn append(&self, lines: &[u8]) -> Result<(), StateError> {
        let path = &self.inner.path;
        if let Some(directory) = path.parent() {
            create_private_dir(directory)?;
        }
        let length = fs::metadata(path).map_or(0, |metadata| metadata.len());
        if length > 0 && length + lines.len() as u64 > FILE_MAX {
            fs::rename(path, full(path)).map_err(StateError::io("rename", path))?;
        }
        let file = OpenOptions::new().append(true).create(true).mode(FILE_MODE).open(path);
        let written = file.and_then(|mut file| file.write_all(lines));
        written.map_err(StateError::io("write", path))
    }
}

/// The full file before `path`.
pub(super) fn full(path: &Path) -> PathBuf {
    path.with_extension(FULL)
}

/// The beginning of a text of a sandbox, within its bound.
fn shortened(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(SPAN_TEXT_MAX));
    text
}

/// A span within its bounds, with Unix times; `None` if its moments cannot be. `now` and the span's moments are of
/// `CLOCK_MONOTONIC`, whose zero is `epoch`.
fn accepted(span: Span, now: u64, epoch: u64) -> Option<Span> {
    let latest = now.saturating_add(FUTURE_MAX_NS);
    let possible = |start: u64, end: u64| {
        start <= end && end <= latest && now.saturating_sub(start) <= SPAN_MAX_NS
    };
    if !possible(span.start_ns, span.end_ns) {
        return None;
    }
    let known = [ModeKind::Embedded, ModeKind::Local, ModeKind::Networked];
    let mode = known.iter().find(|mode| mode.name() == span.mode);
    let unix = |ns: u64| ns.saturating_add(epoch);
    let phases = span.phases.iter().filter(|phase| possible(phase.start_ns, phase.end_ns));
    let phases = phases.take(PHASES_MAX).map(|phase| Phase {
        start_ns: unix(phase.start_ns),
        end_ns: unix(phase.end_ns),
        ..*phase
    });
    Some(Span {
        phases: phases.collect(),
        mode: mode.map_or_else(String::new, |mode| mode.name().to_owned()),
        module: shortened(span.module),
        peer: shortened(span.peer),
        reason: shortened(span.reason),
        tracestate: trace_headers::bounded(&span.tracestate),
        start_ns: unix(span.start_ns),
        end_ns: unix(span.end_ns),
        ..span
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kept_spans::keep_ended;
    use cwasi_dispatcher::spans::{OpenSpan, SpanEnd};
    use cwasi_wire::trace::PhaseKind;
    use cwasi_wire::trace_headers::TRACESTATE_MAX;

    fn identity() -> Identity {
        Identity { namespace: "n".into(), pod_namespace: String::new(), function: "a".into() }
    }

    fn add(spans: &Spans, report: SpanReport) {
        spans.add(SpanSource { identity: &identity(), workflow: "w", instance: "1" }, report);
    }

    fn span() -> Span {
        OpenSpan::root().end(SpanEnd { peer: "b", mode: "local", ..SpanEnd::default() })
    }

    fn report(spans: Vec<Span>) -> SpanReport {
        SpanReport { spans, dropped: 0 }
    }

    fn lines(path: &Path) -> Vec<serde_json::Value> {
        let text = fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[tokio::test]
    async fn a_span_has_the_shims_name_of_its_service_and_unix_times() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("spans.jsonl");
        let spans = Spans::start(path.clone(), "node", None);
        let before = monotonic_epoch_unix_ns() + monotonic_ns();
        add(&spans, SpanReport { spans: vec![span()], dropped: 3 });
        spans.write_now().await;
        let lines = lines(&path);
        let recorded: RecordedSpan = serde_json::from_value(lines[0].clone()).unwrap();
        assert_eq!((recorded.service.as_str(), recorded.node.as_str()), ("a", "node"));
        assert!(recorded.span.start_ns.abs_diff(before) < 60_000_000_000);
        assert_eq!(lines[1]["dropped"], 3);
    }

    #[test]
    fn impossible_moments_are_refused_and_texts_are_bounded() {
        let (now, epoch) = (10 * SPAN_MAX_NS, 5);
        let at = |start_ns, end_ns| Span { start_ns, end_ns, ..span() };
        assert!(accepted(at(now - 9, now), now, epoch).is_some());
        for (start, end) in [(now, now - 1), (now, u64::MAX), (0, now), (u64::MAX, u64::MAX)] {
            assert!(accepted(at(start, end), now, epoch).is_none(), "{start} {end}");
        }
        let phase = Phase { kind: PhaseKind::Run, start_ns: now - 3, end_ns: now - 2 };
        let hostile = Span {
            peer: "é".repeat(10_000),
            mode: "fast".into(),
            tracestate: "a=1,".repeat(10_000),
            phases: vec![Phase { end_ns: u64::MAX, ..phase }, phase, phase, phase, phase, phase],
            ..at(now - 9, now)
        };
        let accepted = accepted(hostile, now, epoch).unwrap();
        assert!(accepted.peer.len() <= SPAN_TEXT_MAX && accepted.mode.is_empty());
        assert!(accepted.tracestate.len() <= TRACESTATE_MAX);
        assert_eq!(accepted.phases.len(), PHASES_MAX);
        assert_eq!(accepted.phases[0].start_ns, now - 3 + epoch);
    }

    #[tokio::test]
    async fn a_flood_is_bounded_and_counted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("spans.jsonl");
        let spans = Spans::start(path.clone(), "node", None);
        add(&spans, report(vec![span(); SPANS_PER_REPORT + 5]));
        for _ in 0..3 * SPANS_AT_ONCE / u32::try_from(SPANS_PER_REPORT).unwrap() {
            add(&spans, report(vec![span(); SPANS_PER_REPORT]));
        }
        spans.write_now().await;
        let lines = lines(&path);
        let dropped: u64 = lines.iter().filter_map(|line| line["dropped"].as_u64()).sum();
        let kept = lines.iter().filter(|line| line["service"] == "a").count();
        let all = 3 * SPANS_AT_ONCE as usize + SPANS_PER_REPORT + 5;
        assert!(dropped > 0 && kept + usize::try_from(dropped).unwrap() == all, "{kept} {dropped}");
    }

    #[tokio::test]
    async fn spans_that_cannot_be_written_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("folder");
        // No folder, but a file.
        fs::write(&folder, "").unwrap();
        let path = folder.join("spans.jsonl");
        let spans = Spans::start(path.clone(), "node", None);
        add(&spans, report(vec![span(); 3]));
        spans.write_now().await;
        fs::remove_file(&folder).unwrap();
        add(&spans, report(vec![span()]));
        spans.write_now().await;
        let lines = lines(&path);
        let dropped: u64 = lines.iter().filter_map(|line| line["dropped"].as_u64()).sum();
        assert_eq!((lines.len(), dropped), (2, 3));
    }

    #[tokio::test]
    async fn files_are_bounded_and_survive_their_group() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("spans.jsonl");
        fs::write(&path, vec![b'\n'; usize::try_from(FILE_MAX).unwrap()]).unwrap();
        let spans = Spans::start(path.clone(), "node", None);
        add(&spans, report(vec![span()]));
        spans.write_now().await;
        assert_eq!(lines(&path).len(), 1);
        assert_eq!(fs::metadata(full(&path)).unwrap().len(), FILE_MAX);
        let kept = dir.path().join("traces");
        keep_ended(&path, "g", &kept).unwrap();
        keep_ended(&path, "g", &kept).unwrap();
        assert!(!path.exists() && fs::read_dir(&kept).unwrap().count() == 2);
    }
}
