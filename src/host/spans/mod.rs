//! Spans of a group's functions, from all workers' reports into a file and to the exporter. Runs in the shim daemon,
//! and in processes of the host that call functions.
//!
//! A file holds one JSON document a line: a [`RecordedSpan`], or `{"dropped":n}`. It is written at most once a second,
//! and when a container ends. A full file replaces the one before it, so that both together are bounded.
//!
//! Invariant: reports come from sandboxes. Their number, rate, texts and moments are bounded, and the service's name is
//! the shim's own.

mod check;
mod file;
mod token_bucket;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::Notify;

use super::otlp::Exporter;
use super::state::StateError;
use check::checked;
use cwasi_sys::clock::{monotonic_epoch_unix_ns, monotonic_ns};
use cwasi_wire::ids::Identity;
use cwasi_wire::trace::{RecordedSpan, SPANS_PER_REPORT, Span, SpanReport};
use file::SpanFile;
pub use file::full_file;
use token_bucket::TokenBucket;

/// Most bytes between two writes.
const UNWRITTEN_MAX: usize = 2 << 20;
/// Shortest time between two writes of the file.
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// The line of dropped spans.
#[derive(Debug, Serialize)]
struct Dropped {
    dropped: u64,
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
    file: SpanFile,
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
    /// Spans in the file `path` of a group's directory, and for the exporter if there is one. A task of its own writes
    /// the file. Spans that come after the directory was removed are lost.
    #[must_use]
    pub fn start(path: PathBuf, node: &str, exporter: Option<Exporter>) -> Self {
        Self::start_in(SpanFile::new(path, false), node, exporter)
    }

    /// The same in a directory that belongs to no group, and is made with the first span.
    #[must_use]
    pub fn start_making_dir(path: PathBuf, node: &str, exporter: Option<Exporter>) -> Self {
        Self::start_in(SpanFile::new(path, true), node, exporter)
    }

    fn start_in(file: SpanFile, node: &str, exporter: Option<Exporter>) -> Self {
        let bucket = TokenBucket::new(Instant::now());
        let inner = Inner {
            unwritten: Mutex::new(Unwritten { lines: Vec::new(), dropped: 0, bucket }),
            writing: Mutex::default(),
            changed: Notify::new(),
            file,
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

    pub fn add(&self, source: SpanSource<'_>, report: SpanReport) {
        let (now, epoch) = (monotonic_ns(), monotonic_epoch_unix_ns());
        let arrived = Instant::now();
        let surplus = report.spans.len().saturating_sub(SPANS_PER_REPORT) as u64;
        let mut unwritten = self.unwritten();
        unwritten.dropped =
            unwritten.dropped.saturating_add(report.dropped).saturating_add(surplus);
        for span in report.spans.into_iter().take(SPANS_PER_REPORT) {
            let span = checked(span, now, epoch).filter(|_| unwritten.bucket.take(arrived));
            match span.map(|span| self.recorded(source, span)) {
                Some(recorded) => self.store(&mut unwritten, recorded),
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

    fn store(&self, unwritten: &mut Unwritten, recorded: RecordedSpan) {
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
        let written = self.inner.file.append(&lines);
        if written.is_err() {
            let mut unwritten = self.unwritten();
            unwritten.dropped = unwritten.dropped.saturating_add(lost);
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::file::FILE_MAX;
    use super::token_bucket::SPANS_AT_ONCE;
    use super::*;
    use crate::kept_spans::keep_ended;
    use cwasi_dispatcher::spans::{OpenSpan, SpanEnd};

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
    async fn a_span_has_its_service_and_unix_times() {
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
        fs::create_dir(&folder).unwrap();
        add(&spans, report(vec![span()]));
        spans.write_now().await;
        let lines = lines(&path);
        let dropped: u64 = lines.iter().filter_map(|line| line["dropped"].as_u64()).sum();
        assert_eq!((lines.len(), dropped), (2, 3));
    }

    #[tokio::test]
    async fn late_spans_bring_no_removed_group_back() {
        let dir = tempfile::tempdir().unwrap();
        let group = dir.path().join("group");
        let spans = Spans::start(group.join("spans.jsonl"), "node", None);
        add(&spans, report(vec![span()]));
        spans.write_now().await;
        assert!(!group.exists());
        let made = Spans::start_making_dir(group.join("spans.jsonl"), "node", None);
        add(&made, report(vec![span()]));
        made.write_now().await;
        assert!(group.exists());
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
        assert_eq!(fs::metadata(full_file(&path)).unwrap().len(), FILE_MAX);
        let kept = dir.path().join("traces");
        keep_ended(&path, "g", &kept).unwrap();
        keep_ended(&path, "g", &kept).unwrap();
        assert!(!path.exists() && fs::read_dir(&kept).unwrap().count() == 2);
    }
}
