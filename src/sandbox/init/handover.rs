//! Hands work to a worker: an assignment with the first call, then one frame for each further part of a group. A
//! connection over which several parts came is passed once. Runs in sandbox init.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use crate::modes::local::{ConnectionId, LocalError, forward_frame};
use crate::sys::clock::Deadline;
use crate::wire::envelope::{Assignment, Group, Part, Request};

use super::work::Work;

/// A part that waits for room in the worker's socket.
#[derive(Debug)]
pub struct PendingPart {
    part: Part,
    /// The caller's connection, if the worker does not have it yet.
    connection: Option<Rc<OwnedFd>>,
    /// Its index among the work's other calls.
    index: usize,
}

impl PendingPart {
    /// Sends it, a part of `work`.
    ///
    /// # Errors
    /// [`SocketError::Deadline`](crate::sys::seqpacket::SocketError::Deadline) when there is no room now.
    pub fn send(&self, socket: BorrowedFd<'_>, work: &Work) -> Result<(), LocalError> {
        let extra: Vec<_> = self.connection.iter().map(AsFd::as_fd).collect();
        let Some((_, incoming)) = work.others().get(self.index) else { return Ok(()) };
        forward_frame(socket, &self.part, &incoming.payload, &extra, Some(Deadline::PASSED))
    }
}

/// The assignment of `work`, with its first call.
pub fn assignment(work: &Work, deadline: Deadline) -> Assignment {
    let first = work.first();
    Assignment {
        request: Some(Request { target: String::new(), ..first.request.clone() }).into(),
        caller: caller(work),
        deadline_mono_ns: deadline.as_ns(),
        group: group(work).into(),
        lends: work.calls().all(|incoming| incoming.connection.lends),
        connection: first.connection.id.0,
        ..Assignment::default()
    }
}

/// The calling function; empty when the parts come from several functions.
fn caller(work: &Work) -> String {
    let first = &work.first().connection.caller;
    let same = work.calls().all(|incoming| incoming.connection.caller == *first);
    if same { first.clone() } else { String::new() }
}

/// The assignment's description of a group.
fn group(work: &Work) -> Option<Group> {
    let Work::Group(parts) = work else { return None };
    let others = u32::try_from(parts.others.len()).unwrap_or(u32::MAX);
    let (expected, number) = (parts.expected, parts.number);
    Some(Group { expected, parts: others.saturating_add(1), number, ..Group::default() })
}

/// The parts that are still to be sent of work whose assignment has been sent.
pub fn rest(work: &Work) -> VecDeque<PendingPart> {
    let mut connections: Vec<ConnectionId> = vec![work.first().connection.id];
    let mut unsent = VecDeque::new();
    for (index, (number, incoming)) in work.others().iter().enumerate() {
        let known = connections.iter().position(|connection| *connection == incoming.connection.id);
        let place = known.unwrap_or(connections.len());
        if known.is_none() {
            connections.push(incoming.connection.id);
        }
        let part = Part {
            call_id: incoming.id.0.to_vec(),
            number: *number,
            connection: u32::try_from(place).unwrap_or(u32::MAX),
            connection_number: incoming.connection.id.0,
            ..Part::default()
        };
        let connection = known.is_none().then(|| Rc::clone(&incoming.connection.fd));
        unsent.push_back(PendingPart { part, connection, index });
    }
    unsent
}
