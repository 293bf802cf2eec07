//! Sends requests and receives answers over a worker's connections. Runs in a worker.
//!
//! Answers arrive in any order. A waiting call also receives earlier answers: an answer of another call in flight is
//! kept for that call, an answer of a given-up call is dropped.

use std::time::Duration;

use cwasi_modes::causes::{Break, Unreached};
use cwasi_modes::local::{LocalMode, ReceivedAnswer};
use cwasi_modes::{CallError, OutgoingCall, OutgoingPayload, Payload};
use cwasi_sys::clock::{Deadline, monotonic_ns};

use super::call::{
    ATTEMPTS_MAX, Dispatcher, Resolve, ResolvedRoute, RouteQuery, errno_of, keeps_route,
    length_or_kind,
};
use super::edges::{EdgeCounters, EndedCall, NO_ROUTE};
use super::links::{LinkId, Pick};
use super::pending_calls::{CallState, CallTicket, PendingCall};
use super::spans::CallSpans;
use cwasi_wire::trace::SpanKind;

/// Wait after a call's deadline for the callee's to say why it is late.
const REASON_WAIT: Duration = Duration::from_millis(50);
/// Pauses between two tries to send while this user's processes have too many descriptors in flight.
const DESCRIPTORS_PAUSE_MIN: Duration = Duration::from_millis(1);
const DESCRIPTORS_PAUSE_MAX: Duration = Duration::from_millis(64);
/// Most answers from one connection before other connections have their turn.
const MESSAGES_PER_TURN: usize = cwasi_abi::CALLS_IN_FLIGHT_MAX;

impl<R: Resolve> Dispatcher<R> {
    /// The connection for a call of `target`: one to the caller's own group if that has an instance, and an idle one
    /// if there is an idle instance.
    pub(super) fn link(
        &mut self,
        target: &str,
        avoid: &[String],
        deadline: Option<Deadline>,
    ) -> Result<LinkId, CallError> {
        let (spare, held, nearer) = match self.links.pick(target) {
            Pick::Take(link) => return Ok(link),
            Pick::Busy(link) => (Some(link), self.links.held(target), false),
            Pick::Far(link) => (Some(link), self.links.held(target), true),
            Pick::Unknown => (None, Vec::new(), false),
        };
        let query = RouteQuery { target, avoid, held: &held, nearer };
        match (self.resolver.resolve(&query, deadline), spare) {
            (Ok(ResolvedRoute { route: Some(route), instances }), _) => {
                Ok(self.links.add(target, route, instances))
            }
            // No other instance, or none that accepts a connection: use the known ones for a while.
            (_, Some(spare)) => {
                if nearer {
                    self.links.looked(target);
                } else {
                    self.links.count(target, held.len());
                }
                Ok(spare)
            }
            (Err(error), None) => Err(error),
            (Ok(ResolvedRoute { route: None, .. }), None) => Err(CallError::Internal {
                message: format!("the shim returned no route to {target}"),
            }),
        }
    }

    /// Sends a call and waits for its end.
    pub(super) fn exchange(
        &mut self,
        link: LinkId,
        call: &OutgoingCall<'_>,
    ) -> Result<Payload, CallError> {
        self.send(link, call)?;
        self.links.sent(link);
        let mut until = call.deadline;
        let ended = loop {
            let Some(route) = self.links.route(link) else { break Err(closed(call.target)) };
            match self.local.receive(route.connection(), call.target, until) {
                Ok(Some(answer)) if answer.id == call.id => break answer.result,
                Ok(Some(answer)) => self.accept_answer(link, answer),
                // The callee's init has the same deadline, and may report why it passed.
                Ok(None) if until == call.deadline => {
                    until = until.map(|deadline| deadline.plus(REASON_WAIT));
                }
                Ok(None) => break Err(timeout(call.target)),
                Err(error) => {
                    self.lose(link, &error);
                    return Err(error);
                }
            }
        };
        self.links.done(link);
        ended
    }

    /// Sends a request. Receives answers while it waits for room, because the callee may wait for room for them.
    pub(super) fn send(&mut self, link: LinkId, call: &OutgoingCall<'_>) -> Result<(), CallError> {
        let route = self.links.route(link).ok_or_else(|| unreachable(call.target))?;
        let copy = self.local.copy(route.connection(), call)?;
        let payload = copy.as_ref().map_or(call.payload, OutgoingPayload::from);
        let mut pause = DESCRIPTORS_PAUSE_MIN;
        loop {
            let Some(route) = self.links.route(link) else { return Err(unreachable(call.target)) };
            let route = route.connection();
            let lacks_descriptors =
                match self.local.send(route, call, payload, Some(Deadline::PASSED)) {
                    Ok(true) => return Ok(()),
                    Ok(false) => LocalMode::lacks_descriptors(route, payload),
                    Err(error) => {
                        if matches!(error, CallError::Unreachable { .. }) {
                            self.lose(link, &closed(call.target));
                        }
                        return Err(error);
                    }
                };
            if call.deadline.is_some_and(|deadline| deadline.has_passed(monotonic_ns())) {
                return Err(timeout(call.target));
            }
            if lacks_descriptors {
                let until = Deadline::after(pause);
                let until = call.deadline.map_or(until, |deadline| deadline.min(until));
                self.listen(Some(until), None)?;
                pause = DESCRIPTORS_PAUSE_MAX.min(2 * pause);
            } else {
                self.listen(call.deadline, Some(link))?;
            }
        }
    }

    /// Waits until `until` for answers, or for room on `room`, and receives the answers. False if there was none.
    pub(super) fn listen(
        &mut self,
        until: Option<Deadline>,
        room: Option<LinkId>,
    ) -> Result<bool, CallError> {
        let (links, routes): (Vec<_>, Vec<_>) = self.links.busy().into_iter().unzip();
        let room = room.and_then(|link| self.links.route(link)).map(|route| route.connection());
        let ready = LocalMode::wait(&routes, room, until)?;
        for index in &ready {
            self.take_in(links[*index]);
        }
        Ok(!ready.is_empty())
    }

    /// Receives every waiting answer of a connection.
    fn take_in(&mut self, link: LinkId) {
        if let Err(error) = self.take_answers(link) {
            self.lose(link, &error);
            self.links.retire(link);
        }
    }

    fn take_answers(&mut self, link: LinkId) -> Result<(), CallError> {
        let Some(target) = self.links.target(link) else { return Ok(()) };
        for _ in 0..MESSAGES_PER_TURN {
            let Some(route) = self.links.route(link) else { return Ok(()) };
            match self.local.receive(route.connection(), &target, Some(Deadline::PASSED))? {
                Some(answer) => self.accept_answer(link, answer),
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Handles an answer; its call may have been given up.
    fn accept_answer(&mut self, link: LinkId, answer: ReceivedAnswer) {
        let Some(ticket) = self.pending.answered(answer.id, link) else { return };
        let mut again = false;
        if let Err(error) = &answer.result
            && let Some(pending) = self.pending.get_mut(ticket)
        {
            if !keeps_route(error) {
                pending.avoid.extend(self.links.retire(link));
            }
            again = error.not_accepted() && !pending.forgotten && pending.attempt < ATTEMPTS_MAX;
            pending.attempt += u32::from(again);
        }
        self.links.done(link);
        if again {
            self.pending.again(ticket);
        } else {
            self.end_call(ticket, answer.result);
        }
    }

    /// Handles a lost connection. Answers that arrived before count. Other calls over it end with an unknown result.
    fn lose(&mut self, link: LinkId, error: &CallError) {
        // The connection has failed already; a second error does not matter.
        let _failed = self.take_answers(link);
        for ticket in self.pending.out_on(link) {
            self.end_call(ticket, Err(error.clone()));
        }
        self.links.lost(link);
    }

    /// Ends a call in flight.
    pub(super) fn end_call(&mut self, ticket: CallTicket, ended: Result<Payload, CallError>) {
        if let Some(pending) = self.pending.get(ticket) {
            let response_bytes = length_or_kind(ended.as_ref().map(Payload::len));
            let tracestate = &self.invocation.tracestate;
            let spans = CallSpans { recorder: &self.spans, tracestate };
            count(&mut self.edges, spans, pending, response_bytes, errno_of(&ended));
        }
        self.pending.end(ticket, ended);
    }

    /// Ends a call in flight without its answer.
    pub(super) fn give_up(&mut self, ticket: CallTicket, error: CallError) {
        if let Some(CallState::Out(link)) = self.pending.get(ticket).map(|pending| &pending.state) {
            self.links.done(*link);
        }
        self.end_call(ticket, Err(error));
    }
}

/// Counts a call in flight that ends, and ends its span.
pub(super) fn count(
    edges: &mut EdgeCounters,
    spans: CallSpans<'_>,
    pending: &PendingCall,
    response_bytes: Result<u64, &'static str>,
    errno: i32,
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
    spans.close(pending.span, SpanKind::Client, ended, errno);
}

pub(super) fn timeout(target: &str) -> CallError {
    CallError::Timeout { target: target.to_owned() }
}

fn unreachable(target: &str) -> CallError {
    CallError::Unreachable { target: target.to_owned(), cause: Unreached::Closed }
}

fn closed(target: &str) -> CallError {
    CallError::Broken { target: target.to_owned(), cause: Break::Closed }
}
