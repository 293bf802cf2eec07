//! Answers for which their callers have no room: a caller that starts many calls and reads late, and a group that fails
//! with one error for each of its parts. They wait here, where nobody waits for them, until the caller reads.
//!
//! What waits is bounded, for one caller and for all: what is too much is the problem of the caller that has most.

use std::collections::VecDeque;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use cwasi_abi::CALLS_IN_FLIGHT_MAX;

use crate::modes::local::{error_text, found_no_room, respond_with};
use crate::modes::{CallError, Payload};
use crate::sys::clock::monotonic_ns;
use crate::sys::seqpacket;
use crate::wire::ids::CallId;

use super::work::Reply;

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

/// Answers on their way.
#[derive(Debug)]
pub struct Outbox {
    bounds: Bounds,
    callers: Vec<Backlog>,
    /// What became too much, for the function's log.
    complaint: Option<String>,
}

/// What waits for one caller.
#[derive(Debug)]
struct Backlog {
    reply_to: Rc<OwnedFd>,
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
    errno: i32,
    payload: Payload,
    until: u64,
}

impl Outbox {
    /// An empty one.
    pub const fn new(bounds: Bounds) -> Self {
        Self { bounds, callers: Vec::new(), complaint: None }
    }

    /// Tells a caller that its call ended without a response. One that is gone needs no answer.
    pub fn tell(&mut self, reply: &Reply, error: &CallError) {
        let (errno, payload) = wire(error);
        let sent = respond_with(reply.as_fd(), reply.id, errno, payload.outgoing(), Some(0));
        if found_no_room(&sent) {
            self.hold(reply, errno, payload, None);
        }
    }

    /// Sends an answer when its caller has room; nobody waits for it after `until`.
    pub fn hold(&mut self, reply: &Reply, errno: i32, payload: Payload, until: Option<u64>) {
        let until = until.unwrap_or_else(|| monotonic_ns().saturating_add(ROOM_MAX_NS));
        let mut unread = Unread { id: reply.id, errno, payload, until };
        let bounds = self.bounds;
        let same = |backlog: &Backlog| Rc::ptr_eq(&backlog.reply_to, &reply.reply_to);
        let index = self.callers.iter().position(same).unwrap_or_else(|| {
            self.callers.push(Backlog::new(Rc::clone(&reply.reply_to)));
            self.callers.len() - 1
        });
        let backlog = &mut self.callers[index];
        let bytes = backlog.bytes.saturating_add(unread.bytes());
        if bytes > bounds.caller_bytes && !backlog.unread.is_empty() {
            unread.shed(bounds.caller_bytes);
            self.complaint = Some(DROPPED.to_owned());
        }
        backlog.push(unread);
        if backlog.unread.len() > bounds.caller_answers {
            self.end(index);
        }
        self.bound_all();
    }

    /// Has the callers with most pay for what is too much in all.
    fn bound_all(&mut self) {
        let Bounds { answers, bytes, segments, .. } = self.bounds;
        let most = |of: fn(&Backlog) -> u64, limit: u64| {
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
            self.callers[index].shed(bytes);
            self.complaint = Some(DROPPED.to_owned());
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
        self.complaint =
            Some(format!("a caller's connection was closed: it has not read {answers} answers"));
    }

    /// What became too much since it was asked last.
    pub const fn take_complaint(&mut self) -> Option<String> {
        self.complaint.take()
    }

    /// Sends what the callers of these numbers have room for, and gives up what nobody waits for any more.
    pub fn flush(&mut self, room: &[usize], now: u64) {
        for (index, backlog) in self.callers.iter_mut().enumerate() {
            let due = backlog.not_before > 0 && backlog.not_before <= now;
            if due || room.contains(&index) {
                backlog.flush(now);
            }
            if backlog.expires <= now {
                backlog.expire(now);
            }
        }
        self.callers.retain(|backlog| !backlog.unread.is_empty());
    }

    /// Numbers and sockets of callers, to be polled for room; the numbers are good until the next [`Self::flush`].
    pub fn sockets(&self) -> impl Iterator<Item = (usize, BorrowedFd<'_>)> {
        let callers = self.callers.iter().enumerate();
        let polled = callers.filter(|(_, backlog)| backlog.not_before == 0);
        polled.map(|(index, backlog)| (index, backlog.reply_to.as_fd()))
    }

    /// When something is to be done that no socket says.
    pub fn next_deadline(&self) -> Option<u64> {
        let paused = |backlog: &Backlog| (backlog.not_before > 0).then_some(backlog.not_before);
        let times =
            |backlog: &Backlog| [Some(backlog.expires), paused(backlog)].into_iter().flatten();
        self.callers.iter().flat_map(times).min()
    }

    /// True when nothing waits.
    pub const fn is_empty(&self) -> bool {
        self.callers.is_empty()
    }
}

impl Backlog {
    const fn new(reply_to: Rc<OwnedFd>) -> Self {
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
        self.retain(|unread| unread.until > now);
    }

    fn shed(&mut self, limit: u64) {
        self.unread.iter_mut().for_each(|unread| unread.shed(limit));
        self.retain(|_| true);
    }

    fn flush(&mut self, now: u64) {
        self.not_before = 0;
        while let Some(unread) = self.unread.front() {
            let Unread { id, errno, payload, .. } = unread;
            let to = self.reply_to.as_fd();
            if found_no_room(&respond_with(to, *id, *errno, payload.outgoing(), Some(0))) {
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
        if self.errno == 0 { self.payload.len() } else { 0 }
    }

    /// Keeps the call's end and drops its bytes.
    fn shed(&mut self, limit: u64) {
        if self.errno == 0 {
            let length = self.payload.len();
            (self.errno, self.payload) = wire(&CallError::TooLarge {
                message: format!(
                    "the response of {length} bytes was dropped: {limit} bytes of responses may wait for a caller that does not read them; wait for calls before you start more"
                ),
            });
        }
    }
}

/// What travels to a caller.
fn wire(error: &CallError) -> (i32, Payload) {
    (error.errno().code(), Payload::Inline(error_text(error).into_bytes()))
}
