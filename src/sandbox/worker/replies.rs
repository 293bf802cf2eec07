//! The answer of an invocation: sent to its caller, or to the callers of all parts of a group. Runs in workers.
//!
//! A worker never waits for a caller to read. It hands answers for which a connection has no room to init, which keeps
//! them in its bounded [send queue](crate::modes::local::send_queue).

use std::cell::{Cell, RefCell};
use std::iter;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use cwasi_abi::{Errno, INLINE_MAX};

use crate::modes::local::{
    CallResult, ConnectionId, LocalError, error_text, found_no_room, respond_with, send_as_is,
};
use crate::modes::{CallError, OutgoingPayload, Overload, Payload};
use crate::sandbox::stderr;
use crate::sys::clock::Deadline;
use crate::sys::pool::SegmentPool;
use crate::sys::segment::{Segment, SegmentError};
use crate::wire::envelope::{CallStatus, Metadata, Undelivered};
use crate::wire::ids::CallId;

/// How long a worker tries to hand a segment to init while too many descriptors are on their way.
const HAND_OVER_MAX: Duration = Duration::from_millis(100);

/// A caller's connection.
#[derive(Debug)]
pub struct Destination {
    /// Its number in the receiver, by which init knows it.
    pub connection: ConnectionId,
    /// The connection.
    pub fd: Rc<OwnedFd>,
}

/// The calls that one invocation answers.
#[derive(Debug)]
pub struct Replies {
    id: CallId,
    caller: Destination,
    /// Of a group's further parts: call and index of its connection.
    others: Vec<(CallId, u32)>,
    /// Connections from index 1 on.
    more: Vec<Destination>,
    /// Whether the answer may be lent to every caller.
    lends: bool,
    /// What the callee set beside its response.
    metadata: RefCell<Vec<Metadata>>,
    /// Errno and length of what was sent.
    ended: Cell<(i32, u64)>,
    /// The pool from which it is lent.
    pool: Option<SegmentPool>,
    /// Takes the answers for which callers have no room.
    init: Rc<OwnedFd>,
}

impl Replies {
    /// Of one call; `lends`: to it and all that will be added, answers may be lent.
    pub fn new(
        id: CallId,
        caller: Destination,
        lends: bool,
        pool: Option<&SegmentPool>,
        init: Rc<OwnedFd>,
    ) -> Self {
        let pool = pool.filter(|_| lends).cloned();
        let (others, more, metadata) = (Vec::new(), Vec::new(), RefCell::default());
        let ended = Cell::new((Errno::Broken.code(), 0));
        Self { id, caller, others, more, lends, metadata, ended, pool, init }
    }

    /// Sets what travels beside the response.
    pub fn set_metadata(&self, metadata: Vec<(String, String)>) {
        let pairs = metadata.into_iter().map(|(key, value)| Metadata::of(key, value));
        self.metadata.replace(pairs.collect());
    }

    /// Errno and length of the answer in bytes.
    pub fn ended(&self) -> (i32, u64) {
        self.ended.get()
    }

    fn answered(&self) -> CallStatus {
        CallStatus::answered_with(self.metadata.borrow().clone())
    }

    /// Whether the answer may be a leased segment.
    pub const fn lends(&self) -> bool {
        self.lends
    }

    /// True when the connection of this index is here.
    pub fn knows(&self, index: u32) -> bool {
        self.destination(index).is_some()
    }

    /// Adds a call over the connection of this index, which comes with it when it is a new one; false when there
    /// is no such connection.
    pub fn add(&mut self, id: CallId, index: u32, brought: Option<Destination>) -> bool {
        self.more.extend(brought);
        self.others.push((id, index));
        self.knows(index)
    }

    fn destination(&self, index: u32) -> Option<&Destination> {
        match usize::try_from(index).ok()?.checked_sub(1) {
            None => Some(&self.caller),
            Some(index) => self.more.get(index),
        }
    }

    fn all(&self) -> impl Iterator<Item = (&Destination, CallId)> {
        let others = self.others.iter();
        let others = others.filter_map(|(id, index)| Some((self.destination(*index)?, *id)));
        iter::once((&self.caller, self.id)).chain(others)
    }

    /// Sends the answer to all callers. They stop waiting at `deadline`.
    pub fn send(&self, answer: &CallResult, deadline: Option<Deadline>) {
        match answer {
            Ok(Payload::Segment(segment)) if segment.token().is_some() && !self.lends => {
                match segment.sealed_copy() {
                    Ok(copy) => self.send_as_is(
                        &self.answered(),
                        OutgoingPayload::Segment((&copy).into()),
                        deadline,
                    ),
                    Err(error) => report(Err(error.into())),
                }
            }
            Ok(payload) => self.send_as_is(&self.answered(), payload.outgoing(), deadline),
            Err(error) => {
                let text = error_text(error);
                let content = OutgoingPayload::Bytes(text.as_bytes());
                self.send_as_is(&error.outcome(), content, deadline);
            }
        }
    }

    /// Sends a response straight from linear memory to the socket or segment; one segment for all callers.
    pub fn send_bytes(&self, bytes: &[u8], deadline: Option<Deadline>) {
        if bytes.len() <= INLINE_MAX {
            let content = OutgoingPayload::Bytes(bytes);
            return self.send_as_is(&self.answered(), content, deadline);
        }
        match self.copy_of(bytes) {
            Ok(segment) => self.send(&Ok(Payload::Segment(segment)), deadline),
            Err(error) => report(Err(error.into())),
        }
    }

    fn copy_of(&self, bytes: &[u8]) -> Result<Segment, SegmentError> {
        let lent = self.pool.as_ref().and_then(|pool| pool.copy_of(bytes));
        lent.map_or_else(|| Segment::copy_of(bytes), Ok)
    }

    fn send_as_is(
        &self,
        outcome: &CallStatus,
        content: OutgoingPayload<'_>,
        deadline: Option<Deadline>,
    ) {
        self.ended.set((outcome.errno, content.len()));
        for (destination, id) in self.all() {
            let sent =
                respond_with(destination.fd.as_fd(), id, outcome, content, Some(Deadline::PASSED));
            if found_no_room(&sent) {
                self.hand_over(destination.connection, id, outcome, content, deadline);
            } else {
                report(sent);
            }
        }
    }

    /// Hands an answer to init, which sends it when the caller has read others.
    fn hand_over(
        &self,
        connection: ConnectionId,
        id: CallId,
        outcome: &CallStatus,
        content: OutgoingPayload<'_>,
        deadline: Option<Deadline>,
    ) {
        let undelivered = Undelivered {
            call_id: id.0.to_vec(),
            errno: outcome.errno,
            detail: outcome.detail.into(),
            metadata: outcome.metadata.clone(),
            connection: connection.0,
            deadline_mono_ns: Deadline::to_field(deadline),
            ..Undelivered::default()
        };
        // Init always reads. Only descriptors may have to wait, because the kernel bounds them per user.
        let until =
            matches!(content, OutgoingPayload::Segment(_)).then(|| Deadline::after(HAND_OVER_MAX));
        let sent = send_as_is(self.init(), &undelivered, content, &[], until);
        if !found_no_room(&sent) {
            return report(sent);
        }
        let error = CallError::Internal { message: Overload::Descriptors.to_string() };
        let text = error_text(&error);
        let CallStatus { errno, detail, .. } = error.outcome();
        let metadata = Vec::new();
        let undelivered = Undelivered { errno, detail: detail.into(), metadata, ..undelivered };
        report(send_as_is(
            self.init(),
            &undelivered,
            OutgoingPayload::Bytes(text.as_bytes()),
            &[],
            None,
        ));
    }

    fn init(&self) -> BorrowedFd<'_> {
        self.init.as_fd()
    }
}

/// Logs an answer that was lost by a fault of ours. A caller that is gone needs no answer.
fn report(result: Result<(), LocalError>) {
    match result {
        Ok(()) | Err(LocalError::Socket(_)) => {}
        Err(error) => stderr::try_line(&format!("an answer was lost: {error}")),
    }
}
