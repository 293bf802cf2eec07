//! The trace of the running invocation: which spans its calls have. Calls inside one VM, of embedded and of linked
//! modules, nest: a callee's own calls are below its span. Runs in a worker.
//!
//! An invocation whose trace is not recorded costs one check of an `Option` for each call.

use std::mem;
use std::rc::Rc;

use cwasi_wire::ids::RunId;
use cwasi_wire::trace::{SpanKind, TraceContext, TraceStart};
use cwasi_wire::trace_headers::TraceHeaders;

use super::edges::EndedCall;
use super::spans::{CallSpans, OpenSpan, SPANS_PER_INVOCATION, SpanRecorder};

/// Most linked calls of one invocation that have spans. A caller makes linked calls as often as calls of its own
/// functions; without this bound they would leave none of [`SPANS_PER_INVOCATION`] to other calls.
pub const LINKED_SPANS_PER_INVOCATION: u32 = 128;

/// Data that all calls of one invocation share.
#[derive(Debug, Default)]
pub(super) struct InvocationContext {
    /// What calls without a span pass on.
    pub traceparent: String,
    /// What all calls pass on, unchanged.
    pub tracestate: String,
    pub run: Option<RunId>,
    /// The parent of the calls' spans, if the trace is recorded.
    pub recorded: Option<TraceContext>,
}

impl InvocationContext {
    /// What a call passes on; `own`: the position of its span, if it has one.
    pub fn headers<'a>(&'a self, own: Option<&'a str>) -> TraceHeaders<'a> {
        let traceparent = own.unwrap_or(&self.traceparent);
        TraceHeaders { traceparent, tracestate: &self.tracestate }
    }
}

/// The two sides of a call inside the VM that runs.
#[derive(Debug)]
pub struct NestedSpans {
    /// What the caller's calls belong to.
    outer: Rc<InvocationContext>,
    client: OpenSpan,
    server: OpenSpan,
}

/// The trace of the running invocation.
#[derive(Debug)]
pub struct InvocationTrace {
    /// The function's name.
    function: String,
    context: Rc<InvocationContext>,
    recorder: SpanRecorder,
    start: TraceStart,
    /// Number of spans of the invocation's calls.
    opened: u32,
    /// Number of those of linked calls.
    opened_linked: u32,
}

impl InvocationTrace {
    /// A function without an invocation. Its traced calls are recorded in `recorder`, as `start` says.
    pub(super) fn new(function: &str, recorder: SpanRecorder, start: TraceStart) -> Self {
        let context = Rc::default();
        Self {
            function: function.to_owned(),
            context,
            recorder,
            start,
            opened: 0,
            opened_linked: 0,
        }
    }

    /// Records in `recorder` from now on.
    pub(super) fn record(&mut self, recorder: SpanRecorder, start: TraceStart) {
        (self.recorder, self.start) = (recorder, start);
    }

    /// Begins an invocation. Its calls belong to this trace (empty = not traced) and to this run of the workflow.
    pub(super) fn begin(&mut self, traceparent: &str, tracestate: &str, run: Option<RunId>) {
        let recorded = Some(traceparent).filter(|text| self.start.record && !text.is_empty());
        let recorded = recorded.and_then(TraceContext::parse).filter(|context| context.sampled);
        // Callees of calls without a span record nothing: they would have no parent.
        let traceparent = recorded
            .map_or_else(|| traceparent.to_owned(), |context| context.unsampled().to_string());
        let tracestate = tracestate.to_owned();
        self.context = Rc::new(InvocationContext { traceparent, tracestate, run, recorded });
        (self.opened, self.opened_linked) = (0, 0);
    }

    /// What the calls of the running code share.
    pub(super) fn context(&self) -> &Rc<InvocationContext> {
        &self.context
    }

    /// The spans that were recorded.
    pub(super) const fn recorder(&self) -> &SpanRecorder {
        &self.recorder
    }

    /// True if calls of the running invocation are recorded.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        self.context.recorded.is_some()
    }

    /// True if the next call has a span.
    #[must_use]
    pub fn records_next(&self) -> bool {
        self.is_recorded() && self.opened < SPANS_PER_INVOCATION
    }

    /// True if the next linked call has a span.
    #[must_use]
    pub fn records_linked(&self) -> bool {
        self.records_next() && self.opened_linked < LINKED_SPANS_PER_INVOCATION
    }

    /// Counts `calls` linked calls that have no spans.
    pub fn leave_out(&self, calls: u32) {
        if self.is_recorded() {
            self.recorder.count_dropped(calls.into());
        }
    }

    /// The position of the running code in its trace: the invocation's, or that of a call inside the VM. `None` if the
    /// trace is not recorded.
    #[must_use]
    pub fn traceparent(&self) -> Option<String> {
        self.context.recorded.map(|context| context.to_string())
    }

    /// Begins the span of a call, if the trace is recorded.
    pub(super) fn open(&mut self) -> Option<OpenSpan> {
        let parent = self.context.recorded?;
        if self.opened >= SPANS_PER_INVOCATION {
            self.recorder.count_dropped(1);
            return None;
        }
        self.opened += 1;
        Some(OpenSpan::below(parent))
    }

    /// Begins the span of a one-way message, which begins a trace of its own if the invocation has none.
    pub(super) fn open_message(&mut self) -> Option<OpenSpan> {
        let begins = self.start.record && self.context.traceparent.is_empty();
        match self.open() {
            None if begins => OpenSpan::sampled(self.start.sample),
            span => span,
        }
    }

    /// Ends the span of a call, if it has one.
    pub(super) fn close(
        &self,
        span: Option<OpenSpan>,
        kind: SpanKind,
        ended: EndedCall<'_>,
        errno: i32,
    ) {
        self.spans().close(span, kind, ended, errno);
    }

    /// Begins the spans of an embedded call: the callee's calls are below the callee's span. `None` if the trace is not
    /// recorded.
    pub fn enter_embedded(&mut self) -> Option<NestedSpans> {
        let client = self.open()?;
        Some(self.enter(client))
    }

    /// Begins the spans of a linked call, as [`Self::enter_embedded`] does.
    pub fn enter_linked(&mut self) -> Option<NestedSpans> {
        if self.is_recorded() && self.opened_linked >= LINKED_SPANS_PER_INVOCATION {
            self.recorder.count_dropped(1);
            return None;
        }
        let client = self.open()?;
        self.opened_linked += 1;
        Some(self.enter(client))
    }

    fn enter(&mut self, client: OpenSpan) -> NestedSpans {
        let server = OpenSpan::below(client.context);
        let inner = InvocationContext {
            traceparent: server.context.unsampled().to_string(),
            tracestate: self.context.tracestate.clone(),
            run: self.context.run,
            recorded: Some(server.context),
        };
        let outer = mem::replace(&mut self.context, Rc::new(inner));
        NestedSpans { outer, client, server }
    }

    /// Ends the spans of a call inside the VM.
    pub fn leave(&mut self, spans: NestedSpans, ended: EndedCall<'_>, errno: i32) {
        let NestedSpans { outer, client, server } = spans;
        self.context = outer;
        let caller = ended.module.unwrap_or(&self.function);
        let served = EndedCall { module: Some(ended.callee), callee: caller, reason: "", ..ended };
        self.spans().close(Some(server), SpanKind::Server, served, errno);
        self.spans().close(Some(client), SpanKind::Client, ended, errno);
    }

    fn spans(&self) -> CallSpans<'_> {
        CallSpans { recorder: &self.recorder, tracestate: &self.context.tracestate }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::embedded::LinkedCall;
    use cwasi_wire::trace::Span;

    const SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn trace() -> InvocationTrace {
        InvocationTrace::new("a", SpanRecorder::default(), TraceStart::UNSAMPLED)
    }

    /// Spans and number of dropped ones since the last call.
    fn take(trace: &InvocationTrace) -> (Vec<Span>, u64) {
        let reports = trace.recorder().take();
        let dropped = reports.iter().map(|report| report.dropped).sum();
        (reports.into_iter().flat_map(|report| report.spans).collect(), dropped)
    }

    fn ended<'a>(module: Option<&'a str>, callee: &'a str) -> EndedCall<'a> {
        let latency = Duration::from_nanos(500);
        LinkedCall { module, callee, request_bytes: 1, response_bytes: 2, latency }.ended()
    }

    #[test]
    fn nested_calls_are_below_each_other_and_know_their_position() {
        let mut trace = trace();
        trace.begin(SAMPLED, "", None);
        let outer = trace.enter_embedded().unwrap();
        let inner = trace.enter_linked().unwrap();
        let seen = TraceContext::parse(&trace.traceparent().unwrap()).unwrap();
        trace.leave(inner, ended(Some("b"), "c"), 0);
        trace.leave(outer, ended(None, "b"), 7);
        assert_eq!(trace.traceparent().as_deref(), Some(SAMPLED));
        let (spans, dropped) = take(&trace);
        let [c, to_c, b, to_b] = &spans[..] else { panic!("{spans:?}") };
        let parts = |it: &Span| (it.kind, it.module.clone(), it.peer.clone(), it.errno);
        let of = |kind, module: &str, peer: &str, errno| (kind, module.into(), peer.into(), errno);
        assert_eq!(parts(to_b), of(SpanKind::Client, "", "b", 7));
        assert_eq!(parts(b), of(SpanKind::Server, "b", "a", 7));
        assert_eq!(parts(to_c), of(SpanKind::Client, "b", "c", 0));
        assert_eq!(parts(c), of(SpanKind::Server, "c", "b", 0));
        let root = TraceContext::parse(SAMPLED).unwrap();
        let parents = [to_b, b, to_c, c].map(|it| it.parent.unwrap());
        assert_eq!(parents, [root.span, to_b.id, b.id, to_c.id]);
        assert_eq!((seen.trace, seen.span, dropped), (root.trace, c.id, 0));
    }

    #[test]
    fn linked_calls_have_a_bound_of_their_own() {
        let mut trace = trace();
        for _ in 0..2 {
            trace.begin(SAMPLED, "", None);
            for _ in 0..=LINKED_SPANS_PER_INVOCATION {
                if let Some(spans) = trace.enter_linked() {
                    trace.leave(spans, ended(None, "b"), 0);
                }
            }
            assert!(trace.open().is_some(), "other calls still have spans");
            let (spans, dropped) = take(&trace);
            assert_eq!((spans.len(), dropped), (2 * LINKED_SPANS_PER_INVOCATION as usize, 1));
        }
    }

    #[test]
    fn a_trace_that_is_not_recorded_has_no_spans() {
        let mut trace = trace();
        for traceparent in ["", &SAMPLED.replace("-01", "-00")] {
            trace.begin(traceparent, "", None);
            assert!(!trace.is_recorded() && trace.traceparent().is_none());
            assert!(trace.enter_embedded().is_none() && trace.enter_linked().is_none());
        }
        assert_eq!(take(&trace), (Vec::new(), 0));
    }
}
