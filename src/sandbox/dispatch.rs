//! Adapts the dispatcher to the trait of the host functions. Runs in a worker.

use std::time::Duration;

use cwasi_abi::Errno;
use cwasi_host_functions::{
    CallFailure, CallNumber, CallOutcome, Context, Deadline, Dispatch, Join, LinkEnded, Outgoing,
    Response, StartedCall, TooManyCalls,
};

use cwasi_dispatcher::embedded::LinkedCall;
use cwasi_dispatcher::nested_spans::NestedSpans;
use cwasi_dispatcher::{CallTicket, Dispatcher, EmbeddedCalls, Resolve, TooMany};
use cwasi_modes::{CallError, CallJoin, OutgoingPayload, Payload};
use cwasi_sys::segment::SegmentRef;
use cwasi_vm::ResponsePayload;
use cwasi_wire::ids::RunId;

/// The calls of one function, through its worker's dispatcher.
#[derive(Debug)]
pub struct FunctionCalls<R> {
    dispatcher: Dispatcher<R>,
    embedded: EmbeddedCalls,
    /// Of the running embedded call, if it is traced.
    spans: Option<NestedSpans>,
    /// The running linked calls of a recorded trace, outermost first. They run within the embedded call, if there is one.
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
        payload: Outgoing<'_>,
        deadline: Deadline,
    ) -> Result<Box<dyn Response>, CallFailure> {
        arrived(self.dispatcher.call(target, outgoing(payload), deadline.map(Into::into)))
    }

    fn start(
        &mut self,
        target: &str,
        payload: Outgoing<'_>,
        join: Option<Join<'_>>,
        deadline: Deadline,
    ) -> Result<StartedCall, TooManyCalls> {
        let join = join.map(|Join { key, parts, part }| CallJoin { key, parts, part });
        let deadline = deadline.map(Into::into);
        let started = self.dispatcher.start(target, outgoing(payload), join, deadline);
        let number = |ticket: CallTicket| StartedCall::Pending(CallNumber(ticket.0));
        started.map(number).map_err(|TooMany| TooManyCalls)
    }

    fn wait(&mut self, calls: &[CallNumber], until: Deadline) -> Option<(usize, CallOutcome)> {
        let tickets: Vec<_> = calls.iter().map(|number| CallTicket(number.0)).collect();
        let (index, ended) = self.dispatcher.wait(&tickets, until.map(Into::into))?;
        Some((index, arrived(ended)))
    }

    fn forget(&mut self, call: CallNumber) {
        self.dispatcher.forget(CallTicket(call.0));
    }

    fn emit(
        &mut self,
        target: &str,
        payload: &[u8],
        deadline: Deadline,
    ) -> Result<(), CallFailure> {
        let deadline = deadline.map(Into::into);
        self.dispatcher.emit(target, payload, deadline).map_err(|error| failure(&error))
    }

    fn embedded(
        &mut self,
        target: &str,
        payload_len: u64,
        deadline: Deadline,
    ) -> Result<Option<usize>, CallFailure> {
        let begun = self.embedded.begin(target, payload_len, deadline);
        if matches!(begun, Ok(Some(_))) {
            self.spans = self.dispatcher.enter_embedded();
        }
        begun.map_err(|error| failure(&error))
    }

    fn embedded_ended(&mut self, response_len: Option<u64>) -> Result<(), CallFailure> {
        self.end_spans(response_len, Errno::Failed);
        let ended = self.embedded.end(response_len, self.dispatcher.edges());
        ended.map_err(|error| failure(&error))
    }

    fn is_traced(&self) -> bool {
        self.dispatcher.is_traced()
    }

    fn traceparent(&self) -> Option<String> {
        self.dispatcher.traceparent()
    }

    fn enter_linked(&mut self, caller: Option<&str>, callee: &str) {
        let spans = self.dispatcher.enter_linked();
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

    fn begin(&mut self, context: &Context) {
        let Context { traceparent, tracestate, run, .. } = context;
        self.dispatcher.begin(traceparent, tracestate, run.map(RunId));
    }

    fn end(&mut self) {
        self.abandon_linked();
        self.end_spans(None, Errno::Trapped);
        self.embedded.abandon(self.dispatcher.edges());
        self.dispatcher.end();
        self.dispatcher.flush();
    }
}

fn outgoing(payload: Outgoing<'_>) -> OutgoingPayload<'_> {
    match payload {
        Outgoing::Bytes(bytes) => OutgoingPayload::Bytes(bytes),
        // Sealed or lent by this worker (`wasmedge::memory`).
        Outgoing::Sealed { fd, len, token } => {
            OutgoingPayload::Segment(SegmentRef::of_known(fd, len, token))
        }
    }
}

fn arrived(ended: Result<Payload, CallError>) -> CallOutcome {
    match ended {
        Ok(payload) => Ok(Box::new(ResponsePayload(payload))),
        Err(error) => Err(failure(&error)),
    }
}

fn failure(error: &CallError) -> CallFailure {
    CallFailure { errno: error.errno(), message: error.to_string() }
}
