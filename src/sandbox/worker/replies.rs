//! Where the end of an invocation goes: to its caller, or to the callers of all parts of a group.

use std::iter;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use cwasi_abi::{Errno, INLINE_MAX};

use crate::modes::local::{Answer, LocalError, respond, send_payload};
use crate::modes::{Outgoing, Payload};
use crate::sandbox::stderr;
use crate::sys::clock::monotonic_ns;
use crate::sys::pool::SegmentPool;
use crate::sys::segment::{Segment, SegmentError};
use crate::sys::seqpacket::{Deadline, SocketError};
use crate::wire::envelope::Response;
use crate::wire::ids::CallId;

/// How long one caller that does not read is waited for before the others have their turn, in nanoseconds.
const TURN_NS: u64 = 10_000_000;

/// The calls that one invocation answers.
#[derive(Debug)]
pub struct Replies {
    id: CallId,
    connection: Rc<OwnedFd>,
    /// Of a group's further parts: call and index of its connection.
    others: Vec<(CallId, u32)>,
    /// Connections from index 1 on.
    more: Vec<OwnedFd>,
    /// Whether the answer may be lent to every caller.
    lends: bool,
    /// What it is lent from.
    pool: Option<SegmentPool>,
}

impl Replies {
    /// Of one call; `lends`: to it and all that will be added, answers may be lent.
    pub fn new(
        id: CallId,
        connection: Rc<OwnedFd>,
        lends: bool,
        pool: Option<&SegmentPool>,
    ) -> Self {
        let pool = pool.filter(|_| lends).cloned();
        Self { id, connection, others: Vec::new(), more: Vec::new(), lends, pool }
    }

    /// Whether the answer may be a leased segment.
    pub const fn lends(&self) -> bool {
        self.lends
    }

    /// True when the connection of this index is here.
    pub fn knows(&self, index: u32) -> bool {
        self.connection(index).is_some()
    }

    /// Adds a call over the connection of this index, which comes with it when it is a new one; false when there
    /// is no such connection.
    pub fn add(&mut self, id: CallId, index: u32, brought: Option<OwnedFd>) -> bool {
        self.more.extend(brought);
        self.others.push((id, index));
        self.knows(index)
    }

    fn connection(&self, index: u32) -> Option<BorrowedFd<'_>> {
        match usize::try_from(index).ok()?.checked_sub(1) {
            None => Some(self.connection.as_fd()),
            Some(index) => self.more.get(index).map(AsFd::as_fd),
        }
    }

    fn all(&self) -> impl Iterator<Item = (BorrowedFd<'_>, CallId)> {
        let others = self.others.iter();
        let others = others.filter_map(|(id, index)| Some((self.connection(*index)?, *id)));
        iter::once((self.connection.as_fd(), self.id)).chain(others)
    }

    /// Sends the end to everybody.
    pub fn send(&self, answer: &Answer, deadline: Deadline) {
        match answer {
            Answer::Response(Payload::Segment(segment))
                if segment.token().is_some() && !self.lends =>
            {
                match segment.sealed_copy() {
                    Ok(copy) => {
                        self.send_as_is(&Answer::Response(Payload::Segment(copy)), deadline)
                    }
                    Err(error) => report(Err(error.into())),
                }
            }
            answer => self.send_as_is(answer, deadline),
        }
    }

    fn send_as_is(&self, answer: &Answer, deadline: Deadline) {
        if self.others.is_empty() {
            return report(respond(self.connection.as_fd(), self.id, answer, deadline));
        }
        let mut left: Vec<_> = self.all().collect();
        let mut turn = Some(0);
        // Until the deadline: a caller that reads late finds its answer, and holds up nobody but this worker.
        while !left.is_empty() {
            left.retain(|(fd, id)| match respond(*fd, *id, answer, turn) {
                Err(LocalError::Socket(SocketError::Deadline)) => true,
                sent => {
                    report(sent);
                    false
                }
            });
            let now = monotonic_ns();
            if deadline.is_some_and(|deadline| deadline <= now) {
                return;
            }
            turn = Some(now.saturating_add(TURN_NS));
        }
    }

    /// Sends a response straight from linear memory to the socket or segment; one segment for all callers.
    pub fn send_bytes(&self, bytes: &[u8], deadline: Deadline) {
        if !self.others.is_empty() {
            let payload = match bytes.len() {
                ..=INLINE_MAX => Ok(Payload::Inline(bytes.to_vec())),
                _ => self.copy_of(bytes).map(Payload::Segment),
            };
            return match payload {
                Ok(payload) => self.send(&Answer::Response(payload), deadline),
                Err(error) => report(Err(error.into())),
            };
        }
        let response = Response {
            call_id: self.id.0.to_vec(),
            errno: Errno::Ok.code(),
            ..Response::default()
        };
        let (fd, bytes) = (self.connection.as_fd(), Outgoing::Bytes(bytes));
        report(send_payload(fd, &response, bytes, self.pool.as_ref(), deadline));
    }

    fn copy_of(&self, bytes: &[u8]) -> Result<Segment, SegmentError> {
        let lent = self.pool.as_ref().and_then(|pool| pool.copy_of(bytes));
        lent.map_or_else(|| Segment::copy_of(bytes), Ok)
    }
}

/// A caller that is gone or reads no more needs no answer; a fault of ours is said.
fn report(result: Result<(), LocalError>) {
    match result {
        Ok(()) | Err(LocalError::Socket(_)) => {}
        Err(error) => stderr::try_line(&format!("an answer was lost: {error}")),
    }
}
