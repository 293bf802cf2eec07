//! The answer of an invocation: sent to its caller, or to the callers of all parts of a group. Runs in workers.
//!
//! A worker never waits for a caller to read. It hands answers for which a connection has no room to init, which keeps
//! them in its bounded [send queue](crate::modes::local::send_queue).

use std::cell::{Cell, RefCell};
use std::os::fd::AsFd;
use std::time::Duration;

use cwasi_abi::{Errno, INLINE_MAX};

use crate::modes::local::{
    CallResult, CallerConnection, ConnectionId, LocalError, error_answer, found_no_room,
    respond_with, send_as_is,
};
use crate::modes::{CallError, OutgoingPayload, Overload, Payload};
use crate::sandbox::stderr;
use crate::sys::clock::Deadline;
use crate::sys::pool::SegmentPool;
use crate::sys::segment::{Segment, SegmentError};
use crate::wire::envelope::{CallStatus, Metadata, Response, Undelivered};
use crate::wire::ids::CallId;

use super::InitSocket;

/// How long a worker tries to hand a segment to init while too many descriptors are on their way.
const HAND_OVER_MAX: Duration = Duration::from_millis(100);

/// The calls that one invocation answers.
#[derive(Debug)]
pub struct Replies {
    calls: Vec<(CallerConnection, CallId)>,
    /// When the callers stop waiting.
    deadline: Option<Deadline>,
    /// Whether the answer may be lent to every caller.
    lends: bool,
    /// What the callee set beside its response.
    metadata: RefCell<Vec<Metadata>>,
    /// Errno and length of what was sent.
    ended: Cell<(i32, u64)>,
    /// The pool from which it is lent.
    pool: Option<SegmentPool>,
    /// Takes the answers for which callers have no room.
    init: InitSocket,
}

impl Replies {
    /// Of calls that wait until `deadline`.
    pub fn new(
        calls: Vec<(CallerConnection, CallId)>,
        deadline: Option<Deadline>,
        pool: Option<&SegmentPool>,
        init: InitSocket,
    ) -> Self {
        let lends = calls.iter().all(|(connection, _)| connection.lends);
        let pool = pool.filter(|_| lends).cloned();
        let ended = Cell::new((Errno::Broken.code(), 0));
        Self { calls, deadline, lends, metadata: RefCell::default(), ended, pool, init }
    }

    /// When the callers stop waiting.
    pub const fn deadline(&self) -> Option<Deadline> {
        self.deadline
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

    /// Sends the answer to all callers.
    pub fn send(&self, answer: &CallResult) {
        match answer {
            Ok(Payload::Segment(segment)) if segment.token().is_some() && !self.lends => {
                match segment.sealed_copy() {
                    Ok(copy) => self.send_to_all(&self.answered(), (&copy).into()),
                    Err(error) => report(Err(error.into())),
                }
            }
            Ok(payload) => self.send_to_all(&self.answered(), payload.outgoing()),
            Err(error) => {
                let (status, text) = error_answer(error);
                self.send_to_all(&status, text.outgoing());
            }
        }
    }

    /// Sends a response straight from linear memory to the socket or segment; one segment for all callers.
    pub fn send_bytes(&self, bytes: &[u8]) {
        if bytes.len() <= INLINE_MAX {
            return self.send_to_all(&self.answered(), OutgoingPayload::Bytes(bytes));
        }
        match self.copy_of(bytes) {
            Ok(segment) => self.send(&Ok(Payload::Segment(segment))),
            Err(error) => report(Err(error.into())),
        }
    }

    fn copy_of(&self, bytes: &[u8]) -> Result<Segment, SegmentError> {
        let lent = self.pool.as_ref().and_then(|pool| pool.copy_of(bytes));
        lent.map_or_else(|| Segment::copy_of(bytes), Ok)
    }

    fn send_to_all(&self, outcome: &CallStatus, content: OutgoingPayload<'_>) {
        self.ended.set((outcome.errno, content.len()));
        for (connection, id) in &self.calls {
            let now = Some(Deadline::PASSED);
            let sent = respond_with(connection.fd.as_fd(), *id, outcome, content, now);
            if found_no_room(&sent) {
                self.hand_over(connection.id, *id, outcome, content);
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
    ) {
        let send = |outcome: CallStatus, content: OutgoingPayload<'_>, until| {
            let undelivered = Undelivered {
                response: Some(Response::of(id, outcome)).into(),
                connection: connection.0,
                deadline_mono_ns: Deadline::to_field(self.deadline),
                ..Undelivered::default()
            };
            send_as_is(self.init.0.as_fd(), &undelivered, content, &[], until)
        };
        // Init always reads. Only descriptors may have to wait, because the kernel bounds them per user.
        let until =
            matches!(content, OutgoingPayload::Segment(_)).then(|| Deadline::after(HAND_OVER_MAX));
        let sent = send(outcome.clone(), content, until);
        if !found_no_room(&sent) {
            return report(sent);
        }
        let message = Overload::Descriptors.to_string();
        let (outcome, text) = error_answer(&CallError::Internal { message });
        report(send(outcome, text.outgoing(), None));
    }
}

/// Logs an answer that was lost by a fault of ours. A caller that is gone needs no answer.
fn report(result: Result<(), LocalError>) {
    match result {
        Ok(()) | Err(LocalError::Socket(_)) => {}
        Err(error) => stderr::try_line(&format!("an answer was lost: {error}")),
    }
}
