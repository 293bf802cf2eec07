//! Metrics and spans of a worker's calls, until the shim has them. Runs in a worker.

use std::time::{Duration, Instant};

use cwasi_modes::CallError;
use cwasi_wire::trace::{SpanKind, TraceStart};

use super::edges::{ABANDONED, EMIT, EMIT_REASON, EdgeCounters, EndedCall, NO_ROUTE};
use super::pending_calls::PendingCall;
use super::resolve::Resolve;
use super::settings::timeout;
use super::spans::{OpenSpan, SpanRecorder};
use super::trace::InvocationTrace;

/// Longest time between two reports of a busy worker.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Counts and traces calls.
#[derive(Debug)]
pub(super) struct Telemetry {
    pub trace: InvocationTrace,
    pub edges: EdgeCounters,
    reported: Instant,
}

impl Telemetry {
    /// Counts calls of `caller`; records no spans.
    pub fn new(caller: &str) -> Self {
        let recorder = SpanRecorder::default();
        Self {
            trace: InvocationTrace::new(caller, recorder, TraceStart::UNSAMPLED),
            edges: EdgeCounters::new(caller),
            reported: Instant::now(),
        }
    }

    /// Counts a call that ended with a response of this length, and ends its span.
    pub fn count_call(&mut self, pending: &PendingCall, response_len: Result<u64, &CallError>) {
        self.count(pending, length_or_kind(response_len), errno(response_len));
    }

    /// Counts a call whose end its guest did not wait for.
    pub fn count_abandoned(&mut self, pending: &PendingCall) {
        self.count(pending, Err(ABANDONED), errno(Err::<u64, _>(&timeout(&pending.target))));
    }

    /// Counts a one-way message, and ends its span.
    pub fn count_message(
        &mut self,
        span: Option<OpenSpan>,
        target: &str,
        request_bytes: u64,
        latency: Duration,
        stored: Result<(), &CallError>,
    ) {
        let ended = EndedCall {
            module: None,
            callee: target,
            mode: EMIT,
            path: "",
            reason: EMIT_REASON,
            request_bytes,
            response_bytes: length_or_kind(stored.map(|()| 0)),
            latency,
        };
        self.edges.count(ended);
        self.trace.close(span, SpanKind::Producer, ended, errno(stored));
    }

    /// Sends all metrics and spans to the shim.
    pub fn report(&mut self, shim: &mut impl Resolve) {
        let edges = self.edges.take();
        if !edges.is_empty() {
            shim.report(edges);
        }
        let spans = self.trace.recorder().take();
        if !spans.is_empty() {
            shim.report_spans(spans);
        }
        self.reported = Instant::now();
    }

    /// [`Self::report`], if the last report is too long ago or there are many spans.
    pub fn report_when_due(&mut self, shim: &mut impl Resolve) {
        if self.reported.elapsed() >= REPORT_INTERVAL || self.trace.recorder().fills_a_report() {
            self.report(shim);
        }
    }

    fn count(
        &mut self,
        pending: &PendingCall,
        response_bytes: Result<u64, &'static str>,
        errno: i32,
    ) {
        let served = pending.served.as_ref();
        let ended = EndedCall {
            module: None,
            callee: &pending.target,
            mode: served.map_or(NO_ROUTE, |(mode, _)| mode.name()),
            path: pending.counted_path(),
            reason: served.map_or("", |(_, reason)| reason),
            request_bytes: pending.request_bytes,
            response_bytes,
            latency: pending.started.elapsed(),
        };
        self.edges.count(ended);
        self.trace.close(pending.span, SpanKind::Client, ended, errno);
    }
}

/// A response's length, or the error's kind for the metrics.
pub(super) fn length_or_kind(ended: Result<u64, &CallError>) -> Result<u64, &'static str> {
    ended.map_err(|error| error.errno().name())
}

fn errno<T>(ended: Result<T, &CallError>) -> i32 {
    ended.map_or_else(|error| error.errno().code(), |_| 0)
}
