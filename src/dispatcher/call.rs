//! What a guest's code does with calls (paper Algorithms 2 and 4): start, wait, drop, emit. Runs in a worker.
//!
//! [`Dispatcher::start`] returns after the call was sent; [`Dispatcher::wait`] takes the end of one. The worker
//! receives answers during any wait. [`Dispatcher::call`] is both, and keeps no copy of the payload.
//!
//! Invariant: every error after the start is the end of that call, so a fan-out gets a result for every branch.

use std::time::Instant;

use cwasi_modes::pool::SegmentPool;
use cwasi_modes::{CallError, CallResult, CallTicket, OutgoingPayload, TooManyCalls};
use cwasi_sys::clock::{Deadline, monotonic_ns, pause};
use cwasi_wire::envelope::Join;
use cwasi_wire::ids::RunId;
use cwasi_wire::trace::TraceStart;

use super::edges::{EdgeCounters, EndedCall};
use super::exchange::{Exchange, NewCall};
use super::pacing::{PAUSE, Pacing};
use super::resolve::Resolve;
use super::settings::{Settings, timeout};
use super::spans::SpanRecorder;
use super::trace::{InvocationTrace, NestedSpans};

/// The request dispatcher of one worker.
#[derive(Debug)]
pub struct Dispatcher<R> {
    settings: Settings,
    resolver: R,
    exchange: Exchange,
    pacing: Pacing,
}

impl<R: Resolve> Dispatcher<R> {
    /// A dispatcher without routes.
    #[must_use]
    pub fn new(settings: Settings, resolver: R) -> Self {
        let exchange = Exchange::new(&settings.caller, settings.max_payload);
        Self { settings, resolver, exchange, pacing: Pacing::default() }
    }

    /// Records spans of traced calls in `spans`, as `start` says.
    #[must_use]
    pub fn recording(mut self, spans: SpanRecorder, start: TraceStart) -> Self {
        self.trace_mut().record(spans, start);
        self
    }

    /// Lends segments of `pool` to callees of the own trust group.
    #[must_use]
    pub fn lending(mut self, pool: Option<SegmentPool>) -> Self {
        self.exchange.connections.local.pool = pool;
        self
    }

    /// Begins an invocation. Its calls belong to this trace (empty = not traced) and to this run of the workflow.
    pub fn begin(&mut self, traceparent: &str, tracestate: &str, run: Option<RunId>) {
        self.trace_mut().begin(traceparent, tracestate, run);
    }

    /// Ends the invocation: drops all calls in flight.
    pub fn end(&mut self) {
        self.exchange.abandon_all();
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
        let request_bytes = payload.len();
        let checked = self.settings.check(target, request_bytes).map(|()| None);
        let deadline = self.settings.deadline(deadline);
        let call = NewCall { target, request_bytes, payload: checked, join: None, deadline };
        let ticket = self.exchange.insert(call);
        let ended = self.wait_for(&[ticket], None, Some(payload));
        self.report_when_due();
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
        if self.pacing.start() {
            // An error repeats itself when the guest waits.
            let _nothing_came = self.exchange.receive(Some(Deadline::PASSED));
        }
        if !self.exchange.has_room() {
            return Err(TooManyCalls);
        }
        let request_bytes = payload.len();
        let payload = self.settings.check(target, request_bytes).and_then(|()| {
            let lost = |error| CallError::Internal { message: format!("payload: {error}") };
            payload.keep(self.exchange.connections.lender(target)).map(Some).map_err(lost)
        });
        let deadline = self.settings.deadline(deadline);
        let call = NewCall { target, request_bytes, payload, join, deadline };
        let ticket = self.exchange.insert(call);
        self.exchange.send_due(&mut self.resolver, None);
        self.report_when_due();
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
        self.exchange.forget(ticket);
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
        let deadline = Some(self.settings.deadline(deadline));
        let telemetry = &mut self.exchange.telemetry;
        let span = telemetry.trace.open_message();
        let stored = self.settings.check(target, length).and_then(|()| {
            let own = span.map(|span| span.traceparent());
            let trace = telemetry.trace.context().headers(own.as_deref());
            self.resolver.emit(target, payload, trace, deadline)
        });
        let result = stored.as_ref().copied();
        telemetry.count_message(span, target, length, started.elapsed(), result);
        self.report_when_due();
        stored
    }

    /// The counters, for calls that need no route.
    pub const fn edges(&mut self) -> &mut EdgeCounters {
        &mut self.exchange.telemetry.edges
    }

    pub const fn trace(&self) -> &InvocationTrace {
        &self.exchange.telemetry.trace
    }

    /// The trace of the invocation, for calls inside the VM.
    pub const fn trace_mut(&mut self) -> &mut InvocationTrace {
        &mut self.exchange.telemetry.trace
    }

    /// Ends the spans of a call inside the VM.
    pub fn leave(&mut self, spans: NestedSpans, ended: EndedCall<'_>, errno: i32) {
        self.trace_mut().leave(spans, ended, errno);
        self.report_when_due();
    }

    /// Sends all metrics and spans to the shim, after each invocation.
    pub fn flush(&mut self) {
        self.exchange.telemetry.report(&mut self.resolver);
    }

    /// Sends the metrics and spans of a busy worker at intervals.
    fn report_when_due(&mut self) {
        self.exchange.telemetry.report_when_due(&mut self.resolver);
    }

    /// [`Self::wait`], during which `borrowed` is the payload of the call that has none of its own.
    fn wait_for(
        &mut self,
        tickets: &[CallTicket],
        until: Option<Deadline>,
        borrowed: Option<OutgoingPayload<'_>>,
    ) -> Option<(usize, CallResult)> {
        let many = Pacing::is_many(tickets.len());
        let mut first_end = None;
        loop {
            self.exchange.send_due(&mut self.resolver, borrowed);
            if let Some(taken) = self.exchange.take_first(tickets) {
                return Some(taken);
            }
            let first = match first_end {
                Some(first) => first,
                None => *first_end.insert(self.exchange.first_end(tickets)?),
            };
            let stop = until.map_or(first, |until| until.min(first));
            if many && self.pacing.answers_gather(stop, monotonic_ns()) {
                pause(PAUSE);
            }
            match self.exchange.receive(Some(stop)) {
                Ok(true) if many => self.pacing.answered(monotonic_ns()),
                Ok(true) => {}
                Ok(false) => {
                    let now = monotonic_ns();
                    if !self.exchange.expire(tickets, now)
                        && until.is_some_and(|until| until.has_passed(now))
                    {
                        return None;
                    }
                }
                // Waiting is impossible.
                Err(error) => {
                    for ticket in tickets {
                        self.exchange.give_up(*ticket, error.clone());
                    }
                }
            }
        }
    }
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
}
