//! Calls that are started and waited for later: many at a time, in the one thread that a guest has.
//!
//! A call that is started is on its way when [`Dispatcher::start`] returns; its answer is taken in while the worker
//! waits for anything. Whatever goes wrong after the start is that call's end, so that a fan-out sees every branch.

use std::rc::Rc;
use std::time::Instant;

use super::call::{ATTEMPTS_MAX, Dispatcher, Invocation, Resolve, check, keeps_route};
use super::exchange::{counted, timeout};
use super::flights::{Flight, Kept, KeptJoin, State, Ticket};
use super::links::LinkId;
use crate::modes::{Call, CallError, Join, Outgoing, Payload};
use crate::sys::clock::monotonic_ns;
use crate::sys::random::bytes16;
use crate::sys::seqpacket::Deadline;
use crate::wire::ids::CallId;

/// A guest that starts many calls before it waits has what came taken in after each so many.
const STARTS_PER_LOOK: u32 = 32;

/// Too many calls are in flight; nothing was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many calls are in flight")]
pub struct TooMany;

impl<R: Resolve> Dispatcher<R> {
    /// Calls `target` with `payload`, at most until `deadline` (the invocation's own), and does not wait: the payload
    /// is the caller's again when this returns.
    ///
    /// # Errors
    /// When [`cwasi_abi::CALLS_IN_FLIGHT_MAX`] calls are in flight. Every other error is the call's end.
    pub fn start(
        &mut self,
        target: &str,
        payload: Outgoing<'_>,
        join: Option<Join<'_>>,
        deadline: Deadline,
    ) -> Result<Ticket, TooMany> {
        self.started = self.started.wrapping_add(1);
        if self.started.is_multiple_of(STARTS_PER_LOOK) {
            // Answers that nobody takes keep callees' workers waiting.
            let _nothing_came = self.listen(Some(0), None);
        }
        if self.flights.is_full() {
            self.make_room();
        }
        if self.flights.is_full() {
            return Err(TooMany);
        }
        let kept = check(target, payload.len(), self.settings.max_payload).and_then(|()| {
            let lost = |error| CallError::Internal { message: format!("payload: {error}") };
            let lender = self.local.lender().filter(|_| self.links.lends(target));
            self.flights.keep(payload, lender).map_err(lost)
        });
        let (kept, refused) = match kept {
            Ok(kept) => (kept, None),
            Err(error) => (Kept::Bytes(Vec::new()), Some(error)),
        };
        let ticket = self.flights.insert(Flight {
            id: CallId(bytes16()),
            target: target.into(),
            payload: kept,
            join: join.map(KeptJoin::from),
            deadline: self.deadline(deadline),
            started: Instant::now(),
            request_bytes: payload.len(),
            attempt: 1,
            avoid: Vec::new(),
            served: None,
            forgotten: false,
            state: State::Due,
        });
        match refused {
            Some(error) => self.end_flight(ticket, Err(error)),
            None => self.launch_due(),
        }
        self.flush_now_and_then();
        Ok(ticket)
    }

    /// Waits until one of the calls has ended, at most until `until`, and gives back the first of `tickets` that has;
    /// `None` when there is none, and then all are as they were. An ended call's ticket is good no more.
    pub fn wait(
        &mut self,
        tickets: &[Ticket],
        until: Deadline,
    ) -> Option<(usize, Result<Payload, CallError>)> {
        let mut first = None;
        loop {
            self.launch_due();
            if let Some(taken) = self.take_first(tickets) {
                return Some(taken);
            }
            let first = match first {
                Some(first) => first,
                None => *first.insert(self.first_deadline(tickets)?),
            };
            let stop = until.map_or(first, |until| until.min(first));
            match self.listen(Some(stop), None) {
                Ok(true) => {}
                Ok(false) => {
                    let now = monotonic_ns();
                    if !self.expire(tickets, now) && until.is_some_and(|until| until <= now) {
                        return None;
                    }
                }
                // Nobody can be waited for.
                Err(error) => {
                    for ticket in tickets {
                        self.give_up(*ticket, error.clone());
                    }
                }
            }
        }
    }

    /// The first of `tickets` that is over.
    fn take_first(&mut self, tickets: &[Ticket]) -> Option<(usize, Result<Payload, CallError>)> {
        if !self.flights.any_ended() {
            return None;
        }
        let mut tickets = tickets.iter().enumerate();
        tickets.find_map(|(index, ticket)| Some((index, self.flights.take(*ticket)?)))
    }

    fn first_deadline(&self, tickets: &[Ticket]) -> Option<u64> {
        let flights = tickets.iter().filter_map(|ticket| self.flights.get(*ticket));
        flights.map(|flight| flight.deadline).min()
    }

    /// Nobody wants to know the end of this call; what has not been sent is not.
    pub fn forget(&mut self, ticket: Ticket) {
        let Some(flight) = self.flights.get_mut(ticket) else { return };
        flight.forgotten = true;
        match flight.state {
            State::Ended(_) => drop(self.flights.take(ticket)),
            State::Due => {
                let error = timeout(&flight.target);
                self.give_up(ticket, error);
            }
            State::Out(_) => {}
        }
    }

    /// The invocation is over: calls in flight are given up. Connections that their answers would come over are
    /// closed, and with them the requests end that still wait at their callee.
    pub fn end(&mut self) {
        if self.flights.is_empty() {
            return;
        }
        self.links.close_busy();
        for flight in self.flights.clear() {
            if !matches!(flight.state, State::Ended(_)) {
                self.edges.count(counted(&flight, None));
            }
        }
    }

    /// Ends the calls that nobody waits for.
    fn make_room(&mut self) {
        // Whether there is room now is asked next.
        let _nothing_came = self.listen(Some(0), None);
        let now = monotonic_ns();
        let forgotten = self.flights.forgotten_until(now);
        self.expire(&forgotten, now);
    }

    /// Ends those calls whose deadline is not after `now`; false when there are none.
    fn expire(&mut self, tickets: &[Ticket], now: u64) -> bool {
        let mut expired = false;
        for ticket in tickets {
            let Some(flight) = self.flights.get(*ticket) else { continue };
            if flight.deadline <= now && !matches!(flight.state, State::Ended(_)) {
                let error = timeout(&flight.target);
                self.give_up(*ticket, error);
                expired = true;
            }
        }
        expired
    }

    /// Sends every call that is due.
    fn launch_due(&mut self) {
        while let Some((ticket, mut flight)) = self.flights.next_due() {
            let sent = self.launch(&mut flight);
            self.flights.put_back(ticket, flight);
            match sent {
                Ok(link) => self.flights.out(ticket, link),
                Err(error) => self.end_flight(ticket, Err(error)),
            }
        }
    }

    /// Sends one call, to another instance as long as none certainly accepted it.
    fn launch(&mut self, flight: &mut Flight) -> Result<LinkId, CallError> {
        let invocation = Rc::clone(&self.invocation);
        let Invocation { traceparent, run } = &*invocation;
        let deadline = Some(flight.deadline);
        loop {
            let link = self.link(&flight.target, &flight.avoid, deadline)?;
            if let Some(route) = self.links.route(link) {
                flight.served = Some((route.mode(), route.reason().to_owned()));
            }
            let call = Call {
                id: flight.id,
                target: &flight.target,
                payload: flight.payload.outgoing(),
                deadline,
                traceparent,
                attempt: flight.attempt,
                run: *run,
                join: flight.join.as_ref().map(KeptJoin::as_join),
            };
            let Err(error) = self.send(link, &call) else {
                self.links.sent(link);
                return Ok(link);
            };
            if !keeps_route(&error) {
                flight.avoid.extend(self.links.retire(link));
            }
            if !error.not_accepted() || flight.attempt >= ATTEMPTS_MAX {
                return Err(error);
            }
            flight.attempt += 1;
        }
    }
}
