//! The worker table: shared memory of sandbox init and its workers, with one slot for each worker.
//!
//! Runs in sandbox init and in workers. Pure: atomics, no I/O, no clock. A slot's word holds the worker's *phase* and
//! the number of its *turn*; further words describe the turn's request. Transitions:
//!
//! ```text
//!              worker                    init
//! Starting ──> Idle
//! Making   ──> Idle                  ──> Assigned       (makes an instance; can be assigned work meanwhile)
//! Idle     ──> Reading               ──> Assigned       (waits for init, and for connections during direct reads)
//! Reading  ──> Running | Idle
//! Running  ──> Making                ──> Expired        (runs a request)
//! Assigned ──> Running               ──> Expired | Making
//! Expired: init kills the worker
//! ```
//!
//! Invariants:
//! - Where worker and init may both change a phase, they use a compare-and-swap. One of them wins, and the other learns
//!   it.
//! - A worker reads from a connection only in `Reading`, which it enters while direct reads are enabled. Init that
//!   disables them and then finds no slot in `Reading` is the only reader.
//! - `Running` names the request before the guest sees a byte of it.
//! - A request in `Assigned` has not begun: the worker begins it, or init takes it back, never both.
//! - `Expired` is reached only from the turn whose deadline has passed, so init kills a worker for that turn only.
//!
//! Leader and followers ([`leader`]): a message wakes every process that sleeps on its connection. So one worker, the
//! *leader*, sleeps on the connections. The other free workers are *followers*: they sleep until the leader or init
//! wakes one of them to lead. Before the leader runs a request it gives up the lead, unless it will be back soon: its
//! last request was short, and either no other request waits or all processors are busy. It also gives it up when it
//! shares its caller's processor while another one is free. The watchdog replaces a leader that misjudged this. So
//! these words decide how fast a request begins, and not whether it runs.
//!
//! Who can write what, and what a compromised worker can do with it:
//! - Init's page (direct reads, init's sleep, long-running requests, processors): init only. Workers cannot make it
//!   writable ([`cwasi_sys::shared`]), nor reach init's mapping of it ([`super::privileges`]).
//! - The common page (leader, followers, polling, whether the log says that instances are not renewed): every worker. A
//!   wrong word delays requests until the watchdog's next check, makes a follower poll once for 50 µs, or hides that
//!   line. It neither runs, ends nor prolongs a request.
//! - A slot: its worker and init. A worker can lie about its own requests, but init keeps the deadline that the slot
//!   showed first. The slots of other workers are not in a worker's memory.
//!
//! All orderings are sequentially consistent. Init disables direct reads, or sets its sleep flag, and *then* reads the
//! slots. A worker writes its slot and *then* reads these words. One of the two sees the other.

use cwasi_sys::shared::SharedPages;
use cwasi_wire::control::FunctionLaunch;

pub use self::leader::{ReaderRole, WorkerControl};
pub use self::phase::{Phase, SlotState};
pub use self::slot::WorkerSlot;

mod leader;
#[cfg(test)]
mod model;
mod phase;
mod slot;
#[cfg(test)]
mod tests;

/// How many workers read from connections; init assigns work to the others. The kernel goes through all watchers of a
/// connection for each message, and further requests begin at the watchdog's next check.
pub const READERS_MAX: usize = 32;

/// Indices of the words in init's page, which workers can only read. The first two are 0 for false, and in a new page.
const DIRECT_READS: usize = 0;
pub const ASLEEP: usize = 1;
const LONG_RUNNING: usize = 2;
const PROCESSORS: usize = 3;
/// Word of the common page, which every worker writes: the leader's number, from 1 on.
pub const LEADER: usize = 0;
/// Word of the common page: a bit for each follower's number.
pub const FOLLOWERS: usize = 1;
/// Word of the common page: 1 when the log says that instances are made anew for each request.
const NOT_RENEWED_LOGGED: usize = 2;
/// Word of the common page: 1 when the next follower that wakes polls before it sleeps.
const POLL: usize = 3;
/// Words of a slot.
const STATE: usize = 0;
const CONNECTION: usize = 1;
const ID_LOW: usize = 2;
const ID_HIGH: usize = 3;
const DEADLINE: usize = 4;
const POOL_BYTES: usize = 5;

/// Value of [`LEADER`] without a leader.
const NO_LEADER: u64 = 0;

/// Init's view of the table.
#[derive(Debug)]
pub struct WorkerTable {
    /// The shared pages, for forked workers.
    pub pages: SharedPages,
    slots: usize,
    readers: usize,
}

impl WorkerTable {
    /// A table of `slots` slots with direct reads disabled.
    ///
    /// # Errors
    /// When memory or mappings run out.
    pub fn new(slots: usize) -> std::io::Result<Self> {
        Ok(Self { pages: SharedPages::new(slots)?, slots, readers: slots.min(READERS_MAX) })
    }

    /// The table of a function: a slot for each worker that it may have. Those that it gets while requests wait read
    /// from no connection, since init has read these requests.
    ///
    /// # Errors
    /// When memory or mappings run out.
    pub fn of(launch: &FunctionLaunch) -> std::io::Result<Self> {
        let readers = launch.least_workers().min(READERS_MAX);
        Ok(Self { readers, ..Self::new(launch.most_workers())? })
    }

    /// How many workers read from connections: those of the first slots.
    #[must_use]
    pub const fn readers(&self) -> usize {
        self.readers
    }

    /// Every worker's slot, in order of their numbers.
    pub fn slots(&self) -> impl Iterator<Item = WorkerSlot<'_>> {
        (0..self.slots).filter_map(|index| self.slot(index))
    }

    #[must_use]
    pub fn slot(&self, index: usize) -> Option<WorkerSlot<'_>> {
        let (inits, common, own) = (self.pages.view(), self.pages.common(), self.pages.own(index)?);
        Some(WorkerSlot::new(inits, common, own, index, self.readers()))
    }

    /// The words by which init controls all workers.
    #[must_use]
    pub fn control(&self) -> WorkerControl<'_> {
        WorkerControl::new(self.pages.owners(), self.pages.common(), self.readers())
    }
}
