//! Started calls: many at a time, in the guest's one thread. Runs in a worker.
//!
//! [`Dispatcher::start`] returns after the call was sent. The worker receives answers during any wait. Every error
//! after the start is the end of that call, so a fan-out gets a result for every branch.

use std::rc::Rc;
use std::time::{Duration, Instant};

use super::call::{
    ATTEMPTS_MAX, Dispatcher, InvocationContext, Resolve, check, errno_of, keeps_route,
    traceparent_of,
};
use super::edges::ABANDONED;
use super::exchange::{count, timeout};
use super::links::LinkId;
use super::pending_calls::{CallState, CallTicket, KeptPayload, OwnedJoin, PendingCall};
use super::spans::CallSpans;
use cwasi_modes::{CallError, CallJoin, OutgoingCall, OutgoingPayload, Payload};
use cwasi_sys::clock::{Deadline, monotonic_ns, pause};
use cwasi_sys::random::bytes16;
use cwasi_wire::ids::CallId;
use cwasi_wire::trace_headers::TraceHeaders;

/// Number of starts after which a guest that does not wait receives its answers.
const STARTS_PER_LOOK: u32 = 32;

/// A caller that waits for so many calls takes their answers together: each one would wake it, often on the processor
/// on which the callee runs the next call.
const MANY: usize = 8;
/// It does so while its last answer is not older than this, in nanoseconds.
const FAST_NS: u64 = 100_000;
/// How long it sleeps before it looks for answers; the kernel adds up to 50 µs.
const PAUSE: Duration = Duration::from_micros(20);

/// Too many calls are in flight; the call was not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many calls are in flight")]
pub struct TooMany;

impl<R: Resolve> Dispatcher<R> {
    /// Starts a call of `target`, which ends at `deadline` (the invocation's own) at the latest, and does not wait
    /// for it. The caller may change the payload afterwards.
    ///
    /// # Errors
    /// When [`cwasi_abi::CALLS_IN_FLIGHT_MAX`] calls are in flight. Every other error is the call's end.
    pub fn start(
        &mut self,
        target: &str,
        payload: OutgoingPayload<'_>,
        join: Option<CallJoin<'_>>,
        deadline: Option<Deadline>,
    ) -> Result<CallTicket, TooMany> {
        self.started = self.started.wrapping_add(1);
        if self.started.is_multiple_of(STARTS_PER_LOOK) {
            // Untaken answers would delay the callees' workers.
            let _nothing_came = self.listen(Some(Deadline::PASSED), None);
        }
        if self.pending.is_full() {
            self.make_room();
        }
        if self.pending.is_full() {
            return Err(TooMany);
        }
        let kept = check(target, payload.len(), self.settings.max_payload).and_then(|()| {
            let lost = |error| CallError::Internal { message: format!("payload: {error}") };
            let lender = self.local.pool.as_ref().filter(|_| self.links.lends(target));
            self.pending.keep(payload, lender).map_err(lost)
        });
        let (kept, refused) = match kept {
            Ok(kept) => (kept, None),
            Err(error) => (KeptPayload::Bytes(Vec::new()), Some(error)),
        };
        let span = self.open_span();
        let ticket = self.pending.insert(PendingCall {
            id: CallId(bytes16()),
            target: target.into(),
            payload: kept,
            join: join.map(OwnedJoin::from),
            deadline: self.deadline(deadline),
            started: Instant::now(),
            request_bytes: payload.len(),
            attempt: 1,
            avoid: Vec::new(),
            served: None,
            span,
            forgotten: false,
            state: CallState::Due,
        });
        match refused {
            Some(error) => self.end_call(ticket, Err(error)),
            None => self.launch_due(),
        }
        self.flush_now_and_then();
        Ok(ticket)
    }

    /// Waits for the end of one of the calls, at most until `until`. Returns the first of `tickets` that has ended;
    /// its ticket is then invalid. `None` changes nothing.
    pub fn wait(
        &mut self,
        tickets: &[CallTicket],
        until: Option<Deadline>,
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
            if answers_gather(tickets.len(), self.last_answer_ns, stop, monotonic_ns()) {
                pause(PAUSE);
            }
            match self.listen(Some(stop), None) {
                Ok(true) => self.last_answer_ns = monotonic_ns(),
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
    fn take_first(
        &mut self,
        tickets: &[CallTicket],
    ) -> Option<(usize, Result<Payload, CallError>)> {
        if !self.pending.any_ended() {
            return None;
        }
        let mut tickets = tickets.iter().enumerate();
        tickets.find_map(|(index, ticket)| Some((index, self.pending.take(*ticket)?)))
    }

    fn first_deadline(&self, tickets: &[CallTicket]) -> Option<Deadline> {
        let pending_calls = tickets.iter().filter_map(|ticket| self.pending.get(*ticket));
        pending_calls.map(|pending| pending.deadline).min()
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

    /// Ends the invocation: drops all calls in flight and closes their connections, which also removes their requests
    /// from the callees' queues.
    pub fn end(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        self.links.close_busy();
        for pending in self.pending.clear() {
            if !matches!(pending.state, CallState::Ended(_)) {
                let given_up: Result<(), _> = Err(timeout(&pending.target));
                let tracestate = &self.invocation.tracestate;
                let spans = CallSpans { recorder: &self.spans, tracestate };
                count(&mut self.edges, spans, &pending, Err(ABANDONED), errno_of(&given_up));
            }
        }
    }

    /// Removes dropped calls that have ended.
    fn make_room(&mut self) {
        // The caller checks for room next.
        let _nothing_came = self.listen(Some(Deadline::PASSED), None);
        let now = monotonic_ns();
        let forgotten = self.pending.forgotten_until(now);
        self.expire(&forgotten, now);
    }

    /// Ends the calls whose deadline is not after `now`; false if there are none.
    fn expire(&mut self, tickets: &[CallTicket], now: u64) -> bool {
        let mut expired = false;
        for ticket in tickets {
            let Some(pending) = self.pending.get(*ticket) else { continue };
            if pending.deadline.has_passed(now) && !matches!(pending.state, CallState::Ended(_)) {
                let error = timeout(&pending.target);
                self.give_up(*ticket, error);
                expired = true;
            }
        }
        expired
    }

    /// Sends all calls that are due.
    fn launch_due(&mut self) {
        while let Some((ticket, mut pending)) = self.pending.next_due() {
            let sent = self.launch(&mut pending);
            self.pending.put_back(ticket, pending);
            match sent {
                Ok(link) => self.pending.out(ticket, link),
                Err(error) => self.end_call(ticket, Err(error)),
            }
        }
    }

    /// Sends one call, to another instance while none certainly accepted it.
    fn launch(&mut self, pending: &mut PendingCall) -> Result<LinkId, CallError> {
        let invocation = Rc::clone(&self.invocation);
        let InvocationContext { traceparent, tracestate, run, .. } = &*invocation;
        let own = traceparent_of(pending.span);
        let traceparent = own.as_deref().unwrap_or(traceparent);
        let trace = TraceHeaders { traceparent, tracestate };
        let deadline = Some(pending.deadline);
        loop {
            let link = self.link(&pending.target, &pending.avoid, deadline)?;
            if let Some(route) = self.links.route(link) {
                pending.served = Some((route.mode(), route.reason().to_owned()));
            }
            let call = OutgoingCall {
                id: pending.id,
                target: &pending.target,
                payload: pending.payload.outgoing(),
                deadline,
                trace,
                traced: pending.span.is_some(),
                attempt: pending.attempt,
                run: *run,
                join: pending.join.as_ref().map(OwnedJoin::as_join),
            };
            let Err(error) = self.send(link, &call) else {
                self.links.sent(link);
                return Ok(link);
            };
            if !keeps_route(&error) {
                pending.avoid.extend(self.links.retire(link));
            }
            if !error.not_accepted() || pending.attempt >= ATTEMPTS_MAX {
                return Err(error);
            }
            pending.attempt += 1;
        }
    }
}

/// True when answers to so many calls come faster than one after another can be waited for, and `stop` is not near.
const fn answers_gather(calls: usize, last_answer_ns: u64, stop: Deadline, now: u64) -> bool {
    let fast = now.saturating_sub(last_answer_ns) < FAST_NS;
    calls >= MANY && fast && !stop.has_passed(now.saturating_add(FAST_NS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_taken_together_while_many_come_fast() {
        let now = 1_000_000_000;
        let (just_now, far) = (now - FAST_NS + 1, Deadline::at_ns(now + FAST_NS + 1));
        assert!(answers_gather(MANY, just_now, far, now));
        for (calls, last, stop) in [
            (MANY - 1, just_now, far),
            (MANY, now - FAST_NS, far),
            (MANY, 0, far),
            (MANY, just_now, Deadline::at_ns(now + FAST_NS)),
            (MANY, just_now, Deadline::PASSED),
        ] {
            assert!(!answers_gather(calls, last, stop, now), "{calls} {last} {stop:?}");
        }
    }
}
