//! What a worker is given: one call, or all calls of a group of parts.

use std::collections::BTreeMap;
use std::iter;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use crate::modes::local::receiver::ConnectionId;
use crate::modes::local::{Incoming, outbox};
use crate::modes::{CallError, Payload};

use super::queue::{Item, Load};

/// Where the end of one call goes.
pub type Reply = outbox::Reply<Rc<OwnedFd>>;
/// Answers for which their callers have no room.
pub type Outbox = outbox::Outbox<Rc<OwnedFd>>;

/// One invocation to be.
#[derive(Debug)]
pub enum Work {
    /// A call that is handled alone.
    One(Box<Incoming>),
    /// Parts that are handled together.
    Group(Parts),
}

/// Parts that are handled together; at least one.
#[derive(Debug)]
pub struct Parts {
    /// How many there should be.
    pub expected: u32,
    /// Number of the first that is here.
    pub number: u32,
    /// That part.
    pub first: Box<Incoming>,
    /// The others with their numbers, ascending.
    pub others: Vec<(u32, Box<Incoming>)>,
}

impl Parts {
    /// The parts of a group by number; `None` when there are none.
    pub fn of(expected: u32, calls: BTreeMap<u32, Box<Incoming>>) -> Option<Self> {
        let mut calls = calls.into_iter();
        let (number, first) = calls.next()?;
        Some(Self { expected, number, first, others: calls.collect() })
    }
}

impl Work {
    /// The call that stands for all of it.
    pub fn first(&self) -> &Incoming {
        match self {
            Self::One(incoming) => incoming,
            Self::Group(parts) => &parts.first,
        }
    }

    /// The other calls that wait for its end.
    fn others(&self) -> &[(u32, Box<Incoming>)] {
        match self {
            Self::One(_) => &[],
            Self::Group(parts) => &parts.others,
        }
    }

    /// Every call that waits for its end.
    pub fn calls(&self) -> impl Iterator<Item = &Incoming> {
        iter::once(self.first()).chain(self.others().iter().map(|(_, incoming)| &**incoming))
    }

    /// Tells every caller that it will not run.
    pub fn refuse(&self, error: &CallError, outbox: &mut Outbox) {
        self.calls().for_each(|incoming| outbox.tell(&Reply::to(incoming), error));
    }
}

impl Item for Work {
    type Connection = ConnectionId;

    fn lose(&mut self, connection: &ConnectionId) -> bool {
        // A complete group stays complete: its handler runs as long as anybody waits for it.
        self.calls().all(|incoming| incoming.connection == *connection)
    }

    fn load(&self) -> Load {
        self.calls().map(load).fold(Load::default(), Load::and)
    }
}

/// What one call takes of init while it waits.
fn load(incoming: &Incoming) -> Load {
    match &incoming.payload {
        Payload::Inline(bytes) => Load { bytes: bytes.len() as u64, descriptors: 0 },
        // A leased one comes with its token.
        Payload::Segment(segment) => {
            Load { bytes: 0, descriptors: 1 + usize::from(segment.token().is_some()) }
        }
    }
}

impl Reply {
    /// Of a request.
    pub fn to(incoming: &Incoming) -> Self {
        Self { reply_to: Rc::clone(&incoming.reply_to), id: incoming.id }
    }
}
