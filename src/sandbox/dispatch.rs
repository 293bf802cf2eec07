//! The calls of one function, as the host functions make them: embedded and linked calls inside the VM, others through
//! the dispatcher. Runs in a worker.

use std::time::Duration;

use cwasi_abi::Errno;
use cwasi_host_functions::{Context, Dispatch, LinkEnded, StartedCall};

use cwasi_dispatcher::embedded::LinkedCall;
use cwasi_dispatcher::trace::NestedSpans;
use cwasi_dispatcher::{Dispatcher, EmbeddedCalls, Resolve};
use cwasi_modes::{CallError, CallResult, CallTicket, OutgoingPayload, TooManyCalls};
use cwasi_sys::clock::Deadline;
use cwasi_wire::envelope::Join;

/// The calls of one function, through its worker's dispatcher.
#[derive(Debug)]
pub struct FunctionCalls<R> {
    dispatcher: Dispatcher<R>,
    embedded: EmbeddedCalls,
    /// Of the running embedded call, if it is traced.
    spans: Option<NestedSpans>,
    /// The running linked calls of a recorded trace, outermost first. They run within the embedded call, if there is
    /// one.
    linked: Vec<TracedLink>,
}

/// A linked call of a recorded trace that runs.
#[derive(Debug)]
struct TracedLink {
    /// The calling embedded module; `None` for the function itself.
    caller: Option<String>,
    callee: String,
    /// `None` beyond the bound.
    spans: Option<NestedSpans>,
}

impl<R: Resolve> FunctionCalls<R> {
    /// Calls through `dispatcher`; embedded calls stay in the VM.
    #[must_use]
    pub const fn new(dispatcher: Dispatcher<R>, embedded: EmbeddedCalls) -> Self {
        Self { dispatcher, embedded, spans: None, linked: Vec::new() }
    }
}

impl<R: Resolve> FunctionCalls<R> {
    /// Ends the spans of the running embedded call, with `errno` if there is no response.
    fn end_spans(&mut self, response_len: Option<u64>, errno: Errno) {
        let Some(spans) = self.spans.take() else { return };
        if let Some(ended) = self.embedded.ended(response_len.ok_or(errno.name())) {
            let errno = if response_len.is_some() { 0 } else { errno.code() };
            self.dispatcher.leave(spans, ended, errno);
        }
    }

    /// Ends the spans of the linked calls that run: the guest stopped within them.
    fn abandon_linked(&mut self) {
        while let Some(TracedLink { caller, callee, spans }) = self.linked.pop() {
            let Some(spans) = spans else { continue };
            let (module, callee) = (caller.as_deref(), callee.as_str());
            let (request_bytes, response_bytes, latency) = (0, 0, Duration::ZERO);
            let stopped = LinkedCall { module, callee, request_bytes, response_bytes, latency };
            self.dispatcher.leave(spans, stopped.ended(), Errno::Trapped.code());
        }
    }
}

impl<R: Resolve> Dispatch for FunctionCalls<R> {
    fn call(
        &mut self,
        target: &str,
        payload: OutgoingPayload<'_>,
        deadline: Option<Deadline>,
    ) -> CallResult {
        self.dispatcher.call(target, payload, deadline)
    }

    fn start(
        &mut self,
        target: &str,
        payload: OutgoingPayload<'_>,
        join: Option<Join>,
        deadline: Option<Deadline>,
    ) -> Result<StartedCall, TooManyCalls> {
        self.dispatcher.start(target, payload, join, deadline).map(StartedCall::Pending)
    }

    fn wait(
        &mut self,
        calls: &[CallTicket],
        until: Option<Deadline>,
    ) -> Option<(usize, CallResult)> {
        self.dispatcher.wait(calls, until)
    }

    fn forget(&mut self, call: CallTicket) {
        self.dispatcher.forget(call);
    }

    fn emit(
        &mut self,
        target: &str,
        payload: &[u8],
        deadline: Option<Deadline>,
    ) -> Result<(), CallError> {
        self.dispatcher.emit(target, payload, deadline)
    }

    fn embedded(
        &mut self,
        target: &str,
        payload_len: u64,
        deadline: Option<Deadline>,
    ) -> Result<Option<usize>, CallError> {
        let has_span = self.dispatcher.trace().records_next();
        let counts = (has_span, &*self.dispatcher.edges());
        let begun = self.embedded.begin(target, payload_len, deadline, counts);
        if matches!(begun, Ok(Some(_))) {
            self.spans = self.dispatcher.trace_mut().enter_embedded();
        }
        begun
    }

    fn embedded_ended(&mut self, response_len: Option<u64>) -> Result<(), CallError> {
        self.end_spans(response_len, Errno::Failed);
        self.embedded.end(response_len, self.dispatcher.edges())
    }

    fn is_traced(&self) -> bool {
        self.dispatcher.trace().is_recorded()
    }

    fn records_linked(&self) -> bool {
        self.dispatcher.trace().records_linked()
    }

    fn traceparent(&self) -> Option<String> {
        self.dispatcher.trace().traceparent()
    }

    fn enter_linked(&mut self, caller: Option<&str>, callee: &str) {
        let spans = self.dispatcher.trace_mut().enter_linked();
        let (caller, callee) = (caller.map(str::to_owned), callee.to_owned());
        self.linked.push(TracedLink { caller, callee, spans });
    }

    fn linked(&mut self, caller: Option<&str>, callee: &str, ended: &LinkEnded) {
        let LinkEnded { request_bytes, response_bytes, latency, .. } = *ended;
        let call = LinkedCall { module: caller, callee, request_bytes, response_bytes, latency };
        let ended = call.ended();
        self.dispatcher.edges().count(ended);
        if let Some(TracedLink { spans: Some(spans), .. }) = self.linked.pop() {
            self.dispatcher.leave(spans, ended, 0);
        }
    }

    fn linked_directly(&mut self, caller: Option<&str>, callee: &str, calls: u32) {
        let (request_bytes, response_bytes, latency) = (0, 0, Duration::ZERO);
        let call = LinkedCall { module: caller, callee, request_bytes, response_bytes, latency };
        self.dispatcher.edges().count_untimed(call.ended(), u64::from(calls));
        self.dispatcher.trace().leave_out(calls);
    }

    fn begin(&mut self, context: &Context) {
        let Context { traceparent, tracestate, run, .. } = context;
        self.dispatcher.begin(traceparent, tracestate, *run);
    }

    fn end(&mut self) {
        self.abandon_linked();
        self.end_spans(None, Errno::Trapped);
        self.embedded.abandon(self.dispatcher.edges());
        self.dispatcher.end();
        self.dispatcher.flush();
    }
}
