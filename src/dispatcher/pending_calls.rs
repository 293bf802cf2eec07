//! Calls in flight: started, and not yet taken by the guest. Runs in a worker. No I/O.
//!
//! Each call has a ticket. A sent call is also found by the call id of its answer.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use cwasi_abi::CALLS_IN_FLIGHT_MAX;
use rustc_hash::FxHashMap;

use super::attempts::Attempts;
use super::links::LinkId;
use super::spans::OpenSpan;
use cwasi_modes::{CallResult, CallTicket, ModeKind, Payload};
use cwasi_sys::clock::Deadline;
use cwasi_wire::envelope::{Join, Path};
use cwasi_wire::ids::CallId;

/// Time after a call's deadline in which its callee may still say why it is late.
const REASON_WAIT: Duration = Duration::from_millis(50);

/// State of a call in flight.
#[derive(Debug)]
pub enum CallState {
    /// To be sent or sent again.
    Due,
    /// Sent over this connection.
    Out(LinkId),
    Ended(CallResult),
}

#[derive(Debug)]
pub struct PendingCall {
    /// The id in its answer.
    pub id: CallId,
    pub target: Rc<str>,
    /// Kept until an instance has certainly accepted the call. `None` if the running [`super::Dispatcher::call`] has it,
    /// or once it is no longer needed.
    pub payload: Option<Payload>,
    /// Its group of a fan-in.
    pub join: Option<Join>,
    /// When it ends, whatever its callee does.
    pub deadline: Deadline,
    /// Time of the start.
    pub started: Instant,
    /// Length of the payload in bytes.
    pub request_bytes: u64,
    pub attempts: Attempts,
    /// Its mode and the reason.
    pub served: Option<(ModeKind, Rc<str>)>,
    /// How its last attempt went to another host, if it did.
    pub path: Path,
    /// Its span, if it is traced.
    pub span: Option<OpenSpan>,
    /// True if the guest dropped it.
    pub forgotten: bool,
    pub state: CallState,
}

impl PendingCall {
    /// The path for the metrics: that of a call which another host served.
    pub fn counted_path(&self) -> &'static str {
        let is_far = matches!(self.served, Some((ModeKind::Networked, _)));
        if is_far { self.path.text() } else { "" }
    }

    /// When it ends without an answer. No reason is awaited for a dropped call, since its guest reads none.
    pub fn ends(&self) -> Deadline {
        if self.forgotten { self.deadline } else { self.deadline.plus(REASON_WAIT) }
    }
}

/// All calls in flight.
#[derive(Debug, Default)]
pub struct PendingCalls {
    /// Boxed: a table of pointers is cheaper to grow and to move in.
    calls: FxHashMap<CallTicket, Box<PendingCall>>,
    by_id: FxHashMap<CallId, CallTicket>,
    due: VecDeque<CallTicket>,
    last: u32,
    /// Number of ended calls that the guest has not taken.
    ended: usize,
}

impl PendingCalls {
    /// True if there is no room for another call.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.calls.len() >= CALLS_IN_FLIGHT_MAX
    }

    /// True if there are no calls.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Adds a call to be sent.
    pub fn insert(&mut self, pending: PendingCall) -> CallTicket {
        // Terminates: at most CALLS_IN_FLIGHT_MAX of the 2^32 tickets are taken.
        loop {
            self.last = self.last.wrapping_add(1);
            if !self.calls.contains_key(&CallTicket(self.last)) {
                break;
            }
        }
        let ticket = CallTicket(self.last);
        self.due.push_back(ticket);
        self.calls.insert(ticket, Box::new(pending));
        ticket
    }

    /// The next call to send.
    pub fn next_due(&mut self) -> Option<CallTicket> {
        loop {
            let ticket = self.due.pop_front()?;
            if self.get(ticket).is_some_and(|pending| matches!(pending.state, CallState::Due)) {
                return Some(ticket);
            }
        }
    }

    #[must_use]
    pub fn get(&self, ticket: CallTicket) -> Option<&PendingCall> {
        self.calls.get(&ticket).map(|pending| &**pending)
    }

    /// Returns a call for changes.
    pub fn get_mut(&mut self, ticket: CallTicket) -> Option<&mut PendingCall> {
        self.calls.get_mut(&ticket).map(|pending| &mut **pending)
    }

    /// The call of an answer, if it was sent over this connection.
    #[must_use]
    pub fn answered(&self, id: CallId, link: LinkId) -> Option<CallTicket> {
        let ticket = *self.by_id.get(&id)?;
        let out = |pending: &PendingCall| matches!(pending.state, CallState::Out(on) if on == link);
        self.get(ticket).is_some_and(out).then_some(ticket)
    }

    /// The calls sent over a connection.
    #[must_use]
    pub fn out_on(&self, link: LinkId) -> Vec<CallTicket> {
        let on = |pending: &PendingCall| matches!(pending.state, CallState::Out(on) if on == link);
        self.calls.iter().filter(|(_, pending)| on(pending)).map(|(ticket, _)| *ticket).collect()
    }

    /// Dropped calls that end without an answer at `now`.
    #[must_use]
    pub fn forgotten_until(&self, now: u64) -> Vec<CallTicket> {
        let over = |pending: &PendingCall| pending.forgotten && pending.ends().has_passed(now);
        self.calls.iter().filter(|(_, pending)| over(pending)).map(|(ticket, _)| *ticket).collect()
    }

    /// Marks a call as sent.
    pub fn out(&mut self, ticket: CallTicket, link: LinkId) {
        if let Some(pending) = self.calls.get_mut(&ticket) {
            pending.state = CallState::Out(link);
            self.by_id.insert(pending.id, ticket);
        }
    }

    /// Marks a call to be sent again.
    pub fn again(&mut self, ticket: CallTicket) {
        if let Some(pending) = self.calls.get_mut(&ticket) {
            pending.state = CallState::Due;
            self.by_id.remove(&pending.id);
            self.due.push_back(ticket);
        }
    }

    /// Ends a call and frees its payload. A dropped call is removed.
    pub fn end(&mut self, ticket: CallTicket, ended: CallResult) {
        let Some(pending) = self.calls.get_mut(&ticket) else { return };
        self.by_id.remove(&pending.id);
        pending.payload = None;
        let over = matches!(pending.state, CallState::Ended(_));
        pending.state = CallState::Ended(ended);
        self.ended += usize::from(!over);
        if pending.forgotten {
            self.calls.remove(&ticket);
            self.ended -= 1;
        }
    }

    /// True for an ended call that was not taken.
    #[must_use]
    pub const fn any_ended(&self) -> bool {
        self.ended > 0
    }

    /// Takes out an ended call.
    pub fn take(&mut self, ticket: CallTicket) -> Option<CallResult> {
        let CallState::Ended(_) = self.calls.get(&ticket)?.state else { return None };
        match self.calls.remove(&ticket)?.state {
            CallState::Ended(ended) => {
                self.ended -= 1;
                Some(ended)
            }
            CallState::Due | CallState::Out(_) => None,
        }
    }

    /// Takes out all calls.
    pub fn clear(&mut self) -> impl Iterator<Item = Box<PendingCall>> + use<> {
        self.by_id.clear();
        self.due.clear();
        self.ended = 0;
        std::mem::take(&mut self.calls).into_values()
    }
}
