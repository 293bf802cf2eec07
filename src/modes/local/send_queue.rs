//! The send queue: answers that wait until their callers' connections have room. They delay no other caller.
//!
//! Runs in a callee's sandbox init, for its callers on this host, and in a shim, for callers of functions on other
//! hosts. Answers wait, for example, for a caller that starts many calls and reads late. The queue is bounded, for one
//! caller and for all. When a total is exceeded, the caller with the most waiting answers loses its own.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, RawFd};
use std::time::Duration;

use cwasi_abi::CALLS_IN_FLIGHT_MAX;

use crate::{CallError, OutgoingPayload, Payload, TooLarge};
use cwasi_sys::clock::{Deadline, monotonic_ns};
use cwasi_sys::seqpacket;
use cwasi_wire::envelope::Response;
use cwasi_wire::ids::CallId;
use cwasi_wire::metadata;

use super::load::Load;
use super::{error_answer, found_no_room, send_answer};

#[cfg(test)]
mod tests;

/// Longest time that a caller may take to make room for an error whose call has no deadline.
pub const ROOM_MAX: Duration = Duration::from_secs(10);
/// Time between two tries to send a segment for which the socket has room.
const PAUSE: Duration = Duration::from_millis(10);
/// Most answers that wait for one caller: as many as a worker can have calls in flight.
const CALLER_ANSWERS_MAX: usize = CALLS_IN_FLIGHT_MAX;
/// Most bytes that wait for one caller: as many answers of the longest kind that travels in a frame.
const CALLER_BYTES_MAX: u64 = 64 << 20;
/// Most answers that wait for all callers.
const ANSWERS_MAX: usize = 8 * CALLS_IN_FLIGHT_MAX;
/// Most bytes that wait for all callers; less in a container with a small memory limit.
const BYTES_MAX: u64 = 256 << 20;

/// Most bytes of large answers that one caller may leave in its connection; less in a container with a memory limit.
const UNREAD_MAX: u64 = 256 << 20;
/// The part of a container's memory limit that they may take.
const UNREAD_PART: u64 = 32;

/// The line in the function's log.
const DROPPED: &str = "responses were dropped: their caller does not read them";

/// The limits of a send queue.
#[derive(Clone, Copy, Debug)]
pub struct SendLimits {
    /// What the answers for one caller hold. Their descriptors are bounded by the total.
    pub caller: Load,
    /// What all answers hold.
    pub total: Load,
    /// Most bytes of large answers that one caller may leave in its connection, if all are as large.
    pub unread: u64,
}

impl SendLimits {
    /// In a container with this memory limit, whose init may hold as many descriptors for answers.
    pub fn within(memory_max: Option<u64>, descriptors: usize) -> Self {
        let bytes = memory_max.map_or(BYTES_MAX, |max| BYTES_MAX.min(max / 4));
        let caller_bytes = CALLER_BYTES_MAX.min(bytes);
        Self {
            caller: Load { messages: CALLER_ANSWERS_MAX, bytes: caller_bytes, descriptors },
            total: Load { messages: ANSWERS_MAX, bytes, descriptors },
            unread: unread_max(memory_max),
        }
    }
}

/// Most bytes of large answers that one caller may leave in its connection, in a container with this memory limit.
#[must_use]
pub fn unread_max(memory_max: Option<u64>) -> u64 {
    memory_max.map_or(UNREAD_MAX, |max| UNREAD_MAX.min(max / UNREAD_PART))
}

/// The answers that wait, by caller. `S` is a handle of a caller's connection, which clones share.
#[derive(Debug)]
pub struct SendQueue<S> {
    bounds: SendLimits,
    /// Waiting answers keep their connection open, so no other one has its descriptor number.
    callers: BTreeMap<RawFd, CallerQueue<S>>,
    /// The last caller that exceeded a limit, and a log line about it. To be taken.
    pub complaint: Option<(S, String)>,
}

/// The answers that wait for one caller.
#[derive(Debug)]
struct CallerQueue<S> {
    reply_to: S,
    queued: VecDeque<QueuedAnswer>,
    /// What they hold: their sum, because thousands may wait at each push.
    load: Load,
    /// No answer expires before this: thousands may wait at each flush.
    earliest: Deadline,
    /// Do not send before this time: the socket has room, but as many bytes as it may have, or the kernel's limit of
    /// descriptors in flight is reached.
    not_before: Option<Deadline>,
}

/// An answer that waits.
#[derive(Debug)]
struct QueuedAnswer {
    response: Response,
    payload: Payload,
    until: Deadline,
}

impl<S: AsFd + Clone> SendQueue<S> {
    /// An empty one.
    pub const fn new(bounds: SendLimits) -> Self {
        Self { bounds, callers: BTreeMap::new(), complaint: None }
    }

    /// Answers a call with an error.
    pub fn send_error(&mut self, caller: &S, id: CallId, error: &CallError) {
        let (status, text) = error_answer(error);
        self.send(caller, Response::of(id, status), text, Deadline::after(ROOM_MAX));
    }

    /// Sends an answer, or queues it when the connection has no room. A caller that is gone needs none.
    pub fn send(&mut self, caller: &S, response: Response, payload: Payload, until: Deadline) {
        let unread = self.bounds.unread;
        let sent = send_answer(caller.as_fd(), &response, payload.outgoing(), unread);
        if found_no_room(&sent) {
            self.enqueue(caller, response, payload, until);
        }
    }

    /// Queues an answer until its caller has room, and drops it at `until`.
    pub fn enqueue(&mut self, caller: &S, response: Response, payload: Payload, until: Deadline) {
        let mut queued = QueuedAnswer { response, payload, until };
        let bounds = self.bounds.caller;
        let number = number(caller);
        let fresh = || CallerQueue::new(caller.clone());
        let backlog = self.callers.entry(number).or_insert_with(fresh);
        let bytes = backlog.load.bytes.saturating_add(queued.load().bytes);
        if bytes > bounds.bytes && !backlog.queued.is_empty() {
            queued.shed(bounds.bytes);
            self.complaint = Some((caller.clone(), DROPPED.to_owned()));
        }
        backlog.push(queued);
        if backlog.queued.len() > bounds.messages {
            // Answers whose calls have ended do not count against the caller.
            backlog.expire(monotonic_ns());
        }
        if backlog.queued.len() > bounds.messages {
            self.end(number);
        }
        self.bound_all();
    }

    /// Enforces the totals: the callers with the most waiting answers lose theirs.
    fn bound_all(&mut self) {
        let bounds = self.bounds.total;
        let total = Load::sum(self.callers.values().map(|backlog| backlog.load));
        let most = |of: fn(&Load) -> u64| {
            let callers = self.callers.iter();
            callers.max_by_key(|(_, backlog)| of(&backlog.load)).map(|(number, _)| *number)
        };
        // A single answer may exceed the bytes.
        let shed = if total.bytes > bounds.bytes && total.messages > 1 {
            most(|load| load.bytes)
        } else if total.descriptors > bounds.descriptors {
            most(|load| load.descriptors as u64)
        } else {
            None
        };
        let exceeds = total.messages > bounds.messages;
        let ended = exceeds.then(|| most(|load| load.messages as u64)).flatten();
        if let Some(backlog) = shed.and_then(|number| self.callers.get_mut(&number)) {
            backlog.queued.iter_mut().for_each(|queued| queued.shed(bounds.bytes));
            backlog.load = Load::sum(backlog.queued.iter().map(QueuedAnswer::load));
            self.complaint = Some((backlog.reply_to.clone(), DROPPED.to_owned()));
        }
        if let Some(number) = ended {
            self.end(number);
        }
    }

    /// Shuts a caller's connection down, which ends all calls on it.
    fn end(&mut self, number: RawFd) {
        let Some(backlog) = self.callers.get_mut(&number) else { return };
        let answers = backlog.queued.len();
        backlog.queued.clear();
        backlog.load = Load::default();
        seqpacket::end(backlog.reply_to.as_fd());
        let text = format!("a caller's connection was closed: it has not read {answers} answers");
        self.complaint = Some((backlog.reply_to.clone(), text));
    }

    /// Sends the answers for which the callers of these numbers have room, and drops the expired ones.
    pub fn flush(&mut self, room: &[RawFd], now: u64) {
        let unread = self.bounds.unread;
        self.callers.retain(|number, backlog| {
            let due = backlog.not_before.is_some_and(|at| at.has_passed(now));
            if due || room.contains(number) {
                backlog.flush(now, unread);
            }
            backlog.expire(now);
            !backlog.queued.is_empty()
        });
    }

    /// Sends the answers for which one caller has room, and drops its expired ones. Returns when to try again without
    /// room; `None` when no answer waits.
    pub fn flush_one(&mut self, caller: &S, now: u64) -> Option<Deadline> {
        let backlog = self.callers.get_mut(&number(caller))?;
        backlog.flush(now, self.bounds.unread);
        backlog.expire(now);
        if backlog.queued.is_empty() {
            self.forget(caller);
            return None;
        }
        Some(backlog.next_deadline())
    }

    /// Drops the answers for a caller whose connection has ended.
    pub fn forget(&mut self, caller: &S) {
        self.callers.remove(&number(caller));
    }

    /// Numbers and sockets of callers, to be polled for room; the numbers are good until the next [`Self::flush`].
    pub fn sockets(&self) -> impl Iterator<Item = (RawFd, BorrowedFd<'_>)> {
        let polled = self.callers.iter().filter(|(_, backlog)| backlog.not_before.is_none());
        polled.map(|(number, backlog)| (*number, backlog.reply_to.as_fd()))
    }

    /// When to ask again for answers that expire or are tried again.
    pub fn next_deadline(&self) -> Option<Deadline> {
        self.callers.values().map(CallerQueue::next_deadline).min()
    }

    /// True when nothing waits.
    pub fn is_empty(&self) -> bool {
        self.callers.is_empty()
    }
}

/// The number of a caller's connection.
fn number(caller: &impl AsFd) -> RawFd {
    caller.as_fd().as_raw_fd()
}

impl<S: AsFd> CallerQueue<S> {
    fn new(reply_to: S) -> Self {
        let (queued, load) = (VecDeque::new(), Load::default());
        Self { reply_to, queued, load, earliest: Deadline::NEVER, not_before: None }
    }

    fn push(&mut self, queued: QueuedAnswer) {
        self.load = self.load.and(queued.load());
        self.earliest = self.earliest.min(queued.until);
        self.queued.push_back(queued);
    }

    fn expire(&mut self, now: u64) {
        if !self.earliest.has_passed(now) {
            return;
        }
        self.earliest = Deadline::NEVER;
        self.queued.retain(|queued| {
            let stays = !queued.until.has_passed(now);
            if stays {
                self.earliest = self.earliest.min(queued.until);
            } else {
                self.load = self.load.without(queued.load());
            }
            stays
        });
    }

    /// When to ask again for answers that expire or are tried again.
    fn next_deadline(&self) -> Deadline {
        self.not_before.map_or(self.earliest, |at| at.min(self.earliest))
    }

    fn flush(&mut self, now: u64, unread_max: u64) {
        self.not_before = None;
        while let Some(queued) = self.queued.front() {
            let (to, content) = (self.reply_to.as_fd(), queued.payload.outgoing());
            if found_no_room(&send_answer(to, &queued.response, content, unread_max)) {
                if matches!(content, OutgoingPayload::Segment(_)) && seqpacket::has_room(to) {
                    self.not_before = Some(Deadline::at_ns(now).plus(PAUSE));
                }
                return;
            }
            // It was sent, or its caller is gone.
            self.load = self.load.without(queued.load());
            self.queued.pop_front();
        }
    }
}

impl QueuedAnswer {
    /// What it holds. All bytes of a response count; those of an error do not: they are few, and errors are bounded in
    /// number.
    fn load(&self) -> Load {
        let head = metadata::length(&self.response.metadata) as u64;
        let bytes = if self.response.errno == 0 { self.payload.len() + head } else { 0 };
        Load { bytes, ..Load::of(&self.payload) }
    }

    /// Replaces the response by an error, to free its bytes.
    fn shed(&mut self, limit: u64) {
        if let (0, Some(id)) = (self.response.errno, self.response.id()) {
            let length = self.payload.len();
            let (status, text) = error_answer(&TooLarge::Unread { length, limit }.into());
            (self.response, self.payload) = (Response::of(id, status), text);
        }
    }
}
