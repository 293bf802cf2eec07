//! A piece of work for a worker: one call, or all calls of a group of parts. Runs in sandbox init.

use std::collections::BTreeMap;
use std::iter;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use crate::modes::local::{ConnectionId, IncomingRequest, send_queue};
use crate::modes::{CallError, Payload};

use super::queue::{QueueItem, QueueUsage};

/// The target of one call's answer.
pub type ReplyTarget = send_queue::ReplyTarget<Rc<OwnedFd>>;
/// The answers that wait for room at their callers.
pub type SendQueue = send_queue::SendQueue<Rc<OwnedFd>>;

/// The input of one invocation.
#[derive(Debug)]
pub enum Work {
    /// A call that is handled alone.
    One(Box<IncomingRequest>),
    /// GroupedCalls that are handled together.
    Group(GroupedCalls),
}

/// GroupedCalls that are handled together; at least one.
#[derive(Debug)]
pub struct GroupedCalls {
    /// How many there should be.
    pub expected: u32,
    /// Number of the first that is here.
    pub number: u32,
    /// That part.
    pub first: Box<IncomingRequest>,
    /// The others with their numbers, ascending.
    pub others: Vec<(u32, Box<IncomingRequest>)>,
}

impl GroupedCalls {
    /// The parts of a group by number; `None` when there are none.
    pub fn of(expected: u32, calls: BTreeMap<u32, Box<IncomingRequest>>) -> Option<Self> {
        let mut calls = calls.into_iter();
        let (number, first) = calls.next()?;
        Some(Self { expected, number, first, others: calls.collect() })
    }
}

impl Work {
    /// The call that stands for all of it.
    pub fn first(&self) -> &IncomingRequest {
        match self {
            Self::One(incoming) => incoming,
            Self::Group(parts) => &parts.first,
        }
    }

    /// The other calls that wait for its end.
    pub fn others(&self) -> &[(u32, Box<IncomingRequest>)] {
        match self {
            Self::One(_) => &[],
            Self::Group(parts) => &parts.others,
        }
    }

    /// Every call that waits for its end.
    pub fn calls(&self) -> impl Iterator<Item = &IncomingRequest> {
        iter::once(self.first()).chain(self.others().iter().map(|(_, incoming)| &**incoming))
    }

    /// Keeps only the callers that wait for its end.
    pub fn drop_payloads(&mut self) {
        let (first, others) = match self {
            Self::One(incoming) => (incoming, &mut [][..]),
            Self::Group(parts) => (&mut parts.first, &mut parts.others[..]),
        };
        for incoming in iter::once(first).chain(others.iter_mut().map(|(_, incoming)| incoming)) {
            incoming.payload = Payload::Inline(Vec::new());
        }
    }

    /// Answers every caller with an error.
    pub fn refuse(&self, error: &CallError, send_queue: &mut SendQueue) {
        self.calls().for_each(|incoming| send_queue.send_error(&ReplyTarget::to(incoming), error));
    }
}

impl QueueItem for Work {
    type Connection = ConnectionId;

    fn lose(&mut self, connection: &ConnectionId) -> bool {
        // A complete group stays complete: its handler runs as long as one caller waits for it.
        self.calls().all(|incoming| incoming.connection.id == *connection)
    }

    fn load(&self) -> QueueUsage {
        self.calls().map(load).fold(QueueUsage::default(), QueueUsage::and)
    }
}

/// The resources of init that one waiting call holds.
fn load(incoming: &IncomingRequest) -> QueueUsage {
    match &incoming.payload {
        Payload::Inline(bytes) => QueueUsage { bytes: bytes.len() as u64, descriptors: 0 },
        // A leased one comes with its token.
        Payload::Segment(segment) => {
            QueueUsage { bytes: 0, descriptors: 1 + usize::from(segment.token().is_some()) }
        }
    }
}

impl ReplyTarget {
    /// Of a request.
    pub fn to(incoming: &IncomingRequest) -> Self {
        Self { reply_to: Rc::clone(&incoming.connection.fd), id: incoming.id }
    }
}
