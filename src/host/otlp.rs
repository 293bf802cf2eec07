//! Exports spans as OTLP over HTTP (<https://opentelemetry.io/docs/specs/otlp/#otlphttp>). Runs in the shim daemon, and in
//! processes of the host that call functions.
//!
//! Invariant: an absent or slow receiver delays no call. Waiting spans are bounded in number and in time; the others are
//! counted and logged.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cwasi_abi::Errno;
use http_body_util::{BodyExt as _, Collected, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{
    AnyValue, InstrumentationScope, KeyValue, any_value::Value,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::{Event, SpanKind as OtlpKind};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode as OtlpCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span as OtlpSpan, Status};
use prost::Message as _;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};

use cwasi_config::traces::OtlpUrl;
use cwasi_wire::trace::{RecordedSpan, Span, SpanKind};

/// Most spans that wait for the receiver; with the longest texts, 8 MiB.
const WAITING_MAX: usize = 4096;
/// Most spans of one request.
const BATCH_MAX: usize = 512;
/// Longest wait for a batch to fill.
const BATCH_EVERY: Duration = Duration::from_secs(1);
/// Longest request.
const REQUEST_MAX: Duration = Duration::from_secs(10);
/// Most bytes of a receiver's response that are read.
const RESPONSE_MAX: usize = 64 << 10;
/// Most bytes of its reason that are logged.
const REASON_MAX: usize = 500;
/// First and longest pause between two attempts.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(15);
/// A batch that the receiver has not taken after this time is dropped.
const BATCH_AGE_MAX: Duration = Duration::from_secs(60);
/// Number of bits of the flags that say "sampled".
const SAMPLED_FLAG: u32 = 1;
const USER_AGENT_VALUE: &str = concat!("cwasi/", env!("CARGO_PKG_VERSION"));
const PROTOBUF: &str = "application/x-protobuf";

/// Why the receiver did not take a batch.
#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error("{operation}: {reason}")]
    Failed { operation: &'static str, reason: String },
    #[error("the receiver answered {0}")]
    Refused(StatusCode),
}

impl ExportError {
    fn failed(operation: &'static str, reason: impl ToString) -> Self {
        Self::Failed { operation, reason: reason.to_string() }
    }

    /// True if the same batch may be taken later (OTLP specification).
    fn is_temporary(&self) -> bool {
        match self {
            Self::Failed { .. } => true,
            Self::Refused(status) => matches!(status.as_u16(), 429 | 502 | 503 | 504),
        }
    }
}

enum Order {
    Span(Box<RecordedSpan>),
    Flush(oneshot::Sender<()>),
}

/// Sends spans to a receiver; clones share its queue.
#[derive(Clone, Debug)]
pub struct Exporter {
    orders: mpsc::Sender<Order>,
    dropped: Arc<AtomicU64>,
}

impl Exporter {
    /// An exporter to `url`, on the current runtime. It connects when there are spans.
    #[must_use]
    pub fn start(url: &OtlpUrl) -> Self {
        let (orders, waiting) = mpsc::channel(WAITING_MAX);
        let dropped = Arc::new(AtomicU64::new(0));
        let sender = Sender { url: url.clone(), dropped: Arc::clone(&dropped) };
        tokio::spawn(sender.run(waiting));
        Self { orders, dropped }
    }

    /// Queues a span, or counts it as dropped.
    pub fn offer(&self, span: RecordedSpan) {
        if self.orders.try_send(Order::Span(Box::new(span))).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until the queued spans were sent or dropped, at most this long.
    pub async fn flush(&self, longest: Duration) {
        let (done, sent) = oneshot::channel();
        let flushed = async {
            if self.orders.send(Order::Flush(done)).await.is_ok() {
                // Dropped with the exporter's task.
                let _ended = sent.await;
            }
        };
        if timeout(longest, flushed).await.is_err() {
            tracing::warn!("the OTLP receiver did not take the last spans in time");
        }
    }
}

struct Sender {
    url: OtlpUrl,
    dropped: Arc<AtomicU64>,
}

impl Sender {
    async fn run(self, mut waiting: mpsc::Receiver<Order>) {
        let mut batch = Vec::new();
        while let Some(order) = waiting.recv().await {
            let mut flushed = Vec::new();
            collect(order, &mut batch, &mut flushed);
            let until = Instant::now() + BATCH_EVERY;
            while batch.len() < BATCH_MAX && flushed.is_empty() {
                let Ok(Some(order)) = tokio::time::timeout_at(until, waiting.recv()).await else {
                    break;
                };
                collect(order, &mut batch, &mut flushed);
            }
            if !batch.is_empty() {
                self.send(&std::mem::take(&mut batch)).await;
            }
            for done in flushed {
                // Who flushed may have stopped waiting.
                let _gone = done.send(());
            }
            self.tell_dropped();
        }
    }

    /// Sends a batch, again and again while the receiver is away.
    async fn send(&self, batch: &[RecordedSpan]) {
        let body = Bytes::from(encode(batch));
        let until = Instant::now() + BATCH_AGE_MAX;
        let mut pause = PAUSE_MIN;
        loop {
            let sent = timeout(REQUEST_MAX, self.post(body.clone())).await;
            let error = match sent {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error,
                Err(_elapsed) => ExportError::failed("waiting for the receiver", "timeout"),
            };
            if !error.is_temporary() || Instant::now() + pause > until {
                let spans = batch.len();
                tracing::warn!(receiver = self.url.authority(), %error, spans, "spans are dropped");
                return;
            }
            tracing::debug!(receiver = self.url.authority(), %error, "spans are sent again");
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn post(&self, body: Bytes) -> Result<(), ExportError> {
        let authority = self.url.authority();
        let stream = TcpStream::connect(&authority).await;
        let stream = stream.map_err(|error| ExportError::failed("connecting", error))?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) =
            handshake.map_err(|error| ExportError::failed("connecting", error))?;
        let request = Request::post(self.url.path())
            .header(HOST, authority)
            .header(USER_AGENT, USER_AGENT_VALUE)
            .header(CONTENT_TYPE, PROTOBUF)
            .body(Full::new(body))
            .map_err(|error| ExportError::failed("making a request", error))?;
        // Takes the sender with it: at its end the connection has no user any more and ends, too.
        let exchange = async move {
            let response = sender.send_request(request).await;
            let response = response.map_err(|error| ExportError::failed("sending", error))?;
            let status = response.status();
            // Read to its end, so that the receiver sees an orderly one. A response beyond the bound says nothing.
            let read = Limited::new(response.into_body(), RESPONSE_MAX).collect().await;
            Ok((status, read.map(Collected::to_bytes).unwrap_or_default()))
        };
        // A receiver may answer and close at once: the answer counts, whichever is seen first.
        let (answered, _ended) = tokio::join!(exchange, connection);
        let (status, body) = answered?;
        if !status.is_success() {
            return Err(ExportError::Refused(status));
        }
        if let Some((rejected, reason)) = rejected(&body) {
            tracing::warn!(receiver = self.url.authority(), rejected, reason, "spans are rejected");
        }
        Ok(())
    }

    fn tell_dropped(&self) {
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            let receiver = self.url.authority();
            tracing::warn!(receiver, dropped, "the receiver is too slow: spans are dropped");
        }
    }
}

/// How many spans of a batch the receiver has rejected, and why; they must not be sent again (OTLP specification).
fn rejected(body: &[u8]) -> Option<(i64, String)> {
    let response = ExportTraceServiceResponse::decode(body).ok()?;
    let ExportTracePartialSuccess { rejected_spans, mut error_message } =
        response.partial_success?;
    error_message.truncate(error_message.floor_char_boundary(REASON_MAX));
    (rejected_spans > 0 || !error_message.is_empty()).then_some((rejected_spans, error_message))
}

fn collect(order: Order, batch: &mut Vec<RecordedSpan>, flushed: &mut Vec<oneshot::Sender<()>>) {
    match order {
        Order::Span(span) => batch.push(*span),
        Order::Flush(done) => flushed.push(done),
    }
}

/// The body of a request with these spans.
#[must_use]
pub fn encode(spans: &[RecordedSpan]) -> Vec<u8> {
    let mut services: BTreeMap<_, Vec<&RecordedSpan>> = BTreeMap::new();
    for span in spans {
        let RecordedSpan { namespace, pod_namespace, service, instance, .. } = span;
        services.entry((namespace, pod_namespace, service, instance)).or_default().push(span);
    }
    let resource_spans = services.into_values().map(|spans| ResourceSpans {
        resource: Some(resource(spans[0])),
        scope_spans: vec![ScopeSpans {
            scope: Some(InstrumentationScope {
                name: "cwasi".to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                ..InstrumentationScope::default()
            }),
            spans: spans.into_iter().map(span).collect(),
            ..ScopeSpans::default()
        }],
        ..ResourceSpans::default()
    });
    ExportTraceServiceRequest { resource_spans: resource_spans.collect() }.encode_to_vec()
}

fn resource(span: &RecordedSpan) -> Resource {
    let texts = [
        ("service.name", &span.service),
        ("service.namespace", &span.namespace),
        ("service.instance.id", &span.instance),
        ("k8s.namespace.name", &span.pod_namespace),
        ("host.name", &span.node),
        ("cwasi.workflow", &span.workflow),
    ];
    Resource { attributes: attributes(texts), ..Resource::default() }
}

fn span(recorded: &RecordedSpan) -> OtlpSpan {
    let span = &recorded.span;
    let texts =
        [("cwasi.peer", &span.peer), ("cwasi.module", &span.module), ("cwasi.mode", &span.mode)];
    let mut attributes = attributes(texts);
    attributes.extend(self::attributes([("cwasi.mode.reason", &span.reason)]));
    let numbers = [
        ("cwasi.request.bytes", span.request_bytes),
        ("cwasi.response.bytes", span.response_bytes),
    ];
    attributes.extend(numbers.map(|(key, number)| {
        attribute(key, Value::IntValue(i64::try_from(number).unwrap_or(i64::MAX)))
    }));
    let (kind, name) = match span.kind {
        SpanKind::Run => (OtlpKind::Internal, &recorded.service),
        SpanKind::Server => (OtlpKind::Server, &recorded.service),
        SpanKind::Client => (OtlpKind::Client, &span.peer),
        SpanKind::Producer => (OtlpKind::Producer, &span.peer),
    };
    let status = (span.errno != 0).then(|| {
        let message = outcome(span);
        attributes.push(attribute("error.type", Value::StringValue(message.clone())));
        Status { message, code: OtlpCode::Error as i32 }
    });
    let events = span.phases.iter().map(|phase| Event {
        time_unix_nano: phase.start_ns,
        name: phase.kind.name().to_owned(),
        attributes: vec![attribute(
            "cwasi.duration_ns",
            Value::IntValue(i64::try_from(phase.end_ns - phase.start_ns).unwrap_or(i64::MAX)),
        )],
        ..Event::default()
    });
    OtlpSpan {
        trace_id: span.trace.bytes().to_vec(),
        span_id: span.id.bytes().to_vec(),
        parent_span_id: span.parent.map(|parent| parent.bytes().to_vec()).unwrap_or_default(),
        trace_state: span.tracestate.clone(),
        flags: SAMPLED_FLAG,
        name: name.clone(),
        kind: kind as i32,
        start_time_unix_nano: span.start_ns,
        end_time_unix_nano: span.end_ns,
        events: events.collect(),
        attributes,
        status,
        ..OtlpSpan::default()
    }
}

/// How a span that failed ended: the errno's name, or the exit code of a run.
fn outcome(span: &Span) -> String {
    if span.kind == SpanKind::Run {
        return format!("exit code {}", span.errno);
    }
    let errno = Errno::ALL.iter().find(|errno| errno.code() == span.errno);
    errno.map_or_else(|| format!("errno {}", span.errno), |errno| errno.name().to_owned())
}

/// Those that are not empty.
fn attributes<const N: usize>(texts: [(&str, &String); N]) -> Vec<KeyValue> {
    let given = texts.into_iter().filter(|(_, text)| !text.is_empty());
    given.map(|(key, text)| attribute(key, Value::StringValue(text.clone()))).collect()
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}

#[cfg(test)]
mod tests {
    use cwasi_testbed::span_line::SPAN_LINE;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    fn recorded(service: &str, errno: i32) -> RecordedSpan {
        let line: RecordedSpan = serde_json::from_str(SPAN_LINE).unwrap();
        let span = Span { response_bytes: u64::MAX, errno, ..line.span };
        RecordedSpan { service: service.into(), span, ..line }
    }

    #[test]
    fn spans_are_grouped_by_instance_and_read_as_the_official_messages() {
        let bytes = encode(&[recorded("a", 0), recorded("b", 5), recorded("a", 0)]);
        let request = ExportTraceServiceRequest::decode(bytes.as_slice()).unwrap();
        let counts: Vec<_> =
            request.resource_spans.iter().map(|it| it.scope_spans[0].spans.len()).collect();
        assert_eq!(counts, [2, 1]);
        let span = &request.resource_spans[1].scope_spans[0].spans[0];
        assert_eq!((span.trace_id.as_slice(), span.kind), (&[7; 16][..], OtlpKind::Server as i32));
        assert_eq!(
            (span.parent_span_id.as_slice(), span.trace_state.as_str()),
            (&[3; 8][..], "a=1")
        );
        let status = span.status.as_ref().unwrap();
        assert_eq!((status.code, status.message.as_str()), (OtlpCode::Error as i32, "timeout"));
        assert_eq!(span.events[0].name, "run");
    }

    #[tokio::test]
    async fn an_answer_counts_though_the_connection_ends_with_it() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap()).try_into().unwrap();
        let sender = Sender { url, dropped: Arc::default() };
        // Which end is seen first is chance.
        for _ in 0..32 {
            let receiver = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut read = Vec::new();
                while !read.ends_with(b"spans") {
                    stream.read_buf(&mut read).await.unwrap();
                }
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
            };
            let (sent, ()) = tokio::join!(sender.post(Bytes::from_static(b"spans")), receiver);
            sent.unwrap();
        }
    }

    #[tokio::test]
    async fn a_response_without_end_is_read_within_its_bound() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap()).try_into().unwrap();
        let sender = Sender { url, dropped: Arc::default() };
        let receiver = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut read = Vec::new();
            while !read.ends_with(b"spans") {
                stream.read_buf(&mut read).await.unwrap();
            }
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
                .await
                .unwrap();
            let mut sent = 0;
            // Until the sender has enough of it.
            while stream
                .write_all(format!("1000\r\n{}\r\n", "x".repeat(4096)).as_bytes())
                .await
                .is_ok()
            {
                sent += 4096;
                assert!(sent < 64 << 20, "it reads for ever");
            }
        };
        let (sent, ()) = tokio::join!(sender.post(Bytes::from_static(b"spans")), receiver);
        sent.unwrap();
    }

    #[test]
    fn rejected_spans_are_told() {
        let response = |rejected_spans, message: &str| {
            let error_message = message.to_owned();
            let partial = ExportTracePartialSuccess { rejected_spans, error_message };
            ExportTraceServiceResponse { partial_success: Some(partial) }.encode_to_vec()
        };
        assert_eq!(rejected(&response(3, "too old")), Some((3, "too old".to_owned())));
        assert_eq!(rejected(&response(0, "")), None);
        assert_eq!(rejected(b""), None);
        assert_eq!(rejected(&[0xff; 9]), None);
        let (_, reason) = rejected(&response(1, &"é".repeat(REASON_MAX))).unwrap();
        assert_eq!(reason.len(), REASON_MAX);
    }

    #[test]
    fn only_a_receiver_that_may_take_it_later_is_asked_again() {
        for (status, again) in [(429, true), (503, true), (400, false), (404, false), (500, false)]
        {
            let error = ExportError::Refused(StatusCode::from_u16(status).unwrap());
            assert_eq!(error.is_temporary(), again, "{status}");
        }
        assert!(ExportError::failed("connecting", "refused").is_temporary());
    }
}
