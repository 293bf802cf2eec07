//! Spans of traced calls between two reports to the shim. Runs in a worker.
//!
//! Only calls of a recorded trace get here; all others cost one check of an `Option`.
//!
//! Invariant: an invocation records a bounded number of spans. Its further calls leave the trace: their callees record
//! nothing.

use std::cell::RefCell;
use std::mem;
use std::rc::Rc;

use super::edges::{EMIT, EndedCall, NO_ROUTE};
use cwasi_modes::ModeKind;
use cwasi_sys::clock::monotonic_ns;
use cwasi_sys::random::bytes16;
use cwasi_wire::trace::{
    Phase, SPANS_PER_REPORT, SampleRatio, Span, SpanId, SpanKind, SpanReport, TraceContext, TraceId,
};

/// Most spans of one invocation's calls.
pub const SPANS_PER_INVOCATION: u32 = 1024;

/// A span that has begun.
#[derive(Clone, Copy, Debug)]
pub struct OpenSpan {
    /// The trace, the span's own id, and that it is recorded: what callees get.
    pub context: TraceContext,
    /// The span that caused it.
    pub parent: Option<SpanId>,
    /// `CLOCK_MONOTONIC` nanoseconds.
    pub start_ns: u64,
}

/// How a span ended.
#[derive(Clone, Copy, Debug)]
pub struct SpanEnd<'a> {
    /// The side of the call.
    pub kind: SpanKind,
    /// The embedded module whose span it is; empty = the function's own.
    pub module: &'a str,
    /// The other side's function.
    pub peer: &'a str,
    /// The mode's name; empty if unknown.
    pub mode: &'a str,
    /// [`Path::text`](cwasi_wire::envelope::Path::text).
    pub path: &'a str,
    /// The reason for the mode.
    pub reason: &'a str,
    /// Payload length in bytes.
    pub request_bytes: u64,
    /// Response length in bytes.
    pub response_bytes: u64,
    /// Errno; 0 = answered.
    pub errno: i32,
    /// What its time was spent on.
    pub phases: &'a [Phase],
    /// The invocation's `tracestate`.
    pub tracestate: &'a str,
}

impl Default for SpanEnd<'_> {
    fn default() -> Self {
        Self {
            kind: SpanKind::Run,
            module: "",
            peer: "",
            mode: "",
            path: "",
            reason: "",
            request_bytes: 0,
            response_bytes: 0,
            errno: 0,
            phases: &[],
            tracestate: "",
        }
    }
}

impl OpenSpan {
    /// Begins a span below `parent`.
    #[must_use]
    pub fn below(parent: TraceContext) -> Self {
        let context = TraceContext { span: new_span_id(), ..parent };
        Self { context, parent: Some(parent.span), start_ns: monotonic_ns() }
    }

    /// Begins a recorded trace.
    #[must_use]
    pub fn root() -> Self {
        let trace = loop {
            if let Some(trace) = TraceId::from_bytes(bytes16()) {
                break trace;
            }
        };
        let context = TraceContext { trace, span: new_span_id(), sampled: true };
        Self { context, parent: None, start_ns: monotonic_ns() }
    }

    /// Begins a recorded trace, if `ratio` takes it.
    #[must_use]
    pub fn sampled(ratio: SampleRatio) -> Option<Self> {
        let random = || {
            let [a, b, c, d, ..] = bytes16();
            u32::from_le_bytes([a, b, c, d])
        };
        (ratio > SampleRatio::NEVER && ratio.takes(random())).then(Self::root)
    }

    /// The trace context that the span's call passes on.
    #[must_use]
    pub fn traceparent(&self) -> String {
        self.context.to_string()
    }

    /// The span, which ends now.
    #[must_use]
    pub fn end(self, end: SpanEnd<'_>) -> Span {
        Span {
            trace: self.context.trace,
            id: self.context.span,
            parent: self.parent,
            kind: end.kind,
            module: end.module.to_owned(),
            peer: end.peer.to_owned(),
            mode: end.mode.to_owned(),
            path: end.path.to_owned(),
            reason: end.reason.to_owned(),
            start_ns: self.start_ns,
            end_ns: monotonic_ns(),
            request_bytes: end.request_bytes,
            response_bytes: end.response_bytes,
            errno: end.errno,
            phases: end.phases.to_vec(),
            tracestate: end.tracestate.to_owned(),
        }
    }
}

fn new_span_id() -> SpanId {
    loop {
        let [id @ .., _, _, _, _, _, _, _, _] = bytes16();
        if let Some(id) = SpanId::from_bytes(id) {
            return id;
        }
    }
}

#[derive(Debug, Default)]
struct Recorded {
    spans: Vec<Span>,
    dropped: u64,
}

/// The spans of one worker; clones share them.
#[derive(Clone, Debug, Default)]
pub struct SpanRecorder(Rc<RefCell<Recorded>>);

impl SpanRecorder {
    pub fn add(&self, span: Span) {
        self.0.borrow_mut().spans.push(span);
    }

    /// Counts spans that are not recorded.
    pub fn count_dropped(&self, spans: u64) {
        let mut recorded = self.0.borrow_mut();
        recorded.dropped = recorded.dropped.saturating_add(spans);
    }

    /// True if there are spans for a whole report.
    #[must_use]
    pub fn fills_a_report(&self) -> bool {
        self.0.borrow().spans.len() >= SPANS_PER_REPORT
    }

    /// Takes what was recorded since the last call, in reports of bounded length. Allocates nothing if there is none.
    #[must_use]
    pub fn take(&self) -> Vec<SpanReport> {
        let Recorded { spans, mut dropped } = {
            let mut recorded = self.0.borrow_mut();
            if recorded.spans.is_empty() && recorded.dropped == 0 {
                return Vec::new();
            }
            mem::take(&mut *recorded)
        };
        let mut spans = spans.into_iter().peekable();
        let mut reports = Vec::new();
        while spans.peek().is_some() || dropped > 0 {
            let spans = spans.by_ref().take(SPANS_PER_REPORT).collect();
            reports.push(SpanReport { spans, dropped: mem::take(&mut dropped) });
        }
        reports
    }
}

/// Records the spans of one invocation's calls.
#[derive(Clone, Copy, Debug)]
pub struct CallSpans<'a> {
    /// Keeps them until the next report.
    pub recorder: &'a SpanRecorder,
    /// The invocation's `tracestate`, which all of them have.
    pub tracestate: &'a str,
}

impl CallSpans<'_> {
    /// Ends the span of a call, if it has one.
    pub fn close(self, span: Option<OpenSpan>, kind: SpanKind, ended: EndedCall<'_>, errno: i32) {
        let Some(span) = span else { return };
        self.recorder.add(span.end(SpanEnd {
            kind,
            tracestate: self.tracestate,
            module: ended.module.unwrap_or_default(),
            peer: ended.callee,
            mode: match ended.mode {
                NO_ROUTE => "",
                EMIT => ModeKind::Networked.name(),
                mode => mode,
            },
            path: ended.path,
            reason: ended.reason,
            request_bytes: ended.request_bytes,
            response_bytes: ended.response_bytes.unwrap_or(0),
            errno,
            phases: &[],
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_has_its_parents_trace_and_an_id_of_its_own() {
        let root = OpenSpan::root();
        let child = OpenSpan::below(root.context);
        assert_eq!(child.parent, Some(root.context.span));
        assert_eq!(child.context.trace, root.context.trace);
        assert_ne!(child.context.span, root.context.span);
        assert!(child.context.sampled && root.parent.is_none());
        assert!(OpenSpan::sampled(SampleRatio::NEVER).is_none());
        assert!(OpenSpan::sampled(SampleRatio::ALWAYS).is_some());
    }

    #[test]
    fn reports_are_bounded_and_complete() {
        let recorder = SpanRecorder::default();
        assert!(recorder.take().is_empty());
        for _ in 0..=SPANS_PER_REPORT {
            recorder.add(OpenSpan::root().end(SpanEnd::default()));
        }
        recorder.count_dropped(1);
        assert!(recorder.fills_a_report());
        let lengths: Vec<_> =
            recorder.take().iter().map(|report| (report.spans.len(), report.dropped)).collect();
        assert_eq!(lengths, [(SPANS_PER_REPORT, 1), (1, 0)]);
        recorder.count_dropped(1);
        assert_eq!(recorder.take(), [SpanReport { spans: Vec::new(), dropped: 1 }]);
        assert!(recorder.take().is_empty());
    }
}
