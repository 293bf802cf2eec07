//! How work gets to a worker: an assignment with the first call, then one frame for each further part of a
//! group. A connection that several parts came over is handed on once.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use crate::modes::Payload;
use crate::modes::local::receiver::ConnectionId;
use crate::modes::local::{LocalError, forward_frame};
use crate::wire::envelope::{Group, Part};

use super::work::{Reply, Work};

/// A part that goes to a worker when its socket has room.
#[derive(Debug)]
pub struct Unsent {
    part: Part,
    /// Of a caller that the worker does not know yet.
    connection: Option<Rc<OwnedFd>>,
    payload: Payload,
}

impl Unsent {
    /// Sends it.
    ///
    /// # Errors
    /// [`SocketError::Deadline`](crate::sys::seqpacket::SocketError::Deadline) when there is no room now.
    pub fn send(&self, socket: BorrowedFd<'_>) -> Result<(), LocalError> {
        let extra: Vec<_> = self.connection.iter().map(AsFd::as_fd).collect();
        forward_frame(socket, &self.part, &self.payload, &extra, Some(0))
    }
}

/// Who calls: nobody in particular when the parts come from several functions.
pub fn caller(work: &Work) -> String {
    let first = &work.first().caller.function;
    let same = work.calls().all(|incoming| incoming.caller.function == *first);
    if same { first.clone() } else { String::new() }
}

/// What the assignment says about a group.
pub fn group(work: &Work) -> Option<Group> {
    let Work::Group(parts) = work else { return None };
    let others = u32::try_from(parts.others.len()).unwrap_or(u32::MAX);
    let (expected, number) = (parts.expected, parts.number);
    Some(Group { expected, parts: others.saturating_add(1), number, ..Group::default() })
}

/// Who waits for the end of work whose assignment has been sent, and what is still to be sent.
pub fn rest(work: Work) -> (Reply, Vec<Reply>, VecDeque<Unsent>) {
    let (first, calls) = match work {
        Work::One(incoming) => (incoming, Vec::new()),
        Work::Group(parts) => (parts.first, parts.others),
    };
    let mut connections: Vec<ConnectionId> = vec![first.connection];
    let (mut others, mut unsent) = (Vec::new(), VecDeque::new());
    for (number, incoming) in calls {
        let known = connections.iter().position(|connection| *connection == incoming.connection);
        let index = known.unwrap_or(connections.len());
        if known.is_none() {
            connections.push(incoming.connection);
        }
        let part = Part {
            call_id: incoming.id.0.to_vec(),
            number,
            connection: u32::try_from(index).unwrap_or(u32::MAX),
            connection_number: incoming.connection.0,
            ..Part::default()
        };
        others.push(Reply::to(&incoming));
        let connection = known.is_none().then(|| Rc::clone(&incoming.reply_to));
        unsent.push_back(Unsent { part, connection, payload: incoming.payload });
    }
    (Reply::to(&first), others, unsent)
}
