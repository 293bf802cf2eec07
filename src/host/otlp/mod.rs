//! Exports spans as OTLP over HTTP (<https://opentelemetry.io/docs/specs/otlp/#otlphttp>). Runs in the shim daemon, and
//! in processes of the host that call functions.
//!
//! Invariant: an absent or slow receiver delays no call. Waiting spans are bounded in number and in time; the others
//! are counted and logged.

mod message;
mod receiver;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper::body::Bytes;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use cwasi_config::traces::OtlpUrl;
use cwasi_wire::trace::RecordedSpan;
pub use message::encode;
use receiver::{ExportError, OtlpReceiver};

/// Most spans that wait for the receiver; with the longest texts, 8 MiB.
const WAITING_MAX: usize = 4096;
/// Most spans of one request.
const BATCH_MAX: usize = 512;
/// Longest wait for a batch to fill.
const BATCH_EVERY: Duration = Duration::from_secs(1);
/// Longest request.
const REQUEST_MAX: Duration = Duration::from_secs(10);
/// First and longest pause between two attempts.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(15);
/// A batch that the receiver has not taken after this time is dropped.
const BATCH_AGE_MAX: Duration = Duration::from_secs(60);

/// To the task that exports.
enum ExporterMessage {
    Span(Box<RecordedSpan>),
    Flush(oneshot::Sender<()>),
}

/// Sends spans to a receiver; clones share its queue.
#[derive(Clone, Debug)]
pub struct Exporter {
    messages: mpsc::Sender<ExporterMessage>,
    dropped: Arc<AtomicU64>,
}

impl Exporter {
    /// An exporter to `url`, on the current runtime. It connects when there are spans.
    #[must_use]
    pub fn start(url: &OtlpUrl) -> Self {
        let (messages, queue) = mpsc::channel(WAITING_MAX);
        let dropped = Arc::new(AtomicU64::new(0));
        let receiver = OtlpReceiver::new(url.clone());
        let task = ExportTask { receiver, dropped: Arc::clone(&dropped) };
        tokio::spawn(task.run(queue));
        Self { messages, dropped }
    }

    /// Queues a span, or counts it as dropped.
    pub fn offer(&self, span: RecordedSpan) {
        if self.messages.try_send(ExporterMessage::Span(Box::new(span))).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until the queued spans were sent or dropped, at most this long.
    pub async fn flush(&self, longest: Duration) {
        let (done, sent) = oneshot::channel();
        let flushed = async {
            if self.messages.send(ExporterMessage::Flush(done)).await.is_ok() {
                // Dropped with the exporter's task.
                let _ended = sent.await;
            }
        };
        if timeout(longest, flushed).await.is_err() {
            tracing::warn!("the OTLP receiver did not take the last spans in time");
        }
    }
}

struct ExportTask {
    receiver: OtlpReceiver,
    dropped: Arc<AtomicU64>,
}

impl ExportTask {
    async fn run(self, mut queue: mpsc::Receiver<ExporterMessage>) {
        let mut batch = Vec::new();
        while let Some(message) = queue.recv().await {
            let mut flushed = Vec::new();
            collect(message, &mut batch, &mut flushed);
            let until = Instant::now() + BATCH_EVERY;
            while batch.len() < BATCH_MAX && flushed.is_empty() {
                let Ok(Some(message)) = timeout_at(until, queue.recv()).await else {
                    break;
                };
                collect(message, &mut batch, &mut flushed);
            }
            if !batch.is_empty() {
                self.send(&std::mem::take(&mut batch)).await;
            }
            for done in flushed {
                // The caller of `flush` may have stopped waiting.
                let _gone = done.send(());
            }
            self.report_dropped();
        }
    }

    /// Sends a batch, again and again while the receiver is away.
    async fn send(&self, batch: &[RecordedSpan]) {
        let body = Bytes::from(encode(batch));
        let until = Instant::now() + BATCH_AGE_MAX;
        let mut pause = PAUSE_MIN;
        loop {
            let sent = timeout(REQUEST_MAX, self.receiver.post(body.clone())).await;
            let error = match sent {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error,
                Err(_elapsed) => ExportError::failed("waiting for the receiver", "timeout"),
            };
            if !error.is_temporary() || Instant::now() + pause > until {
                let spans = batch.len();
                tracing::warn!(receiver = self.receiver.authority(), %error, spans, "spans are dropped");
                return;
            }
            tracing::debug!(receiver = self.receiver.authority(), %error, "spans are sent again");
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn report_dropped(&self) {
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            let receiver = self.receiver.authority();
            tracing::warn!(receiver, dropped, "the receiver is too slow: spans are dropped");
        }
    }
}

fn collect(
    message: ExporterMessage,
    batch: &mut Vec<RecordedSpan>,
    flushed: &mut Vec<oneshot::Sender<()>>,
) {
    match message {
        ExporterMessage::Span(span) => batch.push(*span),
        ExporterMessage::Flush(done) => flushed.push(done),
    }
}
