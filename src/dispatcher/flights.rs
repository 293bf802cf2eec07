//! Calls in flight: started, and not yet given back to whoever started them.
//!
//! Pure but for the payloads that it keeps. Every call is here under its ticket; one that is out is found by the
//! id that its answer will carry, too.

use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::time::Instant;

use cwasi_abi::{CALLS_IN_FLIGHT_MAX, INLINE_MAX};
use rustc_hash::FxHashMap;

use super::links::LinkId;
use crate::modes::{CallError, Join, ModeKind, Outgoing, Payload};
use crate::sys::pool::SegmentPool;
use crate::sys::segment::{Segment, SegmentError, SegmentRef};
use crate::wire::ids::CallId;

/// Name of a call in flight within its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u32);

/// A payload that is kept until its call has certainly been accepted.
#[derive(Clone, Debug)]
pub enum Kept {
    /// At most [`INLINE_MAX`] bytes.
    Bytes(Vec<u8>),
    /// The caller's own segment, or a copy; calls of the same one share it.
    Segment(Rc<Segment>),
}

impl Kept {
    /// As a mode takes it.
    #[must_use]
    pub fn outgoing(&self) -> Outgoing<'_> {
        match self {
            Self::Bytes(bytes) => Outgoing::Bytes(bytes),
            Self::Segment(segment) => Outgoing::Segment(SegmentRef::from(&**segment)),
        }
    }
}

/// A [`Join`] that is kept.
#[derive(Clone, Debug)]
pub struct KeptJoin {
    key: String,
    parts: u32,
    part: u32,
}

impl KeptJoin {
    /// As a mode takes it.
    #[must_use]
    pub fn as_join(&self) -> Join<'_> {
        Join { key: &self.key, parts: self.parts, part: self.part }
    }
}

impl From<Join<'_>> for KeptJoin {
    fn from(join: Join<'_>) -> Self {
        Self { key: join.key.to_owned(), parts: join.parts, part: join.part }
    }
}

/// Where a call in flight is.
#[derive(Debug)]
pub enum State {
    /// To be sent, for the first time or again.
    Due,
    /// Sent over this connection.
    Out(LinkId),
    /// Over.
    Ended(Result<Payload, CallError>),
}

/// One call in flight.
#[derive(Debug)]
pub struct Flight {
    /// What its answer will carry.
    pub id: CallId,
    /// The callee.
    pub target: Rc<str>,
    /// What is sent; empty once it is not needed any more.
    pub payload: Kept,
    /// Which parts it is handled with.
    pub join: Option<KeptJoin>,
    /// `CLOCK_MONOTONIC` nanoseconds.
    pub deadline: u64,
    /// When it was started.
    pub started: Instant,
    /// Length of the payload in bytes.
    pub request_bytes: u64,
    /// Starts at 1.
    pub attempt: u32,
    /// Instances that certainly did not accept it.
    pub avoid: Vec<String>,
    /// Mode that serves it, and why.
    pub served: Option<(ModeKind, String)>,
    /// Nobody wants to know its end.
    pub forgotten: bool,
    /// Where it is.
    pub state: State,
}

/// Every call in flight.
#[derive(Debug, Default)]
pub struct Flights {
    /// Boxed: a call is taken out while it is sent.
    calls: FxHashMap<Ticket, Box<Flight>>,
    by_id: FxHashMap<CallId, Ticket>,
    due: VecDeque<Ticket>,
    last: u32,
    /// How many are over and not taken.
    ended: usize,
    /// The segment that was kept last: the calls of a fan-out share it.
    segment: Option<(u64, Weak<Segment>)>,
}

impl Flights {
    /// True when one more call cannot be kept.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.calls.len() >= CALLS_IN_FLIGHT_MAX
    }

    /// True when there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Keeps a payload: what the caller lent is its own again when this returns. Where it goes to somebody whom `lender`
    /// may lend segments, a large copy takes one of these.
    ///
    /// # Errors
    /// When memory or descriptors run out.
    pub fn keep(
        &mut self,
        payload: Outgoing<'_>,
        lender: Option<&SegmentPool>,
    ) -> Result<Kept, SegmentError> {
        match payload {
            Outgoing::Bytes(bytes) if bytes.len() <= INLINE_MAX => Ok(Kept::Bytes(bytes.to_vec())),
            Outgoing::Bytes(bytes) => {
                let lent = lender.and_then(|pool| pool.copy_of(bytes));
                let copy = lent.map_or_else(|| Segment::copy_of(bytes), Ok)?;
                Ok(Kept::Segment(Rc::new(copy)))
            }
            Outgoing::Segment(segment) => self.keep_segment(segment).map(Kept::Segment),
        }
    }

    fn keep_segment(&mut self, segment: SegmentRef<'_>) -> Result<Rc<Segment>, SegmentError> {
        let inode = segment.inode()?;
        // While it is kept, no other memfd has its number, and its bytes stay: a lease's token is kept with it.
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

    /// Takes a call that is due.
    pub fn insert(&mut self, flight: Flight) -> Ticket {
        // Terminates: at most CALLS_IN_FLIGHT_MAX of the 2^32 tickets are taken.
        loop {
            self.last = self.last.wrapping_add(1);
            if !self.calls.contains_key(&Ticket(self.last)) {
                break;
            }
        }
        let ticket = Ticket(self.last);
        self.due.push_back(ticket);
        self.calls.insert(ticket, Box::new(flight));
        ticket
    }

    /// Takes out the next call that is to be sent; [`Self::put_back`] follows.
    pub fn next_due(&mut self) -> Option<(Ticket, Box<Flight>)> {
        loop {
            let ticket = self.due.pop_front()?;
            let due = |flight: &Flight| matches!(flight.state, State::Due);
            if self.get(ticket).is_some_and(due) {
                return self.calls.remove(&ticket).map(|flight| (ticket, flight));
            }
        }
    }

    /// Puts a call back that [`Self::next_due`] gave.
    pub fn put_back(&mut self, ticket: Ticket, flight: Box<Flight>) {
        self.calls.insert(ticket, flight);
    }

    /// A call.
    #[must_use]
    pub fn get(&self, ticket: Ticket) -> Option<&Flight> {
        self.calls.get(&ticket).map(|flight| &**flight)
    }

    /// A call, to be changed.
    pub fn get_mut(&mut self, ticket: Ticket) -> Option<&mut Flight> {
        self.calls.get_mut(&ticket).map(|flight| &mut **flight)
    }

    /// The call that an answer belongs to, if it is out on this connection.
    #[must_use]
    pub fn answered(&self, id: CallId, link: LinkId) -> Option<Ticket> {
        let ticket = *self.by_id.get(&id)?;
        let out = |flight: &Flight| matches!(flight.state, State::Out(on) if on == link);
        self.get(ticket).is_some_and(out).then_some(ticket)
    }

    /// The calls that are out on a connection.
    #[must_use]
    pub fn out_on(&self, link: LinkId) -> Vec<Ticket> {
        let on = |flight: &Flight| matches!(flight.state, State::Out(on) if on == link);
        self.calls.iter().filter(|(_, flight)| on(flight)).map(|(ticket, _)| *ticket).collect()
    }

    /// The calls that nobody wants to know about and whose deadline is not after `now`.
    #[must_use]
    pub fn forgotten_until(&self, now: u64) -> Vec<Ticket> {
        let over = |flight: &Flight| flight.forgotten && flight.deadline <= now;
        self.calls.iter().filter(|(_, flight)| over(flight)).map(|(ticket, _)| *ticket).collect()
    }

    /// A call was sent.
    pub fn out(&mut self, ticket: Ticket, link: LinkId) {
        if let Some(flight) = self.calls.get_mut(&ticket) {
            flight.state = State::Out(link);
            self.by_id.insert(flight.id, ticket);
        }
    }

    /// A call is to be sent again.
    pub fn again(&mut self, ticket: Ticket) {
        if let Some(flight) = self.calls.get_mut(&ticket) {
            flight.state = State::Due;
            self.by_id.remove(&flight.id);
            self.due.push_back(ticket);
        }
    }

    /// A call is over. Its payload is freed; all of it when nobody wants to know.
    pub fn end(&mut self, ticket: Ticket, ended: Result<Payload, CallError>) {
        let Some(flight) = self.calls.get_mut(&ticket) else { return };
        self.by_id.remove(&flight.id);
        flight.payload = Kept::Bytes(Vec::new());
        let over = matches!(flight.state, State::Ended(_));
        flight.state = State::Ended(ended);
        self.ended += usize::from(!over);
        if flight.forgotten {
            self.calls.remove(&ticket);
            self.ended -= 1;
        }
    }

    /// True when a call is over and was not taken.
    #[must_use]
    pub const fn any_ended(&self) -> bool {
        self.ended > 0
    }

    /// Takes out a call that is over.
    pub fn take(&mut self, ticket: Ticket) -> Option<Result<Payload, CallError>> {
        let State::Ended(_) = self.calls.get(&ticket)?.state else { return None };
        match self.calls.remove(&ticket)?.state {
            State::Ended(ended) => {
                self.ended -= 1;
                Some(ended)
            }
            State::Due | State::Out(_) => None,
        }
    }

    /// Takes out every call.
    pub fn clear(&mut self) -> impl Iterator<Item = Box<Flight>> + use<> {
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

    fn segment(kept: Kept) -> Rc<Segment> {
        match kept {
            Kept::Segment(segment) => segment,
            Kept::Bytes(bytes) => panic!("{} bytes were kept as they are", bytes.len()),
        }
    }

    #[test]
    fn a_large_copy_takes_a_segment_of_the_pool_where_it_may() {
        let mut flights = Flights::default();
        let pool = SegmentPool::new(1 << 20);
        let bytes = vec![7; INLINE_MAX + 1];
        let sealed = segment(flights.keep(Outgoing::Bytes(&bytes), None).unwrap());
        assert!(sealed.token().is_none() && pool.bytes() == 0);
        let lent = segment(flights.keep(Outgoing::Bytes(&bytes), Some(&pool)).unwrap());
        assert!(lent.token().is_some() && pool.bytes() > 0);
        assert_eq!(lent.len(), bytes.len() as u64);
        // Used up: a fresh one.
        let large = vec![7; 2 << 20];
        let fresh = segment(flights.keep(Outgoing::Bytes(&large), Some(&pool)).unwrap());
        assert!(fresh.token().is_none());
        let small = flights.keep(Outgoing::Bytes(&bytes[..INLINE_MAX]), Some(&pool)).unwrap();
        assert!(matches!(small, Kept::Bytes(_)));
    }

    #[test]
    fn calls_of_one_segment_share_it() {
        let mut flights = Flights::default();
        let own = Segment::copy_of(&[7; 4096]).unwrap();
        let first = segment(flights.keep(Outgoing::Segment((&own).into()), None).unwrap());
        let second = segment(flights.keep(Outgoing::Segment((&own).into()), None).unwrap());
        assert!(Rc::ptr_eq(&first, &second));
        let other = Segment::copy_of(&[7; 4096]).unwrap();
        let third = segment(flights.keep(Outgoing::Segment((&other).into()), None).unwrap());
        assert!(!Rc::ptr_eq(&first, &third));
    }
}
