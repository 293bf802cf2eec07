//! What a worker does, as one word says it: its phase, and the number of its turn.

use crate::modes::local::receiver::ConnectionId;
use crate::wire::ids::CallId;

/// What a worker is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// Makes its first instance.
    Starting = 0,
    /// Makes the next one.
    Making = 1,
    /// Waits for a request from anybody.
    Idle = 2,
    /// Waits for a request from init.
    Parked = 3,
    /// Reads from a connection.
    Taking = 4,
    /// Runs what it read.
    Running = 5,
    /// Has been given work by init.
    Assigned = 6,
    /// Its deadline passed; it is being killed.
    Expired = 7,
}

/// A slot's word at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen(pub(super) u64);

impl Seen {
    /// What the first word of a slot's page says.
    #[must_use]
    pub const fn of(word: u64) -> Self {
        Self(word)
    }

    pub(super) const fn new(turn: u64, phase: Phase) -> Self {
        Self(turn << 8 | phase as u64)
    }

    /// What the worker does. What no worker of ours writes is `Starting`, which gets no work.
    #[must_use]
    pub const fn phase(self) -> Phase {
        match self.0 & 0xff {
            1 => Phase::Making,
            2 => Phase::Idle,
            3 => Phase::Parked,
            4 => Phase::Taking,
            5 => Phase::Running,
            6 => Phase::Assigned,
            7 => Phase::Expired,
            _ => Phase::Starting,
        }
    }

    pub(super) const fn turn(self) -> u64 {
        self.0 >> 8
    }

    pub(super) const fn with(self, phase: Phase) -> Self {
        Self::new(self.turn(), phase)
    }

    pub(super) const fn next(self, phase: Phase) -> Self {
        Self::new(self.turn() + 1, phase)
    }

    /// True when both are of one turn.
    #[must_use]
    pub const fn same_turn(self, other: Self) -> bool {
        self.turn() == other.turn()
    }

    /// True when its worker has begun a request since then.
    #[must_use]
    pub const fn is_later_than(self, before: Self) -> bool {
        self.turn() > before.turn()
    }

    /// True when it can be given work, now or when its instance is there.
    #[must_use]
    pub const fn is_free(self) -> bool {
        matches!(self.phase(), Phase::Idle | Phase::Parked | Phase::Making)
    }

    /// True when a request is in its hands.
    #[must_use]
    pub const fn is_busy(self) -> bool {
        matches!(self.phase(), Phase::Taking | Phase::Running | Phase::Assigned | Phase::Expired)
    }
}

/// A request that a worker took itself, as it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Took {
    /// Where it came from.
    pub connection: ConnectionId,
    /// Its call.
    pub id: CallId,
    /// `CLOCK_MONOTONIC` nanoseconds.
    pub deadline: u64,
}

/// What a worker is to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Its callers' connections and init.
    Anybody,
    /// Init.
    Init,
    /// Nothing: it is being killed.
    End,
}
