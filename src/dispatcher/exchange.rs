//! The calls in flight over a worker's connections: connect, send, receive, repeat, end. Runs in a worker.
//!
//! Invariants: each call ends exactly once, and is counted then. A call is repeated only if the previous attempt
//! certainly did not run.

use std::time::Instant;

use cwasi_modes::local::ReceivedAnswer;
use cwasi_modes::{CallError, CallResult, CallTicket, OutgoingCall, OutgoingPayload, Payload};
use cwasi_sys::clock::{Deadline, monotonic_ns};
use cwasi_sys::random::bytes16;
use cwasi_wire::envelope::{Join, Path};
use cwasi_wire::ids::CallId;

use super::attempts::{Attempts, keeps_connection};
use super::connections::{Arrival, Connections};
use super::links::LinkId;
use super::pending_calls::{CallState, PendingCall, PendingCalls};
use super::resolve::Resolve;
use super::settings::timeout;
use super::telemetry::Telemetry;

/// A worker's calls in flight.
#[derive(Debug)]
pub(super) struct Exchange {
    pub connections: Connections,
    pub telemetry: Telemetry,
    pending: PendingCalls,
}

/// A call to send.
pub(super) struct NewCall<'a> {
    pub target: &'a str,
    pub request_bytes: u64,
    /// `None` if the payload is borrowed by [`Exchange::send_due`]; an error ends the call.
    pub payload: Result<Option<Payload>, CallError>,
    pub join: Option<Join>,
    pub deadline: Deadline,
}

impl Exchange {
    /// No calls and no connections. Calls are of `caller`; responses of at most `max_response` bytes are taken.
    pub fn new(caller: &str, max_response: u64) -> Self {
        Self {
            connections: Connections::new(max_response),
            telemetry: Telemetry::new(caller),
            pending: PendingCalls::default(),
        }
    }

    /// Adds a call to be sent; one whose payload cannot be sent has ended.
    pub fn insert(&mut self, call: NewCall<'_>) -> CallTicket {
        let (payload, refused) = match call.payload {
            Ok(payload) => (payload, None),
            Err(error) => (None, Some(error)),
        };
        let ticket = self.pending.insert(PendingCall {
            id: CallId(bytes16()),
            target: call.target.into(),
            payload,
            join: call.join,
            deadline: call.deadline,
            started: Instant::now(),
            request_bytes: call.request_bytes,
            attempts: Attempts::default(),
            served: None,
            path: Path::PATH_NONE,
            span: self.telemetry.trace.open(),
            forgotten: false,
            state: CallState::Due,
        });
        if let Some(error) = refused {
            self.end_call(ticket, Err(error));
        }
        ticket
    }

    /// True if there is room for another call, after dropped calls that have ended were removed.
    pub fn has_room(&mut self) -> bool {
        if self.pending.is_full() {
            // The check below says whether anything came.
            let _nothing_came = self.receive(Some(Deadline::PASSED));
            let now = monotonic_ns();
            let forgotten = self.pending.forgotten_until(now);
            self.expire(&forgotten, now);
        }
        !self.pending.is_full()
    }

    /// Sends all calls that are due, each until an instance may have accepted it; `borrowed` is the payload of the call
    /// that has none of its own. A missing route ends a call: the shim has waited for one.
    pub fn send_due(&mut self, resolver: &mut impl Resolve, borrowed: Option<OutgoingPayload<'_>>) {
        while let Some(ticket) = self.pending.next_due() {
            match self.connect(resolver, ticket) {
                Ok(link) => match self.send(ticket, link, borrowed) {
                    Ok(()) => self.pending.out(ticket, link),
                    Err(error) => self.end_attempt(ticket, Err(error)),
                },
                Err(error) => self.end_call(ticket, Err(error)),
            }
            self.process_arrivals();
        }
    }

    /// Waits until `until` for answers. False if there was none.
    pub fn receive(&mut self, until: Option<Deadline>) -> Result<bool, CallError> {
        let received = self.connections.receive(until);
        self.process_arrivals();
        received
    }

    /// Takes the first ended call of `tickets`.
    pub fn take_first(&mut self, tickets: &[CallTicket]) -> Option<(usize, CallResult)> {
        if !self.pending.any_ended() {
            return None;
        }
        let mut tickets = tickets.iter().enumerate();
        tickets.find_map(|(index, ticket)| Some((index, self.pending.take(*ticket)?)))
    }

    /// When the first of `tickets` ends without an answer.
    pub fn first_end(&self, tickets: &[CallTicket]) -> Option<Deadline> {
        let pending_calls = tickets.iter().filter_map(|ticket| self.pending.get(*ticket));
        pending_calls.map(PendingCall::ends).min()
    }

    /// Ends the calls that end without an answer at `now`; false if there are none.
    pub fn expire(&mut self, tickets: &[CallTicket], now: u64) -> bool {
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

    /// Ends a call without its answer.
    pub fn give_up(&mut self, ticket: CallTicket, error: CallError) {
        if let Some(CallState::Out(link)) = self.pending.get(ticket).map(|pending| &pending.state) {
            self.connections.done(*link);
        }
        self.end_call(ticket, Err(error));
    }

    /// Drops all calls and closes their connections, which also removes their requests from the callees' queues.
    pub fn abandon_all(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        self.connections.close_busy();
        for pending in self.pending.clear() {
            if !matches!(pending.state, CallState::Ended(_)) {
                self.telemetry.count_abandoned(&pending);
            }
        }
    }

    /// The connection for a call.
    fn connect(
        &mut self,
        resolver: &mut impl Resolve,
        ticket: CallTicket,
    ) -> Result<LinkId, CallError> {
        let pending = self.pending.get_mut(ticket).ok_or_else(lost)?;
        let (target, avoid) = (&*pending.target, pending.attempts.avoid());
        let deadline = Some(pending.deadline);
        let link = self.connections.connect(resolver, target, avoid, deadline)?;
        pending.served = self.connections.mode(link);
        pending.path = Path::PATH_NONE;
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
        let context = self.telemetry.trace.context();
        let own = pending.span.map(|span| span.traceparent());
        let call = OutgoingCall {
            id: pending.id,
            target: &pending.target,
            payload,
            deadline: Some(pending.deadline),
            trace: context.headers(own.as_deref()),
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
        // Calls that stay on their host are spared the look-up.
        if answer.path != Path::PATH_NONE
            && let Some(pending) = self.pending.get_mut(ticket)
        {
            pending.path = answer.path;
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
            self.telemetry.count_call(pending, result.as_ref().map(Payload::len));
        }
        self.pending.end(ticket, result);
    }
}

/// The error of a call that should be in the table.
fn lost() -> CallError {
    CallError::Internal { message: "a call was lost before it was sent".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_ends_a_while_after_its_deadline_so_that_its_callee_can_say_why() {
        let (mut exchange, deadline) = (Exchange::new("a", 1), Deadline::at_ns(1_000));
        let (payload, join) = (Ok(None), None);
        let call = NewCall { target: "b", request_bytes: 1, payload, join, deadline };
        let calls = [exchange.insert(call)];
        assert!(!exchange.expire(&calls, 1_000) && exchange.take_first(&calls).is_none());
        let end = exchange.first_end(&calls).unwrap();
        assert!(end > deadline && exchange.expire(&calls, end.as_ns()));
        let ended = exchange.take_first(&calls);
        assert!(matches!(ended, Some((0, Err(CallError::Timeout { .. })))), "{ended:?}");
    }
}
