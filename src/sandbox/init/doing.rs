//! What a worker was doing when it ended: what it was given, or what it took itself.

use std::iter;

use crate::modes::Payload;
use crate::modes::local::receiver::ConnectionId;
use crate::sandbox::board::{Phase, Seen, Slot, Took};
use crate::wire::envelope::Undelivered;

use super::signals::Ending;
use super::work::Reply;

/// What init gave a worker to do.
#[derive(Debug)]
pub struct Running {
    /// Where the answer goes.
    pub reply: Reply,
    /// Where else it goes: to the callers of a group's other parts.
    pub others: Vec<Reply>,
    /// `CLOCK_MONOTONIC` nanoseconds.
    pub deadline: u64,
    /// The deadline passed and the worker was killed for it.
    pub expired: bool,
    /// The worker's turn.
    pub turn: Seen,
}

impl Running {
    /// Everybody who waits for its end.
    pub fn replies(&self) -> impl Iterator<Item = &Reply> {
        iter::once(&self.reply).chain(&self.others)
    }

    /// The turn is not the worker's any more.
    pub fn is_over(&self, seen: Seen) -> bool {
        let runs = matches!(seen.phase(), Phase::Assigned | Phase::Expired);
        !(runs && seen.same_turn(self.turn))
    }
}

/// What a worker was doing when it ended.
#[derive(Debug)]
pub enum Doing {
    /// Nothing that anybody waits for.
    Nothing,
    /// What init had given it.
    Given(Running),
    /// A request that it had taken itself.
    Took {
        /// Whose.
        took: Took,
        /// The deadline passed and the worker was killed for it.
        expired: bool,
    },
    /// It read from this connection. Nobody knows whether it had read a request.
    Taking(ConnectionId),
}

impl Doing {
    /// What the worker of `slot` is doing, which was given `running` last.
    pub fn of(running: Option<Running>, slot: Slot<'_>) -> Self {
        if let Some(running) = running.filter(|running| !running.is_over(slot.seen())) {
            return Self::Given(running);
        }
        match slot.took() {
            Some((seen, took)) => Self::Took { took, expired: seen.phase() == Phase::Expired },
            None if slot.seen().phase() == Phase::Taking => Self::Taking(slot.connection()),
            None => Self::Nothing,
        }
    }
}

/// What became of a worker.
#[derive(Debug)]
pub struct Lost {
    /// How it ended.
    pub ending: Ending,
    /// What it was doing.
    pub doing: Doing,
    /// It had not got all of what it was given, so it had not begun.
    pub unbegun: bool,
    /// It had not even made its first instance.
    pub starting: bool,
    /// Answers for which their callers had no room.
    pub undelivered: Vec<(Undelivered, Payload)>,
}
