//! Spans of calls inside one VM, of embedded and of linked modules. Such calls nest: a callee's own calls are below its
//! span. Runs in a worker.
//!
//! An invocation whose trace is not recorded asks [`Dispatcher::is_traced`] once for each call, and nothing else here.

use std::mem;
use std::rc::Rc;

use super::call::{Dispatcher, InvocationContext, Resolve};
use super::edges::EndedCall;
use super::spans::OpenSpan;
use cwasi_wire::trace::SpanKind;

/// Most linked calls of one invocation that have spans. A caller makes linked calls as often as calls of its own
/// functions; without this bound they would leave none of [`super::spans::SPANS_PER_INVOCATION`] to other calls.
pub const LINKED_SPANS_PER_INVOCATION: u32 = 128;

/// The two sides of a call inside the VM that runs.
#[derive(Debug)]
pub struct NestedSpans {
    /// What the caller's calls belong to.
    outer: Rc<InvocationContext>,
    client: OpenSpan,
    server: OpenSpan,
}

impl<R: Resolve> Dispatcher<R> {
    /// True if calls of the running invocation are recorded.
    #[must_use]
    pub fn is_traced(&self) -> bool {
        self.invocation.trace.is_some()
    }

    /// The position of the running code in its trace: the invocation's, or that of a call inside the VM. `None` if the
    /// trace is not recorded.
    #[must_use]
    pub fn traceparent(&self) -> Option<String> {
        self.invocation.trace.map(|context| context.to_string())
    }

    /// Begins the spans of an embedded call: the callee's calls are below the callee's span. `None` if the trace is not
    /// recorded.
    pub fn enter_embedded(&mut self) -> Option<NestedSpans> {
        let client = self.open_span()?;
        Some(self.enter(client))
    }

    /// Begins the spans of a linked call, as [`Self::enter_embedded`] does.
    pub fn enter_linked(&mut self) -> Option<NestedSpans> {
        if self.is_traced() && self.linked_spans >= LINKED_SPANS_PER_INVOCATION {
            self.spans.count_dropped();
            return None;
        }
        let client = self.open_span()?;
        self.linked_spans += 1;
        Some(self.enter(client))
    }

    fn enter(&mut self, client: OpenSpan) -> NestedSpans {
        let server = OpenSpan::below(client.context);
        let inner = InvocationContext {
            traceparent: server.context.unsampled().to_string(),
            tracestate: self.invocation.tracestate.clone(),
            run: self.invocation.run,
            trace: Some(server.context),
        };
        let outer = mem::replace(&mut self.invocation, Rc::new(inner));
        NestedSpans { outer, client, server }
    }

    /// Ends the spans of a call inside the VM; `caller` is the calling module's name.
    pub fn leave(&mut self, spans: NestedSpans, ended: EndedCall<'_>, errno: i32) {
        let NestedSpans { outer, client, server } = spans;
        self.invocation = outer;
        let caller = ended.module.unwrap_or(&self.settings.caller).to_owned();
        let served = EndedCall { module: Some(ended.callee), callee: &caller, reason: "", ..ended };
        self.call_spans().close(Some(server), SpanKind::Server, served, errno);
        self.call_spans().close(Some(client), SpanKind::Client, ended, errno);
        self.flush_now_and_then();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::time::Duration;

    use super::*;
    use crate::call::{ResolvedRoute, RouteQuery, Settings};
    use crate::embedded::LinkedCall;
    use crate::spans::SpanRecorder;
    use cwasi_modes::CallError;
    use cwasi_modes::causes::Unavailable;
    use cwasi_sys::clock::Deadline;
    use cwasi_wire::control::EdgeReport;
    use cwasi_wire::trace::{Span, SpanReport, TraceContext, TraceStart};

    const SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    /// A shim that keeps what it is told, and has no routes.
    #[derive(Clone, Default)]
    struct Shim(Rc<RefCell<Vec<SpanReport>>>);

    impl Resolve for Shim {
        fn resolve(
            &mut self,
            _: &RouteQuery<'_>,
            _: Option<Deadline>,
        ) -> Result<ResolvedRoute, CallError> {
            Err(Unavailable::NoShim.into())
        }

        fn report(&mut self, _: Vec<EdgeReport>) {}

        fn report_spans(&mut self, reports: Vec<SpanReport>) {
            self.0.borrow_mut().extend(reports);
        }
    }

    impl Shim {
        /// Spans and number of dropped ones since the last call.
        fn take(&self) -> (Vec<Span>, u64) {
            let reports = self.0.take();
            let dropped = reports.iter().map(|report| report.dropped).sum();
            (reports.into_iter().flat_map(|report| report.spans).collect(), dropped)
        }
    }

    fn dispatcher(shim: &Shim) -> Dispatcher<Shim> {
        let settings = Settings { caller: "a".into(), max_payload: 10, timeout_ms: 1000 };
        Dispatcher::new(settings, shim.clone())
            .recording(SpanRecorder::default(), TraceStart::UNSAMPLED)
    }

    fn ended<'a>(module: Option<&'a str>, callee: &'a str) -> EndedCall<'a> {
        let latency = Duration::from_nanos(500);
        LinkedCall { module, callee, request_bytes: 1, response_bytes: 2, latency }.ended()
    }

    #[test]
    fn nested_calls_are_below_each_other_and_know_their_place() {
        let shim = Shim::default();
        let mut dispatcher = dispatcher(&shim);
        dispatcher.begin(SAMPLED, "", None);
        let outer = dispatcher.enter_embedded().unwrap();
        let inner = dispatcher.enter_linked().unwrap();
        let seen = TraceContext::parse(&dispatcher.traceparent().unwrap()).unwrap();
        dispatcher.leave(inner, ended(Some("b"), "c"), 0);
        dispatcher.leave(outer, ended(None, "b"), 7);
        assert_eq!(dispatcher.traceparent().as_deref(), Some(SAMPLED));
        dispatcher.flush();
        let (spans, dropped) = shim.take();
        let [c, to_c, b, to_b] = &spans[..] else { panic!("{spans:?}") };
        let place = |it: &Span| (it.kind, it.module.clone(), it.peer.clone(), it.errno);
        let of = |kind, module: &str, peer: &str, errno| (kind, module.into(), peer.into(), errno);
        assert_eq!(place(to_b), of(SpanKind::Client, "", "b", 7));
        assert_eq!(place(b), of(SpanKind::Server, "b", "a", 7));
        assert_eq!(place(to_c), of(SpanKind::Client, "b", "c", 0));
        assert_eq!(place(c), of(SpanKind::Server, "c", "b", 0));
        let root = TraceContext::parse(SAMPLED).unwrap();
        let parents = [to_b, b, to_c, c].map(|it| it.parent.unwrap());
        assert_eq!(parents, [root.span, to_b.id, b.id, to_c.id]);
        assert_eq!((seen.trace, seen.span, dropped), (root.trace, c.id, 0));
    }

    #[test]
    fn linked_calls_have_a_bound_of_their_own() {
        let shim = Shim::default();
        let mut dispatcher = dispatcher(&shim);
        for _ in 0..2 {
            dispatcher.begin(SAMPLED, "", None);
            for _ in 0..=LINKED_SPANS_PER_INVOCATION {
                if let Some(spans) = dispatcher.enter_linked() {
                    dispatcher.leave(spans, ended(None, "b"), 0);
                }
            }
            assert!(dispatcher.open_span().is_some(), "other calls still have spans");
            dispatcher.flush();
            let (spans, dropped) = shim.take();
            assert_eq!((spans.len(), dropped), (2 * LINKED_SPANS_PER_INVOCATION as usize, 1));
        }
    }

    #[test]
    fn without_a_recorded_trace_there_is_nothing() {
        let shim = Shim::default();
        let mut dispatcher = dispatcher(&shim);
        for traceparent in ["", &SAMPLED.replace("-01", "-00")] {
            dispatcher.begin(traceparent, "", None);
            assert!(!dispatcher.is_traced() && dispatcher.traceparent().is_none());
            assert!(dispatcher.enter_embedded().is_none() && dispatcher.enter_linked().is_none());
        }
        dispatcher.flush();
        assert_eq!(shim.take(), (Vec::new(), 0));
    }
}
