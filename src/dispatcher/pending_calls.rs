//! Calls in flight: started, and not yet taken by the guest. Runs in a worker. No I/O, but it keeps payloads.
//!
//! Each call has a ticket. A sent call is also found by the call id of its answer.

use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::time::Instant;

use cwasi_abi::{CALLS_IN_FLIGHT_MAX, INLINE_MAX};
use rustc_hash::FxHashMap;

use super::links::LinkId;
use super::spans::OpenSpan;
use cwasi_modes::{CallError, CallJoin, ModeKind, OutgoingPayload, Payload};
use cwasi_sys::clock::Deadline;
use cwasi_sys::pool::SegmentPool;
use cwasi_sys::segment::{Segment, SegmentError, SegmentRef};
use cwasi_wire::ids::CallId;

/// Number of a call in flight within its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallTicket(pub u32);

/// A payload, kept until an instance has certainly accepted its call.
#[derive(Clone, Debug)]
pub enum KeptPayload {
    /// At most [`INLINE_MAX`] bytes.
    Bytes(Vec<u8>),
    /// The caller's segment, or a copy; calls of the same segment share it.
    Segment(Rc<Segment>),
}

impl KeptPayload {
    /// Converts it for a mode.
    #[must_use]
    pub fn outgoing(&self) -> OutgoingPayload<'_> {
        match self {
            Self::Bytes(bytes) => OutgoingPayload::Bytes(bytes),
            Self::Segment(segment) => OutgoingPayload::Segment(SegmentRef::from(&**segment)),
        }
    }
}

/// An owned [`CallJoin`].
#[derive(Clone, Debug)]
pub struct OwnedJoin {
    key: String,
    parts: u32,
    part: u32,
}

impl OwnedJoin {
    /// Converts it for a mode.
    #[must_use]
    pub fn as_join(&self) -> CallJoin<'_> {
        CallJoin { key: &self.key, parts: self.parts, part: self.part }
    }
}

impl From<CallJoin<'_>> for OwnedJoin {
    fn from(join: CallJoin<'_>) -> Self {
        Self { key: join.key.to_owned(), parts: join.parts, part: join.part }
    }
}

/// State of a call in flight.
#[derive(Debug)]
pub enum CallState {
    /// To be sent or sent again.
    Due,
    /// Sent over this connection.
    Out(LinkId),
    Ended(Result<Payload, CallError>),
}

#[derive(Debug)]
pub struct PendingCall {
    /// The id in its answer.
    pub id: CallId,
    pub target: Rc<str>,
    /// The payload; empty once it is no longer needed.
    pub payload: KeptPayload,
    /// Its group of a fan-in.
    pub join: Option<OwnedJoin>,
    /// When it ends, whatever its callee does.
    pub deadline: Deadline,
    /// Time of the start.
    pub started: Instant,
    /// Length of the payload in bytes.
    pub request_bytes: u64,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Instances that certainly did not accept it.
    pub avoid: Vec<String>,
    /// Its mode and the reason.
    pub served: Option<(ModeKind, String)>,
    /// Its span, if it is traced.
    pub span: Option<OpenSpan>,
    /// True if the guest dropped it.
    pub forgotten: bool,
    pub state: CallState,
}

/// All calls in flight.
#[derive(Debug, Default)]
pub struct PendingCalls {
    /// Boxed, because a call is taken out while it is sent.
    calls: FxHashMap<CallTicket, Box<PendingCall>>,
    by_id: FxHashMap<CallId, CallTicket>,
    due: VecDeque<CallTicket>,
    last: u32,
    /// Number of ended calls that the guest has not taken.
    ended: usize,
    /// The last kept segment: the calls of a fan-out share it.
    segment: Option<(u64, Weak<Segment>)>,
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

    /// Keeps a payload, so that the guest may change its memory afterwards. A large copy uses a leased segment if
    /// `lender` may lend to the callee.
    ///
    /// # Errors
    /// When memory or descriptors run out.
    pub fn keep(
        &mut self,
        payload: OutgoingPayload<'_>,
        lender: Option<&SegmentPool>,
    ) -> Result<KeptPayload, SegmentError> {
        match payload {
            OutgoingPayload::Bytes(bytes) if bytes.len() <= INLINE_MAX => {
                Ok(KeptPayload::Bytes(bytes.to_vec()))
            }
            OutgoingPayload::Bytes(bytes) => {
                let lent = lender.and_then(|pool| pool.copy_of(bytes));
                let copy = lent.map_or_else(|| Segment::copy_of(bytes), Ok)?;
                Ok(KeptPayload::Segment(Rc::new(copy)))
            }
            OutgoingPayload::Segment(segment) => {
                self.keep_segment(segment).map(KeptPayload::Segment)
            }
        }
    }

    fn keep_segment(&mut self, segment: SegmentRef<'_>) -> Result<Rc<Segment>, SegmentError> {
        let inode = segment.inode()?;
        // While it is kept, no other memfd has its inode number, and its bytes stay: the lease's token is kept, too.
        let known = self.segment.as_ref().filter(|(known, _)| *known == inode);
        if let Some(kept) = known.and_then(|(_, kept)| kept.upgrade())
            && kept.len() == segment.len()
        {
            return Ok(kept);
        }
        let kept = Rc::new(segment.to_segment()?);
        self.segment = Some((inode, Rc::downgrade(&kept)));
        Ok(kept)
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

    /// Takes out the next call to send; [`Self::put_back`] follows.
    pub fn next_due(&mut self) -> Option<(CallTicket, Box<PendingCall>)> {
        loop {
            let ticket = self.due.pop_front()?;
            let due = |pending: &PendingCall| matches!(pending.state, CallState::Due);
            if self.get(ticket).is_some_and(due) {
                return self.calls.remove(&ticket).map(|pending| (ticket, pending));
            }
        }
    }

    /// Puts a call of [`Self::next_due`] back.
    pub fn put_back(&mut self, ticket: CallTicket, pending: Box<PendingCall>) {
        self.calls.insert(ticket, pending);
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

    /// Dropped calls whose deadline is not after `now`.
    #[must_use]
    pub fn forgotten_until(&self, now: u64) -> Vec<CallTicket> {
        let over = |pending: &PendingCall| pending.forgotten && pending.deadline.has_passed(now);
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
    pub fn end(&mut self, ticket: CallTicket, ended: Result<Payload, CallError>) {
        let Some(pending) = self.calls.get_mut(&ticket) else { return };
        self.by_id.remove(&pending.id);
        pending.payload = KeptPayload::Bytes(Vec::new());
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
    pub fn take(&mut self, ticket: CallTicket) -> Option<Result<Payload, CallError>> {
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
        self.segment = None;
        std::mem::take(&mut self.calls).into_values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(kept: KeptPayload) -> Rc<Segment> {
        match kept {
            KeptPayload::Segment(segment) => segment,
            KeptPayload::Bytes(bytes) => panic!("{} bytes were kept as they are", bytes.len()),
        }
    }

    #[test]
    fn a_large_copy_takes_a_segment_of_the_pool_where_it_may() {
        let mut pending_calls = PendingCalls::default();
        let pool = SegmentPool::new(1 << 20);
        let bytes = vec![7; INLINE_MAX + 1];
        let sealed = segment(pending_calls.keep(OutgoingPayload::Bytes(&bytes), None).unwrap());
        assert!(sealed.token().is_none() && pool.bytes() == 0);
        let lent =
            segment(pending_calls.keep(OutgoingPayload::Bytes(&bytes), Some(&pool)).unwrap());
        assert!(lent.token().is_some() && pool.bytes() > 0);
        assert_eq!(lent.len(), bytes.len() as u64);
        // Used up: a fresh one.
        let large = vec![7; 2 << 20];
        let fresh =
            segment(pending_calls.keep(OutgoingPayload::Bytes(&large), Some(&pool)).unwrap());
        assert!(fresh.token().is_none());
        let small =
            pending_calls.keep(OutgoingPayload::Bytes(&bytes[..INLINE_MAX]), Some(&pool)).unwrap();
        assert!(matches!(small, KeptPayload::Bytes(_)));
    }

    #[test]
    fn calls_of_one_segment_share_it() {
        let mut pending_calls = PendingCalls::default();
        let own = Segment::copy_of(&[7; 4096]).unwrap();
        let first =
            segment(pending_calls.keep(OutgoingPayload::Segment((&own).into()), None).unwrap());
        let second =
            segment(pending_calls.keep(OutgoingPayload::Segment((&own).into()), None).unwrap());
        assert!(Rc::ptr_eq(&first, &second));
        let other = Segment::copy_of(&[7; 4096]).unwrap();
        let third =
            segment(pending_calls.keep(OutgoingPayload::Segment((&other).into()), None).unwrap());
        assert!(!Rc::ptr_eq(&first, &third));
    }
}
