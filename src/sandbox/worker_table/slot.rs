//! A worker's slot: the transitions of its phase, for the worker and for init. Runs in both.

use std::sync::atomic::AtomicU64;

use cwasi_modes::local::{CallKey, ConnectionId};
use cwasi_sys::clock::Deadline;
use cwasi_sys::shared::{ReadOnly, Word, Words};
use cwasi_wire::ids::CallId;

use super::phase::{Phase, SlotState};
use super::{
    ASLEEP, CONNECTION, DEADLINE, DIRECT_READS, ID_HIGH, ID_LOW, NOT_RENEWED_LOGGED, POOL_BYTES,
    STATE,
};

#[derive(Debug)]
pub struct WorkerSlot<'a, W = AtomicU64> {
    pub(super) inits: ReadOnly<'a, W>,
    pub(super) common: &'a Words<W>,
    own: &'a Words<W>,
    /// From 1 on.
    pub(super) number: u64,
    /// Those with numbers up to this one read from connections.
    pub(super) readers: u64,
}

impl<W> Clone for WorkerSlot<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W> Copy for WorkerSlot<'_, W> {}

impl<'a, W: Word> WorkerSlot<'a, W> {
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

    /// The worker's place in the table.
    #[must_use]
    pub const fn index(&self) -> u64 {
        self.number - 1
    }

    /// True when its worker may read from connections; false when it gets work from init only.
    #[must_use]
    pub const fn is_reader(&self) -> bool {
        self.number <= self.readers
    }
}

impl<W: Word> WorkerSlot<'_, W> {
    /// True while workers may read from connections.
    #[must_use]
    pub fn direct_reads_enabled(&self) -> bool {
        self.inits.load(DIRECT_READS) != 0
    }

    fn may_read(&self) -> bool {
        self.is_reader() && self.direct_reads_enabled()
    }

    /// Marks the worker as free: it has an instance and no request. Returns true when it may read from connections, and
    /// false when it waits for init only: for work that init assigns, or to be killed.
    pub fn become_idle(&self) -> bool {
        // Terminates: each further round is a change by init, of direct reads or of the slot.
        loop {
            let (state, direct) = (self.state(), self.may_read());
            let settled = match state.phase() {
                Phase::Assigned | Phase::Expired => return false,
                Phase::Idle => true,
                _ => self.swap(state, state.with(Phase::Idle)),
            };
            if settled && self.may_read() == direct {
                return direct;
            }
        }
    }

    /// Begins to read from a connection. Returns false when it must not: init has assigned work, direct reads are
    /// disabled, or the worker is no reader.
    #[must_use]
    pub fn begin_reading(&self, connection: ConnectionId) -> bool {
        let state = self.state();
        self.own[CONNECTION].store(connection.0);
        if state.phase() != Phase::Idle || !self.swap(state, state.next(Phase::Reading)) {
            return false;
        }
        let may_read = self.may_read();
        if !may_read {
            self.abandon_reading();
        }
        may_read
    }

    /// Ends reading: there was no request.
    pub fn abandon_reading(&self) {
        // Init does not change it while it is `Reading`.
        self.own[STATE].store(self.state().with(Phase::Idle).0);
    }

    /// Records the request that it read and runs now, so that init can enforce its deadline. Returns true when init
    /// sleeps and must be woken.
    #[must_use]
    pub fn begin_running(&self, id: CallId, deadline: Deadline) -> bool {
        let [low, high] = halves(id);
        self.own[ID_LOW].store(low);
        self.own[ID_HIGH].store(high);
        self.own[DEADLINE].store(deadline.as_ns());
        self.own[STATE].store(self.state().with(Phase::Running).0);
        self.inits.load(ASLEEP) != 0
    }

    /// Begins the assigned work. Returns false when it must not: init has taken the work back, or the deadline has
    /// passed.
    #[must_use]
    pub fn begin_assigned(&self) -> bool {
        let state = self.state();
        state.phase() == Phase::Assigned && self.swap(state, state.with(Phase::Running))
    }

    /// Notes that the guest has returned, before its callers are answered.
    pub fn note_returned(&self) {
        let state = self.state();
        if state.phase() == Phase::Running {
            let _or_expired = self.swap(state, state.returned());
        }
    }

    /// True for the first worker that asks: it logs that instances are made anew.
    #[must_use]
    pub fn is_first_not_renewed(&self) -> bool {
        self.common[NOT_RENEWED_LOGGED].swap(1) == 0
    }

    /// Ends the turn: its callers have been answered. Returns false when its deadline has passed and init is killing
    /// the worker.
    #[must_use]
    pub fn end_turn(&self) -> bool {
        let state = self.state();
        match state.phase() {
            Phase::Running => self.swap(state, state.with(Phase::Making)),
            phase => phase != Phase::Expired,
        }
    }
}

/// Figures for the metrics.
impl<W: Word> WorkerSlot<'_, W> {
    /// The worker: records the bytes of its pool.
    pub fn note_pool_bytes(&self, bytes: u64) {
        self.own[POOL_BYTES].store(bytes);
    }

    /// Init: the bytes of the worker's pool, as it says.
    #[must_use]
    pub fn pool_bytes(&self) -> u64 {
        self.own[POOL_BYTES].load()
    }
}

impl<W: Word> WorkerSlot<'_, W> {
    #[must_use]
    pub fn state(&self) -> SlotState {
        SlotState(self.own[STATE].load())
    }

    /// The request that the worker read itself, if it runs one or was killed while it ran it: the state that was read
    /// with it, its call, and until when it may run. Means nothing while the worker runs assigned work.
    #[must_use]
    pub fn running_request(&self) -> Option<(SlotState, CallKey, Deadline)> {
        let state = self.state();
        if !matches!(state.phase(), Phase::Running | Phase::Expired) {
            return None;
        }
        let id = CallId(whole([self.own[ID_LOW].load(), self.own[ID_HIGH].load()]));
        let call = CallKey { connection: self.connection(), id };
        let deadline = Deadline::at_ns(self.own[DEADLINE].load());
        // Otherwise the worker went on meanwhile, and these are words of different turns.
        (self.state() == state).then_some((state, call, deadline))
    }

    /// The connection that it reads from, or that it read from last.
    #[must_use]
    pub fn connection(&self) -> ConnectionId {
        ConnectionId(self.own[CONNECTION].load())
    }

    /// Assigns a turn to a free worker, before init sends the work.
    #[must_use]
    pub fn assign(&self) -> Option<SlotState> {
        let state = self.state();
        let assigned = state.next(Phase::Assigned);
        (state.is_free() && self.swap(state, assigned)).then_some(assigned)
    }

    /// Takes an assignment back. Returns false when the worker has begun it.
    #[must_use]
    pub fn unassign(&self, assigned: SlotState) -> bool {
        self.swap(assigned, assigned.with(Phase::Making))
    }

    /// Expires a turn whose deadline has passed. Returns false when the turn ended by itself.
    #[must_use]
    pub fn expire(&self, turn: SlotState) -> bool {
        // Three times, because the worker may begin assigned work and return from it in between.
        (0..3).any(|_| {
            let state = self.state();
            let runs = matches!(state.phase(), Phase::Running | Phase::Assigned);
            runs && state.same_turn(turn) && self.swap(state, state.with(Phase::Expired))
        })
    }

    /// Resets the slot for the next worker.
    pub fn reset(&self) {
        self.own[POOL_BYTES].store(0);
        self.own[STATE].store(SlotState::new(0, Phase::Starting).0);
    }

    fn swap(&self, from: SlotState, to: SlotState) -> bool {
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
