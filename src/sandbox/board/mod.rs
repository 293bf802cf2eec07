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
//! Who sleeps where ([`leader`]): a message to a connection wakes everybody who sleeps on it. So one worker, the
//! *leader*, sleeps on the connections. The others are its *followers* and sleep until the leader, or init, wakes one of
//! them to lead. A leader that takes a request gives up the lead first, unless it will be back at once: its last request
//! was short, and either nothing else waits or all processors work. Init sees at its next look when that was wrong, and
//! takes the lead away. So these words decide how fast a request begins, never whether it is run.
//!
//! Who may write what, and what a worker that was taken over can do with it:
//! - Init's page (the gate, whether init sleeps, who has had a request for long, how many processors there are): init
//!   only. Workers cannot make it writable ([`crate::sys::shared`]), nor reach init's mapping of it
//!   ([`super::privileges`]).
//! - The common page (the leader, the followers): every worker. A wrong word there has requests wait for init's look; it
//!   runs none, and neither ends nor prolongs one.
//! - A slot: its worker, and init. A worker can lie about its own requests, but init goes by the deadline that it said
//!   first. Another worker's slot is not in its memory.
//!
//! All orderings are sequentially consistent: init closes the gate, or goes to sleep, and *then* looks at the slots;
//! workers write their slot and *then* look at the gate, or at whether init sleeps. One of the two sees the other.

use crate::sys::shared::SharedPages;

pub use self::leader::{Control, Role};
pub use self::phase::{Phase, Seen, Took, Wait};
pub use self::slot::Slot;

mod leader;
#[cfg(test)]
mod model;
mod phase;
mod slot;
#[cfg(test)]
mod tests;

/// Workers that read from connections; those beyond get their work from init. A message passes all that watch its
/// connection, and more requests at a time than these begin at init's next look.
pub const READERS_MAX: usize = 32;

/// Words of init's page, which workers can only read.
const GATE: usize = 0;
const SLEEP: usize = 1;
const LONG: usize = 2;
const PROCESSORS: usize = 3;
/// Word of the common page, which every worker writes: the leader's number, from 1 on.
pub const LEADER: usize = 0;
/// Word of the common page: a bit for each follower's number.
pub const FOLLOWERS: usize = 1;
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
/// No worker's number.
const NO_LEADER: u64 = 0;

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
        Some(Slot::new(inits, common, own, index, self.readers))
    }

    /// What init says to all workers.
    #[must_use]
    pub fn control(&self) -> Control<'_> {
        Control::new(self.pages.owners(), self.pages.common(), self.readers)
    }
}
