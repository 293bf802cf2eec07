//! Errors that init tells callers itself: at once, or when their sockets have room. A group that fails is one error for
//! each of its parts, and those of one caller may be more than a socket holds.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use crate::modes::CallError;
use crate::modes::local::{Answer, LocalError, respond};
use crate::sys::clock::monotonic_ns;
use crate::sys::seqpacket::SocketError;

use super::work::Reply;

/// Longest time that a caller may take to make room, in nanoseconds.
const ROOM_MAX_NS: u64 = 10_000_000_000;
/// Most errors that wait for room; further ones are not told, and their callers see their own deadlines.
const WAITING_MAX: usize = 8192;

/// Errors on their way.
#[derive(Debug, Default)]
pub struct Outbox {
    waiting: VecDeque<Unread>,
}

#[derive(Debug)]
struct Unread {
    reply: Reply,
    error: CallError,
    until: u64,
}

impl Outbox {
    /// Tells a caller. One that is gone needs no answer.
    pub fn tell(&mut self, reply: &Reply, error: CallError) {
        let answer = Answer::Error(error);
        let sent = respond(reply.as_fd(), reply.id, &answer, Some(0));
        if let (Err(LocalError::Socket(SocketError::Deadline)), Answer::Error(error)) =
            (sent, answer)
            && self.waiting.len() < WAITING_MAX
        {
            let until = monotonic_ns().saturating_add(ROOM_MAX_NS);
            self.waiting.push_back(Unread { reply: reply.clone(), error, until });
        }
    }

    /// Tells those who have room now.
    pub fn flush(&mut self, now: u64) {
        for Unread { reply, error, until } in std::mem::take(&mut self.waiting) {
            let answer = Answer::Error(error);
            let sent = respond(reply.as_fd(), reply.id, &answer, Some(0));
            if let (Err(LocalError::Socket(SocketError::Deadline)), Answer::Error(error)) =
                (sent, answer)
                && until > now
            {
                self.waiting.push_back(Unread { reply, error, until });
            }
        }
    }

    /// The sockets to be polled for room.
    pub fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let before = std::iter::once(None).chain(self.waiting.iter().map(Some));
        let pairs = self.waiting.iter().zip(before);
        pairs
            // Errors of one group to one caller follow each other.
            .filter(|(one, before)| {
                before.is_none_or(|before| !Rc::ptr_eq(&one.reply.reply_to, &before.reply.reply_to))
            })
            .map(|(one, _)| one.reply.as_fd())
    }

    /// When the first of them is given up.
    pub fn next_deadline(&self) -> Option<u64> {
        self.waiting.iter().map(|unread| unread.until).min()
    }

    /// True when nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}
