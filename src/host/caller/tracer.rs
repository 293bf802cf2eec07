//! Begins the traces of a caller of the host and records its side of the calls. Runs where [`super::HostCaller`] does.
//!
//! Invariant: who sends a trace context decides about recording only if the operator says so, and then at a bounded
//! rate ([`Spans`]).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::HostAnswer;
use super::counts::CallRoute;
use crate::network::node_name;
use crate::otlp::Exporter;
use crate::spans::{SpanSource, Spans};
use crate::state::StateDir;
use cwasi_config::NodeConfig;
use cwasi_config::traces::TracesConfig;
use cwasi_dispatcher::spans::{OpenSpan, SpanEnd};
use cwasi_modes::{CallError, ModeKind};
use cwasi_sys::clock::monotonic_ns;
use cwasi_wire::ids::Identity;
use cwasi_wire::trace::{SampleRatio, Span, SpanKind, SpanReport, TraceContext};
use cwasi_wire::trace_headers::TraceHeaders;

/// Traces per second that clients may have recorded.
const CLIENT_TRACES_PER_SECOND: u64 = 64;
const SECOND_NS: u64 = 1_000_000_000;
/// Longest wait at the end for the OTLP receiver.
const FLUSH_MAX: Duration = Duration::from_secs(2);

/// Begins and records traces.
#[derive(Debug)]
pub struct Tracer {
    spans: Spans,
    config: TracesConfig,
    /// The second of the last recorded trace of a client, and their number in it.
    clients: AtomicU64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct CallTrace {
    traceparent: String,
    tracestate: String,
    span: Option<OpenSpan>,
}

impl CallTrace {
    /// What the callee gets.
    pub(super) fn headers(&self) -> TraceHeaders<'_> {
        TraceHeaders { traceparent: &self.traceparent, tracestate: &self.tracestate }
    }

    /// The moment of sending, if the call is traced.
    pub(super) fn sent_mono_ns(&self) -> u64 {
        if self.span.is_some() { monotonic_ns() } else { 0 }
    }

    pub(super) fn id(&self) -> Option<String> {
        self.span.map(|span| span.context.trace.to_string())
    }
}

impl Tracer {
    /// A tracer that records into `spans`.
    #[must_use]
    pub fn new(spans: Spans, config: &TracesConfig) -> Self {
        Self { spans, config: config.clone(), clients: AtomicU64::new(0) }
    }

    /// The tracer of a process of the host, which has a span file of its own.
    #[must_use]
    pub fn of_process(config: &NodeConfig) -> Self {
        let directory = StateDir::new(&config.state_dir).kept_spans();
        let path = directory.join(format!("host.{}.jsonl", std::process::id()));
        let exporter = config.traces.otlp.as_ref().map(Exporter::start);
        let spans = Spans::start_making_dir(path, &node_name(&config.node), exporter);
        Self::new(spans, &config.traces)
    }

    /// Begins the span of a call. `client`: the trace context that a client sent; `recorded`: the operator wants this
    /// trace.
    pub(super) fn begin(&self, client: TraceHeaders<'_>, recorded: bool) -> CallTrace {
        let tracestate = client.accepted_state();
        let client = TraceContext::parse(client.traceparent);
        let ratio = match client {
            _ if recorded => SampleRatio::ALWAYS,
            Some(context) if self.config.clients_decide => {
                match context.sampled && self.admits_client() {
                    true => SampleRatio::ALWAYS,
                    false => SampleRatio::NEVER,
                }
            }
            _ => self.config.sample,
        };
        let root = OpenSpan::sampled(ratio);
        let span = root.map(|root| {
            client.map_or(root, |client| OpenSpan::below(TraceContext { sampled: true, ..client }))
        });
        // Without a span, passed on for others that know the trace. Whether this runtime records it was decided here.
        let context = span.map(|span| span.context).or(client.map(passed_on));
        let traceparent = context.map_or_else(String::new, String::from);
        CallTrace { traceparent, tracestate, span }
    }

    /// True for the first few traces of a second.
    fn admits_client(&self) -> bool {
        let second = monotonic_ns() / SECOND_NS;
        let first = second * CLIENT_TRACES_PER_SECOND;
        let next = |last: u64| {
            let next = (last + 1).max(first);
            (next < first + CLIENT_TRACES_PER_SECOND).then_some(next)
        };
        self.clients.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }

    /// Records the end of a call or of a one-way message.
    pub(super) fn end(&self, source: SpanSource<'_>, trace: &CallTrace, end: SpanEnd<'_>) {
        let Some(span) = trace.span else { return };
        let end = SpanEnd { tracestate: &trace.tracestate, ..end };
        self.spans.add(source, SpanReport { spans: vec![span.end(end)], dropped: 0 });
    }

    /// Records a span of this process itself.
    pub fn record(&self, identity: &Identity, workflow: &str, span: Span) {
        let source = SpanSource { identity, workflow, instance: "" };
        self.spans.add(source, SpanReport { spans: vec![span], dropped: 0 });
    }

    /// Writes and exports what was recorded.
    pub async fn flush(&self) {
        self.spans.flush(FLUSH_MAX).await;
    }
}

/// A client's context for a callee of a trace that is not recorded. A changed flag needs a new parent id
/// (<https://www.w3.org/TR/trace-context/#mutating-the-traceparent-field>).
fn passed_on(client: TraceContext) -> TraceContext {
    let context = if client.sampled {
        OpenSpan::below(TraceContext { sampled: true, ..client }).context
    } else {
        client
    };
    context.unsampled()
}

/// The end of a call's span.
pub(super) fn ended<'a>(
    target: &'a str,
    request_bytes: u64,
    route: Option<&'a CallRoute>,
    ended: &Result<HostAnswer, CallError>,
) -> SpanEnd<'a> {
    let (mode, path, reason) = route.map_or(("", "", ""), |route| {
        let CallRoute { mode, path, reason } = route;
        (mode.name(), path.text(), &**reason)
    });
    let end = SpanEnd {
        kind: SpanKind::Client,
        peer: target,
        mode,
        path,
        reason,
        request_bytes,
        ..SpanEnd::default()
    };
    match ended {
        Ok(answer) => SpanEnd { response_bytes: answer.payload.len(), ..end },
        Err(error) => SpanEnd { errno: error.errno().code(), ..end },
    }
}

/// The end of a one-way message's span.
pub(super) fn stored<'a>(
    target: &'a str,
    request_bytes: u64,
    stored: &Result<(), CallError>,
) -> SpanEnd<'a> {
    SpanEnd {
        kind: SpanKind::Producer,
        peer: target,
        mode: ModeKind::Networked.name(),
        request_bytes,
        errno: stored.as_ref().map_or_else(|error| error.errno().code(), |()| 0),
        ..SpanEnd::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn tracer(sample: SampleRatio, clients_decide: bool) -> Tracer {
        let path = std::path::PathBuf::from("/nonexistent/spans.jsonl");
        let config = TracesConfig { sample, clients_decide, otlp: None };
        Tracer::new(Spans::start(path, "node", None), &config)
    }

    #[tokio::test]
    async fn a_client_decides_only_where_the_operator_lets_it() {
        let (never, always) = (SampleRatio::NEVER, SampleRatio::ALWAYS);
        let unsampled = SAMPLED.replace("-01", "-00");
        for (sample, decides, client, recorded, traced) in [
            (never, false, "", false, false),
            (never, false, SAMPLED, false, false),
            (never, true, SAMPLED, false, true),
            (always, true, &unsampled, false, false),
            (always, false, &unsampled, false, true),
            (always, false, "", false, true),
            (never, false, "", true, true),
            (never, true, "nonsense", false, false),
        ] {
            let headers = TraceHeaders { traceparent: client, tracestate: "a=1" };
            let trace = tracer(sample, decides).begin(headers, recorded);
            assert_eq!(trace.id().is_some(), traced, "{sample:?} {decides} {client}");
            let sent = TraceContext::parse(trace.headers().traceparent);
            assert_eq!(sent.is_some_and(|sent| sent.sampled), traced);
            if let Some(client) = TraceContext::parse(client) {
                let sent = sent.unwrap();
                assert_eq!(sent.trace, client.trace);
                // The parent stays only if nothing was recorded and no flag changed.
                let is_same = !traced && !client.sampled;
                assert_eq!(sent.span == client.span, is_same, "{sample:?} {decides} {client}");
                assert_eq!(trace.headers().tracestate, "a=1");
            } else {
                assert_eq!(trace.headers().tracestate, "");
            }
        }
    }

    #[tokio::test]
    async fn clients_have_a_bounded_rate() {
        let tracer = tracer(SampleRatio::NEVER, true);
        let client = TraceHeaders { traceparent: SAMPLED, tracestate: "" };
        let begun = monotonic_ns() / SECOND_NS;
        let recorded = (0..5 * CLIENT_TRACES_PER_SECOND)
            .filter(|_| tracer.begin(client, false).id().is_some())
            .count() as u64;
        let seconds = monotonic_ns() / SECOND_NS - begun + 1;
        assert!(recorded >= CLIENT_TRACES_PER_SECOND);
        assert!(recorded <= seconds * CLIENT_TRACES_PER_SECOND, "{recorded} in {seconds}");
    }
}
