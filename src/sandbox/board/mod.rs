//! Who runs what: one slot for each worker in memory that it shares with init, and the rules by which requests get to
//! workers without passing through init.
//!
//! Pure: atomics, no I/O, no clock. A slot is one word, its *phase* and the number of its *turn*, and what the turn is
//! about. Who may change the phase, and to what:
//!
//! ```text
//!              worker                    init
//! Starting ──> Idle | Parked
//! Making   ──> Idle | Parked         ──> Assigned       (an instance is being made; work may come all the same)
//! Idle     ──> Taking | Parked       ──> Assigned       (waits for callers' connections and for init)
//! Parked   ──> Idle                  ──> Assigned       (waits for init only: the gate is closed)
//! Taking   ──> Running | Idle | Parked
//! Running  ──> Making                ──> Expired        (took a request itself)
//! Assigned ──> Making                ──> Expired | Making
//! Expired  is killed
//! ```
//!
//! Invariants:
//! - Every change of a phase that both may change is a compare-and-swap, so one of them wins and the other knows.
//! - A worker reads from a connection only in `Taking`, which it enters with the gate open: whoever closes the gate and
//!   then finds nobody `Taking` is the only reader.
//! - `Running` says whose request it is before the guest sees a byte of it.
//! - A killed worker's turn is the one whose deadline passed: `Expired` is only reached from that very turn.
//!
//! Who sleeps where: a message to a connection wakes somebody who sleeps on it, and so nobody should who is not needed.
//! One worker, the *watcher*, sleeps on the connections; the others are its *reserve*, and sleep until they are called
//! or init has something for them. A watcher that takes a request stays it when it will be back at once, and hands the
//! watch on when the request is long or more wait, as long as there are processors for more workers: it calls one of the
//! reserve. Who takes a processor and who has been away with one request for long is what init saw at its last look.
//! Should nobody watch although somebody could, init finds what waits at its next look: what these words say decides
//! what is faster, not what is run.
//!
//! Who may write what, and what a worker that was taken over can do with it:
//! - Init's page (the gate, whether init sleeps, who is away for long): init only. Workers cannot make it writable
//!   ([`crate::sys::shared`]), nor reach init's mapping of it ([`super::privileges`]).
//! - The common page (who watches, who is in reserve, the last processor): every worker. A wrong word there has requests
//!   wait for init's look; it runs none, and neither ends nor prolongs one.
//! - A slot: its worker, and init. A worker can lie about its own requests: it keeps one past its deadline, or has init
//!   answer one that it runs. Another worker's slot is not in its memory.
//!
//! All orderings are sequentially consistent: init closes the gate, or goes to sleep, and *then* looks at the slots;
//! workers write their slot and *then* look at the gate, or at whether init sleeps. One of the two sees the other.

use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};

use crate::modes::local::receiver::ConnectionId;
use crate::sys::shared::{ReadOnly, SharedPages, Words};
use crate::wire::ids::CallId;

#[cfg(test)]
mod tests;

/// Workers that read from connections; those beyond get their work from init. A message passes all that watch its
/// connection, and more requests at a time than these begin at init's next look.
pub const READERS_MAX: usize = 32;

/// Words of init's page, which workers can only read.
const GATE: usize = 0;
const SLEEP: usize = 1;
const LONG: usize = 2;
/// Words of the common page, which every worker writes.
const WATCHER: usize = 0;
const RESERVE: usize = 1;
const PLACE: usize = 2;
/// Words of a slot.
const STATE: usize = 0;
const CONNECTION: usize = 1;
const ID_LOW: usize = 2;
const ID_HIGH: usize = 3;
const DEADLINE: usize = 4;

/// Values of the gate; a new page says closed.
const CLOSED: u64 = 0;
const OPEN: u64 = 1;
const AWAKE: u64 = 0;
const ASLEEP: u64 = 1;
/// Nobody's number.
const NOBODY: u64 = 0;

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
pub struct Seen(u64);

impl Seen {
    /// What the first word of a slot's page says.
    #[must_use]
    pub const fn of(word: u64) -> Self {
        Self(word)
    }

    const fn new(turn: u64, phase: Phase) -> Self {
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

    const fn turn(self) -> u64 {
        self.0 >> 8
    }

    const fn with(self, phase: Phase) -> Self {
        Self::new(self.turn(), phase)
    }

    const fn next(self, phase: Phase) -> Self {
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

/// Init's view.
#[derive(Debug)]
pub struct Board {
    pages: SharedPages,
    readers: usize,
}

impl Board {
    /// A board of `slots` slots whose gate is closed.
    ///
    /// # Errors
    /// When memory or mappings run out.
    pub fn new(slots: usize) -> std::io::Result<Self> {
        Ok(Self { pages: SharedPages::new(slots)?, readers: slots.min(READERS_MAX) })
    }

    /// The pages, to be passed on.
    #[must_use]
    pub const fn pages(&self) -> &SharedPages {
        &self.pages
    }

    /// How many workers read from connections: those of the first slots.
    #[must_use]
    pub const fn readers(&self) -> usize {
        self.readers
    }

    /// One worker's slot.
    #[must_use]
    pub fn slot(&self, index: usize) -> Option<Slot<'_>> {
        let (inits, common, own) = (self.pages.view(), self.pages.common(), self.pages.own(index)?);
        Some(Slot { inits, common, own, number: index as u64 + 1, readers: self.readers as u64 })
    }

    /// Lets workers read from connections, or no more. True when that changed it.
    pub fn set_gate(&self, open: bool) -> bool {
        let value = if open { OPEN } else { CLOSED };
        self.pages.owners()[GATE].swap(value, SeqCst) != value
    }

    /// Says which workers, by the numbers of their slots, have had the same request for long. True when one of the reserve
    /// must be called, because one of these was to watch.
    pub fn set_long(&self, slots: impl Iterator<Item = usize>) -> bool {
        let numbers =
            slots.map(|index| index as u64 + 1).filter(|number| *number <= self.readers as u64);
        let long = numbers.fold(0, |long, number| long | bit(number));
        self.pages.owners()[LONG].store(long, Relaxed);
        let common = self.pages.common();
        let watcher = common[WATCHER].load(SeqCst);
        watcher != NOBODY
            && long & bit(watcher) != 0
            && common[WATCHER].compare_exchange(watcher, NOBODY, SeqCst, SeqCst).is_ok()
            && common[RESERVE].load(SeqCst) != 0
    }

    /// Has the watcher watch no more; true when one of the reserve must be called in its place.
    #[must_use]
    pub fn depose_watcher(&self) -> bool {
        let common = self.pages.common();
        common[WATCHER].store(NOBODY, SeqCst);
        common[RESERVE].load(SeqCst) != 0
    }

    /// Says whether workers that begin a turn must wake init. Whoever says so looks at the slots afterwards.
    pub fn set_asleep(&self, asleep: bool) {
        self.pages.owners()[SLEEP].store(if asleep { ASLEEP } else { AWAKE }, SeqCst);
    }
}

/// One worker's slot, for the worker and for init.
#[derive(Clone, Copy, Debug)]
pub struct Slot<'a> {
    inits: ReadOnly<'a>,
    common: &'a Words,
    own: &'a Words,
    /// Never [`NOBODY`].
    number: u64,
    /// Those with numbers up to this one read.
    readers: u64,
}

impl Slot<'_> {
    /// Whether its worker reads from connections, or works for init only.
    #[must_use]
    pub const fn reads(&self) -> bool {
        self.number <= self.readers
    }
}

/// The worker's part.
impl Slot<'_> {
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
        self.own[CONNECTION].store(connection.0, Release);
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
        self.own[STATE].store(self.seen().with(Phase::Idle).0, SeqCst);
    }

    /// Runs what it read; true when init sleeps and must be told.
    #[must_use]
    pub fn run(&self, id: CallId, deadline: u64) -> bool {
        let [low, high] = halves(id);
        self.own[ID_LOW].store(low, Release);
        self.own[ID_HIGH].store(high, Release);
        self.own[DEADLINE].store(deadline, Release);
        self.own[STATE].store(self.seen().with(Phase::Running).0, SeqCst);
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

/// Who watches, for the worker.
impl Slot<'_> {
    /// Becomes the watcher, unless somebody else is.
    #[must_use]
    pub fn watches(&self) -> bool {
        let watcher = self.common[WATCHER].compare_exchange(NOBODY, self.number, SeqCst, SeqCst);
        watcher.is_ok() || watcher == Err(self.number)
    }

    /// It will soon look again: nobody else need watch.
    pub fn keep_watch(&self) {
        self.common[WATCHER].store(self.number, SeqCst);
    }

    /// It looks no more for a while, but runs a request on this processor; true when one of the reserve must be called.
    #[must_use]
    pub fn hand_on(&self, processor: usize) -> bool {
        self.common[PLACE].store(processor as u64, Relaxed);
        self.common[WATCHER].store(NOBODY, SeqCst);
        self.common[RESERVE].load(SeqCst) != 0
    }

    /// Joins the reserve before it sleeps; false when nobody watches.
    #[must_use]
    pub fn join_reserve(&self) -> bool {
        self.common[RESERVE].fetch_or(bit(self.number), SeqCst);
        let watched = self.common[WATCHER].load(SeqCst) != NOBODY;
        if !watched {
            self.leave_reserve();
        }
        watched
    }

    /// How many of those that read are at work and get on: not in reserve, and not away for long.
    #[must_use]
    pub fn at_work(&self) -> usize {
        let others = self.common[RESERVE].load(Relaxed) | self.inits.load(LONG);
        let others = u64::from(others.count_ones());
        usize::try_from(self.readers.saturating_sub(others)).unwrap_or(0)
    }

    /// The processor of the last one that handed the watch on.
    #[must_use]
    pub fn place(&self) -> usize {
        usize::try_from(self.common[PLACE].load(Relaxed)).unwrap_or(usize::MAX)
    }

    /// It is awake again.
    pub fn leave_reserve(&self) {
        self.common[RESERVE].fetch_and(!bit(self.number), SeqCst);
    }
}

/// Init's part.
impl Slot<'_> {
    /// The slot now.
    #[must_use]
    pub fn seen(&self) -> Seen {
        Seen(self.own[STATE].load(SeqCst))
    }

    /// The request that the worker took itself, if it runs one or was killed while it ran it, and the moment of that.
    #[must_use]
    pub fn took(&self) -> Option<(Seen, Took)> {
        let seen = self.seen();
        if !matches!(seen.phase(), Phase::Running | Phase::Expired) {
            return None;
        }
        let id = CallId(whole([self.own[ID_LOW].load(SeqCst), self.own[ID_HIGH].load(SeqCst)]));
        let connection = ConnectionId(self.own[CONNECTION].load(SeqCst));
        let took = Took { connection, id, deadline: self.own[DEADLINE].load(SeqCst) };
        // Else it went on meanwhile, and these are no words of one turn.
        (self.seen() == seen).then_some((seen, took))
    }

    /// The connection that it reads from, or read from last.
    #[must_use]
    pub fn connection(&self) -> ConnectionId {
        ConnectionId(self.own[CONNECTION].load(SeqCst))
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

    /// Its worker does not watch any more; true when it did, and one of the reserve must be called in its place.
    #[must_use]
    pub fn lose_watch(&self) -> bool {
        let watcher = self.common[WATCHER].compare_exchange(self.number, NOBODY, SeqCst, SeqCst);
        self.reads() && watcher.is_ok() && self.common[RESERVE].load(SeqCst) != 0
    }

    /// Its worker is gone, and watches no more; true when one of the reserve must be called in its place.
    #[must_use]
    pub fn vacate(&self) -> bool {
        if !self.reads() {
            return false;
        }
        self.leave_reserve();
        let watcher = self.common[WATCHER].compare_exchange(self.number, NOBODY, SeqCst, SeqCst);
        // It may have been called and died before it watched.
        let nobody = matches!(watcher, Ok(_) | Err(NOBODY));
        nobody && self.common[RESERVE].load(SeqCst) != 0
    }

    /// Another worker gets the slot.
    pub fn reset(&self) {
        self.own[STATE].store(Seen::new(0, Phase::Starting).0, SeqCst);
    }

    /// True when its worker began a request.
    #[must_use]
    pub fn had_turns(&self) -> bool {
        self.seen().turn() > 0
    }

    fn swap(&self, from: Seen, to: Seen) -> bool {
        self.own[STATE].compare_exchange(from.0, to.0, SeqCst, SeqCst).is_ok()
    }
}

/// Each of the numbers of those that read has its own.
const fn bit(number: u64) -> u64 {
    1 << (number % 64)
}

fn halves(CallId(bytes): CallId) -> [u64; 2] {
    let whole = u128::from_le_bytes(bytes);
    [whole, whole >> 64].map(|half| u64::try_from(half & u128::from(u64::MAX)).unwrap_or(0))
}

fn whole([low, high]: [u64; 2]) -> [u8; 16] {
    (u128::from(high) << 64 | u128::from(low)).to_le_bytes()
}
