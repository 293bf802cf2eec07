//! The state of a slot: the worker's phase and the number of its turn, in one word. Pure.

/// What a worker is doing. The numbers are those in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// Makes its first instance.
    Starting = 0,
    /// Makes the next one.
    Making = 1,
    /// Waits for a request: from init and, while direct reads are enabled, from a caller's connection.
    Idle = 2,
    /// Reads from a connection.
    Reading = 3,
    /// Runs a request that it read itself, or that init assigned.
    Running = 4,
    /// Has been assigned work by init, and has not begun it.
    Assigned = 5,
    /// Its deadline has passed; init is killing it.
    Expired = 6,
}

/// Set beside [`Phase::Running`] when the guest has returned: what is left of the turn is to send its answer.
const RETURNED: u64 = 0x80;

/// A slot's word at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotState(pub u64);

impl SlotState {
    pub(super) const fn new(turn: u64, phase: Phase) -> Self {
        Self(turn << 8 | phase as u64)
    }

    /// The worker's phase. A value that no worker of ours writes counts as `Starting`, which gets no work.
    #[must_use]
    pub const fn phase(self) -> Phase {
        match self.0 & 0x7f {
            1 => Phase::Making,
            2 => Phase::Idle,
            3 => Phase::Reading,
            4 => Phase::Running,
            5 => Phase::Assigned,
            6 => Phase::Expired,
            _ => Phase::Starting,
        }
    }

    /// Number of the turn, from 0 before the first request.
    pub const fn turn(self) -> u64 {
        self.0 >> 8
    }

    pub(super) const fn with(self, phase: Phase) -> Self {
        Self::new(self.turn(), phase)
    }

    pub(super) const fn next(self, phase: Phase) -> Self {
        Self::new(self.turn() + 1, phase)
    }

    pub(super) const fn returned(self) -> Self {
        Self(self.0 | RETURNED)
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

    /// True when its worker has made its first instance.
    #[must_use]
    pub const fn has_started(self) -> bool {
        !matches!(self.phase(), Phase::Starting)
    }

    /// True when its worker has begun a request.
    #[must_use]
    pub const fn has_run(self) -> bool {
        self.turn() > 0
    }

    /// True when init can assign it work, now or once its instance is made.
    #[must_use]
    pub const fn is_free(self) -> bool {
        matches!(self.phase(), Phase::Idle | Phase::Making)
    }

    /// True when init may let a request wait for it whatever the queue holds: it is free, or will be without running a
    /// guest first. A caller whose call has ended would otherwise be refused because the worker that answered it does
    /// not get a processor.
    #[must_use]
    pub const fn is_free_soon(self) -> bool {
        let returned = matches!(self.phase(), Phase::Running) && self.0 & RETURNED != 0;
        self.is_free() || returned || matches!(self.phase(), Phase::Reading)
    }

    /// True while it reads or runs a request.
    #[must_use]
    pub const fn is_busy(self) -> bool {
        matches!(self.phase(), Phase::Reading | Phase::Running | Phase::Assigned | Phase::Expired)
    }
}
