//! Answers for which their callers have no room: a caller that starts many calls and reads late, and a group that fails
//! with one error for each of its parts. They wait here, and hold up no other caller, until their caller reads.
//!
//! A callee's sandbox init has one for its callers on this host, and a shim has one for callers of functions on other
//! hosts. What waits is bounded, for one caller and for all. The caller that has most pays for what is too much.

use std::collections::VecDeque;
use std::mem;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};

use cwasi_abi::CALLS_IN_FLIGHT_MAX;

use crate::modes::{CallError, Payload, TooLarge};
use crate::sys::clock::monotonic_ns;
use crate::sys::seqpacket;
use crate::wire::envelope::Outcome;
use crate::wire::ids::CallId;

use super::{error_text, found_no_room, respond_with};

#[cfg(test)]
mod tests;

/// Longest time that a caller may take to make room for an answer without a deadline, in nanoseconds.
const ROOM_MAX_NS: u64 = 10_000_000_000;
/// Time between two tries to send descriptors while too many are on their way, in nanoseconds.
const PAUSE_NS: u64 = 10_000_000;
/// Most answers that wait for one caller: as many as a worker can have calls in flight.
const CALLER_ANSWERS_MAX: usize = CALLS_IN_FLIGHT_MAX;
/// Most bytes that wait for one caller: as many answers of the longest kind that travels in a frame.
const CALLER_BYTES_MAX: u64 = 64 << 20;
/// Most answers that wait for all callers.
const ANSWERS_MAX: usize = 8 * CALLS_IN_FLIGHT_MAX;
/// Most bytes that wait for all callers; less in a container with a small memory limit.
const BYTES_MAX: u64 = 256 << 20;

/// What the function's log says.
const DROPPED: &str = "responses were dropped: their caller does not read them";

/// What may wait.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Answers for one caller.
    pub caller_answers: usize,
    /// Bytes for one caller.
    pub caller_bytes: u64,
    /// Answers for all callers.
    pub answers: usize,
    /// Bytes for all callers.
    pub bytes: u64,
    /// Answers for all callers that hold descriptors.
    pub segments: usize,
}

impl Bounds {
    /// In a container with this memory limit, whose init may hold as many segments.
    pub fn within(memory_max: Option<u64>, segments: usize) -> Self {
        let bytes = memory_max.map_or(BYTES_MAX, |max| BYTES_MAX.min(max / 4));
        Self {
            caller_answers: CALLER_ANSWERS_MAX,
            caller_bytes: CALLER_BYTES_MAX.min(bytes),
            answers: ANSWERS_MAX,
            bytes,
            segments,
        }
    }
}

/// Where the end of one call goes. `S` is a handle of the caller's connection, which clones share.
#[derive(Clone, Debug)]
pub struct Reply<S> {
    /// The caller's connection.
    pub reply_to: S,
    /// The call.
    pub id: CallId,
}

/// Answers on their way.
#[derive(Debug)]
pub struct Outbox<S> {
    bounds: Bounds,
    callers: Vec<Backlog<S>>,
    /// Whose answers became too many, and what was done.
    complaint: Option<(S, String)>,
}

/// What waits for one caller.
#[derive(Debug)]
struct Backlog<S> {
    reply_to: S,
    unread: VecDeque<Unread>,
    bytes: u64,
    segments: usize,
    /// When the first answer is given up.
    expires: u64,
    /// Not before this time: its socket has room, but descriptors have none.
    not_before: u64,
}

/// An answer that waits.
#[derive(Debug)]
struct Unread {
    id: CallId,
    outcome: Outcome,
    payload: Payload,
    until: u64,
}

impl<S: AsFd> Reply<S> {
    /// Where the caller reads.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.reply_to.as_fd()
    }
}

impl<S: AsFd + Clone> Outbox<S> {
    /// An empty one.
    pub const fn new(bounds: Bounds) -> Self {
        Self { bounds, callers: Vec::new(), complaint: None }
    }

    /// Tells a caller that its call ended without a response.
    pub fn tell(&mut self, reply: &Reply<S>, error: &CallError) {
        let (outcome, payload) = wire(error);
        self.send(reply, outcome, payload, None);
    }

    /// Sends an answer, or holds it when its caller has no room. A caller that is gone needs none.
    pub fn send(
        &mut self,
        reply: &Reply<S>,
        outcome: Outcome,
        payload: Payload,
        until: Option<u64>,
    ) {
        let sent = respond_with(reply.as_fd(), reply.id, outcome, payload.outgoing(), Some(0));
        if found_no_room(&sent) {
            self.hold(reply, outcome, payload, until);
        }
    }

    /// Sends an answer when its caller has room, and drops it at `until`.
    pub fn hold(
        &mut self,
        reply: &Reply<S>,
        outcome: Outcome,
        payload: Payload,
        until: Option<u64>,
    ) {
        let until = until.unwrap_or_else(|| monotonic_ns().saturating_add(ROOM_MAX_NS));
        let mut unread = Unread { id: reply.id, outcome, payload, until };
        let bounds = self.bounds;
        let index = self.index(&reply.reply_to).unwrap_or_else(|| {
            self.callers.push(Backlog::new(reply.reply_to.clone()));
            self.callers.len() - 1
        });
        let backlog = &mut self.callers[index];
        let bytes = backlog.bytes.saturating_add(unread.bytes());
        if bytes > bounds.caller_bytes && !backlog.unread.is_empty() {
            unread.shed(bounds.caller_bytes);
            self.complaint = Some((reply.reply_to.clone(), DROPPED.to_owned()));
        }
        backlog.push(unread);
        if backlog.unread.len() > bounds.caller_answers {
            // Those of calls that have ended are no fault of the caller.
            backlog.expire(monotonic_ns());
        }
        if backlog.unread.len() > bounds.caller_answers {
            self.end(index);
        }
        self.bound_all();
    }

    /// The caller's place in the list. What waits keeps its connection open, so no other has its number.
    fn index(&self, caller: &S) -> Option<usize> {
        let number = caller.as_fd().as_raw_fd();
        self.callers.iter().position(|backlog| backlog.reply_to.as_fd().as_raw_fd() == number)
    }

    /// Has the callers with most pay for what is too much in all.
    fn bound_all(&mut self) {
        let Bounds { answers, bytes, segments, .. } = self.bounds;
        let most = |of: fn(&Backlog<S>) -> u64, limit: u64| {
            let total = self.callers.iter().map(of).fold(0, u64::saturating_add);
            let callers = self.callers.iter().enumerate().filter(|_| total > limit);
            callers.max_by_key(|(_, backlog)| of(backlog)).map(|(index, _)| index)
        };
        // One answer alone may be as long as it likes.
        let alone = self.callers.iter().map(|backlog| backlog.unread.len()).sum::<usize>() == 1;
        let large = if alone { None } else { most(|backlog| backlog.bytes, bytes) };
        let shed = large.or_else(|| most(|backlog| backlog.segments as u64, segments as u64));
        let ended = most(|backlog| backlog.unread.len() as u64, answers as u64);
        if let Some(index) = shed {
            let backlog = &mut self.callers[index];
            backlog.shed(bytes);
            self.complaint = Some((backlog.reply_to.clone(), DROPPED.to_owned()));
        }
        if let Some(index) = ended {
            self.end(index);
        }
    }

    /// Ends a caller's connection, and with it all calls that are out on it.
    fn end(&mut self, index: usize) {
        let backlog = &mut self.callers[index];
        let answers = backlog.unread.len();
        backlog.clear();
        seqpacket::end(backlog.reply_to.as_fd());
        let text = format!("a caller's connection was closed: it has not read {answers} answers");
        self.complaint = Some((backlog.reply_to.clone(), text));
    }

    /// Whose answers became too many since this was asked last, and a line about it for a log.
    pub const fn take_complaint(&mut self) -> Option<(S, String)> {
        self.complaint.take()
    }

    /// Sends what the callers of these numbers have room for, and gives up what nobody waits for any more.
    pub fn flush(&mut self, room: &[usize], now: u64) {
        for (index, backlog) in self.callers.iter_mut().enumerate() {
            let due = backlog.not_before > 0 && backlog.not_before <= now;
            if due || room.contains(&index) {
                backlog.flush(now);
            }
            backlog.expire(now);
        }
        self.callers.retain(|backlog| !backlog.unread.is_empty());
    }

    /// Sends what one caller has room for, and gives up its answers that nobody waits for any more. Returns when to do
    /// so again without room; `None` when nothing waits.
    pub fn flush_one(&mut self, caller: &S, now: u64) -> Option<u64> {
        let index = self.index(caller)?;
        let backlog = &mut self.callers[index];
        backlog.flush(now);
        backlog.expire(now);
        if backlog.unread.is_empty() {
            self.callers.swap_remove(index);
            return None;
        }
        Some(backlog.next_deadline())
    }

    /// Drops what waits for a caller whose connection has ended.
    pub fn forget(&mut self, caller: &S) {
        if let Some(index) = self.index(caller) {
            self.callers.swap_remove(index);
        }
    }

    /// Numbers and sockets of callers, to be polled for room; the numbers are good until the next [`Self::flush`].
    pub fn sockets(&self) -> impl Iterator<Item = (usize, BorrowedFd<'_>)> {
        let callers = self.callers.iter().enumerate();
        let polled = callers.filter(|(_, backlog)| backlog.not_before == 0);
        polled.map(|(index, backlog)| (index, backlog.reply_to.as_fd()))
    }

    /// When something is to be done that no socket says.
    pub fn next_deadline(&self) -> Option<u64> {
        self.callers.iter().map(Backlog::next_deadline).min()
    }

    /// True when nothing waits.
    pub const fn is_empty(&self) -> bool {
        self.callers.is_empty()
    }
}

impl<S: AsFd> Backlog<S> {
    const fn new(reply_to: S) -> Self {
        let unread = VecDeque::new();
        Self { reply_to, unread, bytes: 0, segments: 0, expires: u64::MAX, not_before: 0 }
    }

    fn push(&mut self, unread: Unread) {
        self.bytes = self.bytes.saturating_add(unread.bytes());
        self.segments += usize::from(unread.has_segment());
        self.expires = self.expires.min(unread.until);
        self.unread.push_back(unread);
    }

    fn clear(&mut self) {
        (self.bytes, self.segments) = (0, 0);
        self.unread.clear();
    }

    /// Keeps those answers for which `keep` is true.
    fn retain(&mut self, keep: impl Fn(&Unread) -> bool) {
        let unread = mem::take(&mut self.unread);
        self.clear();
        self.expires = u64::MAX;
        unread.into_iter().filter(keep).for_each(|unread| self.push(unread));
    }

    fn expire(&mut self, now: u64) {
        if self.expires <= now {
            self.retain(|unread| unread.until > now);
        }
    }

    /// When something is to be done that the socket does not tell.
    fn next_deadline(&self) -> u64 {
        if self.not_before > 0 { self.expires.min(self.not_before) } else { self.expires }
    }

    fn shed(&mut self, limit: u64) {
        self.unread.iter_mut().for_each(|unread| unread.shed(limit));
        self.retain(|_| true);
    }

    fn flush(&mut self, now: u64) {
        self.not_before = 0;
        while let Some(unread) = self.unread.front() {
            let Unread { id, outcome, payload, .. } = unread;
            let to = self.reply_to.as_fd();
            if found_no_room(&respond_with(to, *id, *outcome, payload.outgoing(), Some(0))) {
                if unread.has_segment() && seqpacket::has_room(to) {
                    self.not_before = now.saturating_add(PAUSE_NS);
                }
                return;
            }
            // It was sent, or its caller is gone.
            self.bytes = self.bytes.saturating_sub(unread.bytes());
            self.segments -= usize::from(unread.has_segment());
            self.unread.pop_front();
        }
    }
}

impl Unread {
    const fn has_segment(&self) -> bool {
        matches!(self.payload, Payload::Segment(_))
    }

    /// What it counts as: errors are short, and their number is bounded.
    fn bytes(&self) -> u64 {
        if self.outcome == Outcome::ANSWERED { self.payload.len() } else { 0 }
    }

    /// Keeps the call's end and drops its bytes.
    fn shed(&mut self, limit: u64) {
        if self.outcome == Outcome::ANSWERED {
            let length = self.payload.len();
            (self.outcome, self.payload) = wire(&TooLarge::Unread { length, limit }.into());
        }
    }
}

/// What travels to a caller: errno and text of the error.
pub fn wire(error: &CallError) -> (Outcome, Payload) {
    (error.outcome(), Payload::Inline(error_text(error).into_bytes()))
}
