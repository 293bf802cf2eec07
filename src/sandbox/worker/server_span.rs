//! The span of a traced request, by the worker that serves it. Runs in workers.

use std::cell::Cell;
use std::time::Instant;

use cwasi_dispatcher::spans::{OpenSpan, SpanEnd, SpanRecorder};
use cwasi_sys::clock::monotonic_ns;
use cwasi_wire::envelope::Request;
use cwasi_wire::trace::{PHASES_MAX, Phase, PhaseKind, SpanKind, TraceContext};

/// Longest wait in a queue that is believed, in nanoseconds: the moment of sending is the caller's word.
const QUEUE_MAX_NS: u64 = 3_600_000_000_000;

/// A traced request that is being served.
#[derive(Debug)]
pub struct ServerSpan {
    span: OpenSpan,
    /// When the caller sent it; 0 if unknown.
    sent_ns: u64,
    /// When the handler returned; 0 before.
    ran_ns: Cell<u64>,
}

impl ServerSpan {
    /// Begins the span of a request that has just been read, if its trace is recorded.
    #[must_use]
    pub fn begin(request: &Request) -> Option<Self> {
        let caller = TraceContext::parse(&request.traceparent).filter(|caller| caller.sampled)?;
        let span = OpenSpan::below(caller);
        let waited = span.start_ns.saturating_sub(request.sent_mono_ns);
        let believed = request.sent_mono_ns <= span.start_ns && waited <= QUEUE_MAX_NS;
        let sent_ns = if believed { request.sent_mono_ns } else { 0 };
        Some(Self { span, sent_ns, ran_ns: Cell::new(0) })
    }

    /// The position of this invocation in the trace.
    #[must_use]
    pub const fn context(&self) -> TraceContext {
        self.span.context
    }

    /// The handler has returned.
    pub fn handler_ended(&self) {
        self.ran_ns.set(monotonic_ns());
    }

    /// Records the span of a request that was answered, which ended as `end` says.
    pub fn record(
        &self,
        recorder: &SpanRecorder,
        handler_began: Option<Instant>,
        end: SpanEnd<'_>,
    ) {
        let (arrived, now) = (self.span.start_ns, monotonic_ns());
        let ran = match self.ran_ns.get() {
            0 => now,
            ran => ran,
        };
        let ago = |moment: Instant| u64::try_from(moment.elapsed().as_nanos()).unwrap_or(0);
        // Two readings of the clock: a pause between them must not put the handler before the request.
        let began = handler_began
            .map_or(arrived, |moment| now.saturating_sub(ago(moment)).min(ran).max(arrived));
        let mut phases = Vec::with_capacity(PHASES_MAX);
        let mut add = |kind, start_ns, end_ns| {
            if start_ns > 0 && start_ns < end_ns {
                phases.push(Phase { kind, start_ns, end_ns });
            }
        };
        add(PhaseKind::Queue, self.sent_ns, arrived);
        add(PhaseKind::Transfer, arrived, began);
        add(PhaseKind::Run, began, ran);
        add(PhaseKind::Answer, ran, now);
        recorder.add(self.span.end(SpanEnd { kind: SpanKind::Server, phases: &phases, ..end }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn request(traceparent: &str, sent_mono_ns: u64) -> Request {
        Request { traceparent: traceparent.into(), sent_mono_ns, ..Request::default() }
    }

    #[test]
    fn only_recorded_traces_have_spans() {
        for traceparent in ["", "nonsense", &SAMPLED.replace("-01", "-00")] {
            assert!(ServerSpan::begin(&request(traceparent, 0)).is_none(), "{traceparent}");
        }
        let caller = TraceContext::parse(SAMPLED).unwrap();
        let span = ServerSpan::begin(&request(SAMPLED, 0)).unwrap();
        assert_eq!(span.context().trace, caller.trace);
        assert_ne!(span.context().span, caller.span);
    }

    #[test]
    fn phases_follow_each_other_and_a_lie_about_the_queue_is_left_out() {
        let recorder = SpanRecorder::default();
        let now = monotonic_ns();
        for (sent, believed) in
            [(now - 1, true), (0, false), (u64::MAX, false), (1, now < QUEUE_MAX_NS)]
        {
            // Seems to have begun before the request arrived, as it does if the process pauses between two readings.
            let began = Instant::now();
            let span = ServerSpan::begin(&request(SAMPLED, sent)).unwrap();
            span.handler_ended();
            let end = SpanEnd { request_bytes: 7, response_bytes: 9, ..SpanEnd::default() };
            span.record(&recorder, Some(began), end);
            let report = recorder.take().remove(0);
            let recorded = &report.spans[0];
            assert_eq!((recorded.request_bytes, recorded.response_bytes), (7, 9));
            let queued = recorded.phases.iter().any(|phase| phase.kind == PhaseKind::Queue);
            assert_eq!(queued, believed, "{sent}");
            for pair in recorded.phases.windows(2) {
                assert!(pair[0].end_ns <= pair[1].start_ns, "{:?}", recorded.phases);
            }
        }
    }
}
