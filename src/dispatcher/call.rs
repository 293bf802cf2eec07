//! The life of a call in the caller's worker (paper Algorithms 2 and 4): check, connect, send, receive, count. Runs in a
//! worker.
//!
//! [`Dispatcher::start`] returns after the call was sent; [`Dispatcher::wait`] takes the end of one. The worker receives
//! answers during any wait. [`Dispatcher::call`] is both, and keeps no copy of the payload.
//!
//! Invariants: each call ends exactly once. A call is repeated only if the previous attempt certainly did not run. Every
//! error after the start is the end of that call, so a fan-out gets a result for every branch.

use std::time::{Duration, Instant};

use cwasi_abi::{FUNCTION_NAME_MAX, PAYLOAD_MAX};

use cwasi_modes::causes::Invalid;
use cwasi_modes::local::ReceivedAnswer;
use cwasi_modes::{
    CallError, CallResult, CallTicket, OutgoingCall, OutgoingPayload, Payload, TooManyCalls,
};
use cwasi_sys::clock::{Deadline, monotonic_ns, pause};
use cwasi_sys::pool::SegmentPool;
use cwasi_sys::random::bytes16;
use cwasi_wire::envelope::Join;
use cwasi_wire::ids::{CallId, RunId};
use cwasi_wire::trace::{SpanKind, TraceStart};
use cwasi_wire::trace_headers::TraceHeaders;

use super::attempts::{Attempts, keeps_connection};
use super::connections::{Arrival, Connections};
use super::edges::{ABANDONED, EMIT, EMIT_REASON, EdgeCounters, EndedCall, NO_ROUTE};
use super::links::LinkId;
use super::pending_calls::{CallState, PendingCall, PendingCalls};
use super::resolve::Resolve;
use super::spans::{OpenSpan, SpanRecorder};
use super::trace::{InvocationTrace, NestedSpans};

/// Default deadline of a call in milliseconds, when neither the caller nor the deployment gives one.
pub const DEFAULT_TIMEOUT_MS: u64 = 60_000;
/// Longest time between two reports of a busy worker.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Number of starts after which a guest that does not wait receives its answers.
const STARTS_PER_RECEIVE: u32 = 32;

/// A caller that waits for so many calls takes their answers together: each one would wake it, often on the processor
/// on which the callee runs the next call.
const MANY: usize = 8;
/// It does so while its last answer is not older than this, in nanoseconds.
const FAST_NS: u64 = 100_000;
/// How long it sleeps before it receives; the kernel adds up to 50 µs.
const PAUSE: Duration = Duration::from_micros(20);

/// The dispatcher's settings for its function.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The caller's function name.
    pub caller: String,
    /// Largest payload and response in bytes.
    pub max_payload: u64,
    /// Longest wait of a call in milliseconds.
    pub timeout_ms: u64,
}

/// The request dispatcher of one worker.
#[derive(Debug)]
pub struct Dispatcher<R> {
    settings: Settings,
    resolver: R,
    connections: Connections,
    pending: PendingCalls,
    trace: InvocationTrace,
    edges: EdgeCounters,
    reported: Instant,
    /// Number of started calls.
    started: u32,
    /// When one of many calls was answered last.
    last_answer_ns: u64,
}

impl<R: Resolve> Dispatcher<R> {
    /// A dispatcher without routes.
    #[must_use]
    pub fn new(settings: Settings, resolver: R) -> Self {
        let connections = Connections::new(settings.max_payload);
        let edges = EdgeCounters::new(&settings.caller);
        let recorder = SpanRecorder::default();
        let trace = InvocationTrace::new(&settings.caller, recorder, TraceStart::UNSAMPLED);
        Self {
            settings,
            resolver,
            connections,
            pending: PendingCalls::default(),
            trace,
            edges,
            reported: Instant::now(),
            started: 0,
            last_answer_ns: 0,
        }
    }

    /// Records spans of traced calls in `spans`, as `start` says.
    #[must_use]
    pub fn recording(mut self, spans: SpanRecorder, start: TraceStart) -> Self {
        self.trace.record(spans, start);
        self
    }

    /// Lends segments of `pool` to callees of the own trust group.
    #[must_use]
    pub fn lending(mut self, pool: Option<SegmentPool>) -> Self {
        self.connections.local.pool = pool;
        self
    }

    /// Begins an invocation. Its calls belong to this trace (empty = not traced) and to this run of the workflow.
    pub fn begin(&mut self, traceparent: &str, tracestate: &str, run: Option<RunId>) {
        self.trace.begin(traceparent, tracestate, run);
    }

    /// Ends the invocation: drops all calls in flight and closes their connections, which also removes their requests
    /// from the callees' queues.
    pub fn end(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        self.connections.close_busy();
        for pending in self.pending.clear() {
            if !matches!(pending.state, CallState::Ended(_)) {
                let given_up: Result<(), _> = Err(timeout(&pending.target));
                count(&mut self.edges, &self.trace, &pending, Err(ABANDONED), &given_up);
            }
        }
    }

    /// Calls `target` with `payload` and waits for the end, at most until `deadline`, which is the invocation's own.
    ///
    /// # Errors
    /// One [`CallError`].
    pub fn call(
        &mut self,
        target: &str,
        payload: OutgoingPayload<'_>,
        deadline: Option<Deadline>,
    ) -> CallResult {
        let length = payload.len();
        let checked = self.check(target, length).map(|()| None);
        let ticket = self.insert(target, length, checked, None, deadline);
        let ended = self.wait_for(&[ticket], None, Some(payload));
        self.flush_now_and_then();
        ended.map_or_else(|| Err(timeout(target)), |(_, result)| result)
    }

    /// Starts a call of `target`, which ends at `deadline` (the invocation's own) at the latest, and does not wait
    /// for it. The caller may change the payload afterwards.
    ///
    /// # Errors
    /// When [`cwasi_abi::CALLS_IN_FLIGHT_MAX`] calls are in flight. Every other error is the call's end.
    pub fn start(
        &mut self,
        target: &str,
        payload: OutgoingPayload<'_>,
        join: Option<Join>,
        deadline: Option<Deadline>,
    ) -> Result<CallTicket, TooManyCalls> {
        self.started = self.started.wrapping_add(1);
        if self.started.is_multiple_of(STARTS_PER_RECEIVE) {
            // Untaken answers would delay the callees' workers.
            let _nothing_came = self.receive(Some(Deadline::PASSED));
        }
        if self.pending.is_full() {
            self.make_room();
        }
        if self.pending.is_full() {
            return Err(TooManyCalls);
        }
        let length = payload.len();
        let kept = self.check(target, length).and_then(|()| {
            let lost = |error| CallError::Internal { message: format!("payload: {error}") };
            payload.keep(self.connections.lender(target)).map(Some).map_err(lost)
        });
        let ticket = self.insert(target, length, kept, join, deadline);
        self.send_due(None);
        self.flush_now_and_then();
        Ok(ticket)
    }

    /// Waits for the end of one of the calls, at most until `until`. Returns the first of `tickets` that has ended;
    /// its ticket is then invalid. `None` changes nothing.
    pub fn wait(
        &mut self,
        tickets: &[CallTicket],
        until: Option<Deadline>,
    ) -> Option<(usize, CallResult)> {
        self.wait_for(tickets, until, None)
    }

    /// Drops a call; an unsent one is not sent.
    pub fn forget(&mut self, ticket: CallTicket) {
        let Some(pending) = self.pending.get_mut(ticket) else { return };
        pending.forgotten = true;
        match pending.state {
            CallState::Ended(_) => drop(self.pending.take(ticket)),
            CallState::Due => {
                let error = timeout(&pending.target);
                self.give_up(ticket, error);
            }
            CallState::Out(_) => {}
        }
    }

    /// Stores a message for `target`. After it returns, the message will be handled at least once.
    ///
    /// # Errors
    /// One [`CallError`]. After [`CallError::Broken`] and [`CallError::Timeout`], the message may be stored.
    pub fn emit(
        &mut self,
        target: &str,
        payload: &[u8],
        deadline: Option<Deadline>,
    ) -> Result<(), CallError> {
        let (started, length) = (Instant::now(), payload.len() as u64);
        let deadline = Some(self.deadline(deadline));
        let span = self.trace.open_message();
        let own = traceparent_of(span);
        let stored = self.check(target, length).and_then(|()| {
            let context = self.trace.context();
            let traceparent = own.as_deref().unwrap_or(&context.traceparent);
            let trace = TraceHeaders { traceparent, tracestate: &context.tracestate };
            self.resolver.emit(target, payload, trace, deadline)
        });
        let ended = EndedCall {
            module: None,
            callee: target,
            mode: EMIT,
            reason: EMIT_REASON,
            request_bytes: length,
            response_bytes: length_or_kind(stored.as_ref().map(|()| 0)),
            latency: started.elapsed(),
        };
        self.edges.count(ended);
        self.trace.close(span, SpanKind::Producer, ended, &stored);
        self.flush_now_and_then();
        stored
    }

    /// The counters, for calls that need no route.
    pub const fn edges(&mut self) -> &mut EdgeCounters {
        &mut self.edges
    }

    /// The trace of the invocation.
    pub const fn trace(&self) -> &InvocationTrace {
        &self.trace
    }

    /// The trace of the invocation, for calls inside the VM.
    pub const fn trace_mut(&mut self) -> &mut InvocationTrace {
        &mut self.trace
    }

    /// Ends the spans of a call inside the VM.
    pub fn leave(&mut self, spans: NestedSpans, ended: EndedCall<'_>, errno: i32) {
        self.trace.leave(spans, ended, errno);
        self.flush_now_and_then();
    }

    /// Sends all metrics and spans to the shim, after each invocation.
    pub fn flush(&mut self) {
        let reports = self.edges.take();
        if !reports.is_empty() {
            self.resolver.report(reports);
        }
        let spans = self.trace.recorder().take();
        if !spans.is_empty() {
            self.resolver.report_spans(spans);
        }
        self.reported = Instant::now();
    }

    /// Sends the metrics and spans of a busy worker at intervals.
    fn flush_now_and_then(&mut self) {
        if self.reported.elapsed() >= REPORT_INTERVAL || self.trace.recorder().fills_a_report() {
            self.flush();
        }
    }

    fn check(&self, target: &str, length: u64) -> Result<(), CallError> {
        check(target, length, self.settings.max_payload)
    }

    fn deadline(&self, invocation: Option<Deadline>) -> Deadline {
        let own = Deadline::after(Duration::from_millis(self.settings.timeout_ms));
        invocation.map_or(own, |invocation| invocation.min(own))
    }

    /// Adds a call to be sent; one whose payload cannot be sent has ended.
    fn insert(
        &mut self,
        target: &str,
        request_bytes: u64,
        payload: Result<Option<Payload>, CallError>,
        join: Option<Join>,
        deadline: Option<Deadline>,
    ) -> CallTicket {
        let (payload, refused) = match payload {
            Ok(payload) => (payload, None),
            Err(error) => (None, Some(error)),
        };
        let ticket = self.pending.insert(PendingCall {
            id: CallId(bytes16()),
            target: target.into(),
            payload,
            join,
            deadline: self.deadline(deadline),
            started: Instant::now(),
            request_bytes,
            attempts: Attempts::default(),
            served: None,
            span: self.trace.open(),
            forgotten: false,
            state: CallState::Due,
        });
        if let Some(error) = refused {
            self.end_call(ticket, Err(error));
        }
        ticket
    }

    /// [`Self::wait`], during which `borrowed` is the payload of the call that has none of its own.
    fn wait_for(
        &mut self,
        tickets: &[CallTicket],
        until: Option<Deadline>,
        borrowed: Option<OutgoingPayload<'_>>,
    ) -> Option<(usize, CallResult)> {
        let many = tickets.len() >= MANY;
        let mut first_end = None;
        loop {
            self.send_due(borrowed);
            if let Some(taken) = self.take_first(tickets) {
                return Some(taken);
            }
            let first = match first_end {
                Some(first) => first,
                None => *first_end.insert(self.first_end(tickets)?),
            };
            let stop = until.map_or(first, |until| until.min(first));
            if many && answers_gather(self.last_answer_ns, stop, monotonic_ns()) {
                pause(PAUSE);
            }
            match self.receive(Some(stop)) {
                Ok(true) if many => self.last_answer_ns = monotonic_ns(),
                Ok(true) => {}
                Ok(false) => {
                    let now = monotonic_ns();
                    if !self.expire(tickets, now)
                        && until.is_some_and(|until| until.has_passed(now))
                    {
                        return None;
                    }
                }
                // Waiting is impossible.
                Err(error) => {
                    for ticket in tickets {
                        self.give_up(*ticket, error.clone());
                    }
                }
            }
        }
    }

    /// The first ended call of `tickets`.
    fn take_first(&mut self, tickets: &[CallTicket]) -> Option<(usize, CallResult)> {
        if !self.pending.any_ended() {
            return None;
        }
        let mut tickets = tickets.iter().enumerate();
        tickets.find_map(|(index, ticket)| Some((index, self.pending.take(*ticket)?)))
    }

    /// When the first of `tickets` ends without an answer.
    fn first_end(&self, tickets: &[CallTicket]) -> Option<Deadline> {
        let pending_calls = tickets.iter().filter_map(|ticket| self.pending.get(*ticket));
        pending_calls.map(PendingCall::ends).min()
    }

    /// Removes dropped calls that have ended.
    fn make_room(&mut self) {
        // The caller checks for room next.
        let _nothing_came = self.receive(Some(Deadline::PASSED));
        let now = monotonic_ns();
        let forgotten = self.pending.forgotten_until(now);
        self.expire(&forgotten, now);
    }

    /// Ends the calls that end without an answer at `now`; false if there are none.
    fn expire(&mut self, tickets: &[CallTicket], now: u64) -> bool {
        let mut expired = false;
        for ticket in tickets {
            let Some(pending) = self.pending.get(*ticket) else { continue };
            if pending.ends().has_passed(now) && !matches!(pending.state, CallState::Ended(_)) {
                let error = timeout(&pending.target);
                self.give_up(*ticket, error);
                expired = true;
            }
        }
        expired
    }

    /// Sends all calls that are due, each until an instance may have accepted it. A missing route ends a call: the shim
    /// has waited for one.
    fn send_due(&mut self, borrowed: Option<OutgoingPayload<'_>>) {
        while let Some(ticket) = self.pending.next_due() {
            match self.connect(ticket) {
                Ok(link) => match self.send(ticket, link, borrowed) {
                    Ok(()) => self.pending.out(ticket, link),
                    Err(error) => self.end_attempt(ticket, Err(error)),
                },
                Err(error) => self.end_call(ticket, Err(error)),
            }
            self.process_arrivals();
        }
    }

    /// The connection for a call.
    fn connect(&mut self, ticket: CallTicket) -> Result<LinkId, CallError> {
        let pending = self.pending.get_mut(ticket).ok_or_else(lost)?;
        let (target, avoid) = (&*pending.target, pending.attempts.avoid());
        let deadline = Some(pending.deadline);
        let link = self.connections.connect(&mut self.resolver, target, avoid, deadline)?;
        pending.served = self.connections.mode(link);
        Ok(link)
    }

    /// Sends one call.
    fn send(
        &mut self,
        ticket: CallTicket,
        link: LinkId,
        borrowed: Option<OutgoingPayload<'_>>,
    ) -> Result<(), CallError> {
        let pending = self.pending.get_mut(ticket).ok_or_else(lost)?;
        let payload = pending.payload.as_ref().map(Payload::outgoing).or(borrowed);
        let payload = payload.ok_or_else(lost)?;
        let context = self.trace.context();
        let own = traceparent_of(pending.span);
        let traceparent = own.as_deref().unwrap_or(&context.traceparent);
        let call = OutgoingCall {
            id: pending.id,
            target: &pending.target,
            payload,
            deadline: Some(pending.deadline),
            trace: TraceHeaders { traceparent, tracestate: &context.tracestate },
            traced: pending.span.is_some(),
            attempt: pending.attempts.number(),
            run: context.run,
            join: pending.join.as_ref(),
        };
        let sent = self.connections.send(link, &call);
        if sent.as_ref().is_err_and(|error| !keeps_connection(error)) {
            pending.attempts.avoid_also(self.connections.retire(link));
        }
        sent
    }

    /// Waits until `until` for answers. False if there was none.
    fn receive(&mut self, until: Option<Deadline>) -> Result<bool, CallError> {
        let received = self.connections.receive(until);
        self.process_arrivals();
        received
    }

    fn process_arrivals(&mut self) {
        while let Some(arrival) = self.connections.next_arrival() {
            match arrival {
                Arrival::Answer(link, answer) => self.accept(link, answer),
                Arrival::Lost(link, error) => {
                    for ticket in self.pending.out_on(link) {
                        self.end_call(ticket, Err(error.clone()));
                    }
                    self.connections.retire(link);
                }
            }
        }
    }

    /// Takes an answer; its call may have been given up.
    fn accept(&mut self, link: LinkId, answer: ReceivedAnswer) {
        let Some(ticket) = self.pending.answered(answer.id, link) else { return };
        if let Err(error) = &answer.result
            && !keeps_connection(error)
        {
            let instance = self.connections.retire(link);
            if let Some(pending) = self.pending.get_mut(ticket) {
                pending.attempts.avoid_also(instance);
            }
        }
        self.connections.done(link);
        self.end_attempt(ticket, answer.result);
    }

    /// Ends an attempt: the call is repeated, or ends with it.
    fn end_attempt(&mut self, ticket: CallTicket, result: CallResult) {
        if let Err(error) = &result
            && let Some(pending) = self.pending.get_mut(ticket)
            && !pending.forgotten
            && pending.attempts.repeat_after(error)
        {
            self.pending.again(ticket);
        } else {
            self.end_call(ticket, result);
        }
    }

    fn end_call(&mut self, ticket: CallTicket, result: CallResult) {
        if let Some(pending) = self.pending.get(ticket) {
            let response_bytes = length_or_kind(result.as_ref().map(Payload::len));
            count(&mut self.edges, &self.trace, pending, response_bytes, &result);
        }
        self.pending.end(ticket, result);
    }

    /// Ends a call without its answer.
    fn give_up(&mut self, ticket: CallTicket, error: CallError) {
        if let Some(CallState::Out(link)) = self.pending.get(ticket).map(|pending| &pending.state) {
            self.connections.done(*link);
        }
        self.end_call(ticket, Err(error));
    }
}

/// Counts a call that ends, and ends its span.
fn count<T>(
    edges: &mut EdgeCounters,
    trace: &InvocationTrace,
    pending: &PendingCall,
    response_bytes: Result<u64, &'static str>,
    result: &Result<T, CallError>,
) {
    let served = pending.served.as_ref();
    let ended = EndedCall {
        module: None,
        callee: &pending.target,
        mode: served.map_or(NO_ROUTE, |(mode, _)| mode.name()),
        reason: served.map_or("", |(_, reason)| reason),
        request_bytes: pending.request_bytes,
        response_bytes,
        latency: pending.started.elapsed(),
    };
    edges.count(ended);
    trace.close(pending.span, SpanKind::Client, ended, result);
}

/// A response's length, or the error's kind for the metrics.
pub(super) fn length_or_kind(ended: Result<u64, &CallError>) -> Result<u64, &'static str> {
    ended.map_err(|error| error.errno().name())
}

/// The trace context that a call with a span passes on.
fn traceparent_of(span: Option<OpenSpan>) -> Option<String> {
    span.map(|span| span.context.to_string())
}

/// The error of a call that should be in the table.
fn lost() -> CallError {
    CallError::Internal { message: "a call was lost before it was sent".to_owned() }
}

fn timeout(target: &str) -> CallError {
    CallError::Timeout { target: target.to_owned() }
}

/// Checks that apply in every mode.
pub(super) fn check(target: &str, length: u64, max_payload: u64) -> Result<(), CallError> {
    let name = target.rsplit_once('/').map_or(target, |(_, name)| name);
    if name.is_empty() || name.len() > FUNCTION_NAME_MAX {
        return Err(Invalid::Name { target: target.to_owned() }.into());
    }
    let limit = max_payload.min(PAYLOAD_MAX);
    if length > limit {
        return Err(CallError::too_large(&format!("payload for {target}"), length, limit));
    }
    Ok(())
}

/// True when answers come faster than one after another can be waited for, and `stop` is not near.
const fn answers_gather(last_answer_ns: u64, stop: Deadline, now: u64) -> bool {
    let fast = now.saturating_sub(last_answer_ns) < FAST_NS;
    fast && !stop.has_passed(now.saturating_add(FAST_NS))
}

#[cfg(test)]
mod tests {
    use cwasi_modes::causes::Unreached;
    use cwasi_wire::control::EdgeReport;

    use super::*;
    use crate::resolve::{ResolvedRoute, RouteQuery};

    /// A shim without any route; counts the queries.
    struct NoRoute(u32);

    impl Resolve for NoRoute {
        fn resolve(
            &mut self,
            query: &RouteQuery<'_>,
            _deadline: Option<Deadline>,
        ) -> Result<ResolvedRoute, CallError> {
            self.0 += 1;
            let target = query.target.to_owned();
            Err(CallError::Unreachable { target, cause: Unreached::Closed })
        }

        fn report(&mut self, _reports: Vec<EdgeReport>) {}
    }

    #[test]
    fn a_missing_route_ends_the_call_and_is_asked_for_once() {
        let settings = Settings { caller: "a".to_owned(), max_payload: 10, timeout_ms: 60_000 };
        let mut dispatcher = Dispatcher::new(settings, NoRoute(0));
        let payload = OutgoingPayload::Bytes(b"x");
        let called = dispatcher.call("b", payload, None);
        assert!(matches!(called, Err(CallError::Unreachable { .. })), "{called:?}");
        let started = dispatcher.start("b", payload, None, None).unwrap();
        let ended = dispatcher.wait(&[started], None);
        assert!(matches!(ended, Some((0, Err(CallError::Unreachable { .. })))), "{ended:?}");
        assert_eq!(dispatcher.resolver.0, 2, "one query for each call");
    }

    #[test]
    fn answers_are_taken_together_while_they_come_fast() {
        let now = 1_000_000_000;
        let (just_now, far) = (now - FAST_NS + 1, Deadline::at_ns(now + FAST_NS + 1));
        assert!(answers_gather(just_now, far, now));
        for (last, stop) in [
            (now - FAST_NS, far),
            (0, far),
            (just_now, Deadline::at_ns(now + FAST_NS)),
            (just_now, Deadline::PASSED),
        ] {
            assert!(!answers_gather(last, stop, now), "{last} {stop:?}");
        }
    }
}
