//! A worker's slot: the rules by which it and init change its phase.

use std::sync::atomic::AtomicU64;

use crate::modes::local::receiver::ConnectionId;
use crate::sys::shared::{ReadOnly, Word, Words};
use crate::wire::ids::CallId;

use super::phase::{Phase, Seen, Took, Wait};
use super::{ASLEEP, CONNECTION, DEADLINE, GATE, ID_HIGH, ID_LOW, OPEN, SLEEP, STATE};

/// One worker's slot, for the worker and for init.
#[derive(Debug)]
pub struct Slot<'a, W = AtomicU64> {
    pub(super) inits: ReadOnly<'a, W>,
    pub(super) common: &'a Words<W>,
    own: &'a Words<W>,
    /// From 1 on.
    pub(super) number: u64,
    /// Those with numbers up to this one read from connections.
    pub(super) readers: u64,
}

impl<W> Clone for Slot<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W> Copy for Slot<'_, W> {}

impl<'a, W: Word> Slot<'a, W> {
    /// The slot of the worker with this index.
    pub const fn new(
        inits: ReadOnly<'a, W>,
        common: &'a Words<W>,
        own: &'a Words<W>,
        index: usize,
        readers: usize,
    ) -> Self {
        Self { inits, common, own, number: index as u64 + 1, readers: readers as u64 }
    }

    /// Whether its worker reads from connections, or works for init only.
    #[must_use]
    pub const fn reads(&self) -> bool {
        self.number <= self.readers
    }
}

/// The worker's part.
impl<W: Word> Slot<'_, W> {
    /// False while init alone gives out work.
    #[must_use]
    pub fn gate_is_open(&self) -> bool {
        self.inits.load(GATE) == OPEN
    }

    fn may_read(&self) -> bool {
        self.reads() && self.gate_is_open()
    }

    /// The worker has an instance and nothing to do: what it waits for now.
    pub fn settle(&self) -> Wait {
        // Terminates: each further round is one change of the gate, or work from init.
        loop {
            let seen = self.seen();
            let open = self.may_read();
            let (phase, wait) =
                if open { (Phase::Idle, Wait::Anybody) } else { (Phase::Parked, Wait::Init) };
            match seen.phase() {
                Phase::Assigned => return Wait::Init,
                Phase::Expired => return Wait::End,
                _ => {
                    let settled = seen.phase() == phase || self.swap(seen, seen.with(phase));
                    if settled && self.may_read() == open {
                        return wait;
                    }
                }
            }
        }
    }

    /// Begins to read from a connection; false when it must not: init has work, or the gate is closed.
    #[must_use]
    pub fn take(&self, connection: ConnectionId) -> bool {
        let seen = self.seen();
        self.own[CONNECTION].store(connection.0);
        if seen.phase() != Phase::Idle || !self.swap(seen, seen.next(Phase::Taking)) {
            return false;
        }
        let open = self.gate_is_open();
        if !open {
            self.put_back();
        }
        open
    }

    /// There was nothing to run.
    pub fn put_back(&self) {
        // Nobody else changes it while it is `Taking`.
        self.own[STATE].store(self.seen().with(Phase::Idle).0);
    }

    /// Runs what it read; true when init sleeps and must be told.
    #[must_use]
    pub fn run(&self, id: CallId, deadline: u64) -> bool {
        let [low, high] = halves(id);
        self.own[ID_LOW].store(low);
        self.own[ID_HIGH].store(high);
        self.own[DEADLINE].store(deadline);
        self.own[STATE].store(self.seen().with(Phase::Running).0);
        self.inits.load(SLEEP) == ASLEEP
    }

    /// The turn is over, its callers have been answered. False when its deadline passed: it is being killed.
    #[must_use]
    pub fn rest(&self) -> bool {
        let seen = self.seen();
        match seen.phase() {
            Phase::Running | Phase::Assigned => self.swap(seen, seen.with(Phase::Making)),
            phase => phase != Phase::Expired,
        }
    }
}

/// Init's part.
impl<W: Word> Slot<'_, W> {
    /// The slot now.
    #[must_use]
    pub fn seen(&self) -> Seen {
        Seen(self.own[STATE].load())
    }

    /// The request that the worker took itself, if it runs one or was killed while it ran it, and the moment of that.
    #[must_use]
    pub fn took(&self) -> Option<(Seen, Took)> {
        let seen = self.seen();
        if !matches!(seen.phase(), Phase::Running | Phase::Expired) {
            return None;
        }
        let id = CallId(whole([self.own[ID_LOW].load(), self.own[ID_HIGH].load()]));
        let connection = ConnectionId(self.own[CONNECTION].load());
        let took = Took { connection, id, deadline: self.own[DEADLINE].load() };
        // Else it went on meanwhile, and these are no words of one turn.
        (self.seen() == seen).then_some((seen, took))
    }

    /// The connection that it reads from, or read from last.
    #[must_use]
    pub fn connection(&self) -> ConnectionId {
        ConnectionId(self.own[CONNECTION].load())
    }

    /// Gives a free worker a turn, before it is sent what to do.
    #[must_use]
    pub fn assign(&self) -> Option<Seen> {
        let seen = self.seen();
        let assigned = seen.next(Phase::Assigned);
        (seen.is_free() && self.swap(seen, assigned)).then_some(assigned)
    }

    /// It could not be sent what to do; it is told to look again.
    pub fn take_away(&self, assigned: Seen) {
        self.swap(assigned, assigned.with(Phase::Making));
    }

    /// Ends a turn whose deadline passed; false when it ended by itself.
    #[must_use]
    pub fn expire(&self, seen: Seen) -> bool {
        let runs = matches!(seen.phase(), Phase::Running | Phase::Assigned);
        runs && self.swap(seen, seen.with(Phase::Expired))
    }

    /// Another worker gets the slot.
    pub fn reset(&self) {
        self.own[STATE].store(Seen::new(0, Phase::Starting).0);
    }

    /// True when its worker began a request.
    #[must_use]
    pub fn had_turns(&self) -> bool {
        self.seen().turn() > 0
    }

    fn swap(&self, from: Seen, to: Seen) -> bool {
        self.own[STATE].compare_exchange(from.0, to.0).is_ok()
    }
}

pub(super) fn halves(CallId(bytes): CallId) -> [u64; 2] {
    let whole = u128::from_le_bytes(bytes);
    [whole, whole >> 64].map(|half| u64::try_from(half & u128::from(u64::MAX)).unwrap_or(0))
}

pub(super) fn whole([low, high]: [u64; 2]) -> [u8; 16] {
    (u128::from(high) << 64 | u128::from(low)).to_le_bytes()
}
