//! The watchdog of sandbox init: checks workers and connections once per tick, and reads requests that workers do not
//! read.
//!
//! Workers read requests from their callers' connections themselves (direct reads), and init takes no part. Init reads
//! the requests itself when
//! - none of those that waited at a check was read before the next one, and no worker has begun a request in between,
//! - or none was read for several checks, whatever the workers' slots say (no worker can forge what waits in a
//!   connection),
//! - or more wait than fit into the queue.
//!
//! While init has queued requests, direct reads are disabled: workers run only what init assigns, in order of arrival.
//!
//! Init sleeps while the function is idle, and the next request wakes it. So init reads a request within about two
//! ticks when the leader does not, because it is stopped, slow or making its next instance. Stopped workers get no
//! work.

use crate::worker_table::{Phase, SlotState};
use cwasi_modes::local::ConnectionId;
use cwasi_modes::local::receiver::RequestHead;
use cwasi_sys::clock::monotonic_ns;
use cwasi_sys::processors;
use cwasi_sys::watch::READY_MAX;
use cwasi_vm::Module;
use cwasi_wire::control::FunctionLaunch;

use super::Secondary;

#[cfg(test)]
mod tests;

/// Time between two checks in nanoseconds. After one, a caller hears that the function is overloaded. After one or two,
/// init queues a request that nobody reads.
const TICK_NS: u64 = 1_000_000;
/// Ticks within which one of the waiting requests must have been read. Otherwise the workers' slots are not to be
/// trusted.
const STALLED_TICKS: u32 = 4;
/// Ticks without a request after which init sleeps. The first request after that wakes it.
const QUIET_TICKS: u32 = 20;
/// Most copies of connections that all workers hold together; init alone reads further connections.
const COPIES_MAX: usize = 1024;
/// How often init yields to workers that are reading before it reads itself.
const YIELDS_MAX: u32 = 100;

/// What init saw at its last check.
#[derive(Debug, Default)]
pub struct Watchdog {
    states: Vec<SlotState>,
    next: u64,
    quiet: u32,
    /// Init reads the shared connections; direct reads are disabled.
    reading: bool,
    /// The requests that were first on their connections.
    heads: Vec<(ConnectionId, RequestHead)>,
    /// Checks in a row before which none of them was read.
    unread: u32,
}

impl Watchdog {
    /// `None` for functions without direct reads: those where init counts requests or groups them.
    pub fn of(launch: &FunctionLaunch) -> Option<Self> {
        (launch.fan_in.is_none() && launch.max_requests == 0).then(Self::default)
    }

    /// The workers that have the same request as at the last check.
    fn long_running<'a>(&'a self, states: &'a [SlotState]) -> impl Iterator<Item = usize> + 'a {
        let same = |(now, before): (&SlotState, &SlotState)| now == before && now.is_busy();
        let both = states.iter().zip(&self.states).enumerate();
        both.filter(move |(_, pair)| same(*pair)).map(|(index, _)| index)
    }

    /// Records the slots' states.
    fn note(&mut self, states: Vec<SlotState>) {
        let quiet = states == self.states && !states.iter().any(|state| state.is_busy());
        self.quiet = if quiet { self.quiet.saturating_add(1) } else { 0 };
        self.states = states;
    }

    /// True when init is to read the requests that wait. `begun`: a worker has read or got one since the last check.
    /// Records those that are first on `ready` connections now.
    fn stalls(
        &mut self,
        begun: bool,
        ready: &[ConnectionId],
        head: impl Fn(ConnectionId) -> Option<RequestHead>,
    ) -> bool {
        let waits = |(id, before): &(ConnectionId, RequestHead)| head(*id) == Some(*before);
        let none_was_read = !self.heads.is_empty() && self.heads.iter().all(waits);
        self.heads = ready.iter().filter_map(|id| Some((*id, head(*id)?))).collect();
        // Of more ready connections, the kernel names some: workers may have read from others.
        let named_all = ready.len() < READY_MAX;
        let none_was_read = none_was_read && (named_all || !begun);
        self.unread = if none_was_read { self.unread.saturating_add(1) } else { 0 };
        self.unread >= if begun { STALLED_TICKS } else { 1 }
    }
}

impl<M: Module> Secondary<'_, M> {
    /// Lets workers read from a connection, unless they hold too many already.
    pub(super) fn share(&mut self, id: ConnectionId) {
        let readers = self.pool.table.readers();
        let shared = self.receiver.shared_connections().count() + 1;
        let copies = shared.saturating_mul(readers);
        // A single worker may hold any number.
        if self.watchdog.is_none() || copies > COPIES_MAX.max(readers) {
            return;
        }
        let Some(connection) = self.receiver.caller_connection(id) else { return };
        if self.pool.share(&connection)
            && let Err(error) = self.receiver.share(id)
        {
            self.complain(&format!("only init reads a caller's connection: {error}"));
        }
    }

    /// True while init reads the shared connections.
    pub(super) fn reads_shared(&self) -> bool {
        self.stop.is_some() || self.watchdog.as_ref().is_some_and(|watchdog| watchdog.reading)
    }

    /// When the next check is due; `None` when init sleeps until it is woken.
    pub(super) fn sleep(&self) -> Option<u64> {
        let watchdog = self.watchdog.as_ref().filter(|_| !self.pool.is_suspended())?;
        if watchdog.quiet < QUIET_TICKS || watchdog.reading || self.stop.is_some() {
            return Some(watchdog.next);
        }
        let table = self.pool.table;
        table.control().set_asleep(true);
        // A worker that began before it could see the sleep flag is seen here.
        if self.pool.states().any(|state| state.is_busy()) {
            table.control().set_asleep(false);
            return Some(watchdog.next);
        }
        None
    }

    /// Runs the check when it is due.
    pub(super) fn run_watchdog(&mut self) {
        let now = monotonic_ns();
        let Some(watchdog) = self.watchdog.as_mut().filter(|watchdog| watchdog.next <= now) else {
            return;
        };
        if watchdog.quiet >= QUIET_TICKS {
            // It was woken.
            watchdog.quiet = 0;
        }
        watchdog.next = now.saturating_add(TICK_NS);
        let states: Vec<_> = self.pool.states().collect();
        let mut both = states.iter().zip(&watchdog.states);
        let begun = both.any(|(state, before)| state.is_later_than(*before));
        if begun {
            self.last_request = now;
            self.pool.note_turns();
        }
        self.pool.note_long_running(watchdog.long_running(&states));
        // The container's cpuset may have changed.
        self.pool.table.control().set_processors(processors::count().unwrap_or(0));
        watchdog.note(states);
        let receiver = &self.receiver;
        let ready: Vec<_> = receiver.shared_ready().collect();
        let stalls = watchdog.stalls(begun, &ready, |id| receiver.head(id));
        let room = self.queue.free_slots(self.free_workers());
        let overflows = self.receiver.more_wait_than(room, &ready);
        if !stalls && !overflows {
            return;
        }
        // The queue is bounded exactly only while init is the only reader.
        if overflows || !self.pool.has_free_reader() {
            self.begin_reading();
        }
        self.pool.depose_leader();
        ready.into_iter().for_each(|id| self.read(id));
    }

    /// Disables direct reads: from now on only init reads from connections.
    pub(super) fn begin_reading(&mut self) {
        let Some(watchdog) = &mut self.watchdog else { return };
        if std::mem::replace(&mut watchdog.reading, true) {
            return;
        }
        self.pool.set_direct_reads(false);
        // A worker that is reading now reads an earlier request than init will. A worker that takes longer is stopped
        // or dead, and then the order does not matter.
        for _ in 0..YIELDS_MAX {
            if !self.pool.states().any(|state| state.phase() == Phase::Reading) {
                return;
            }
            let _never_fails = nix::sched::sched_yield();
        }
    }

    /// Enables direct reads when init has nothing queued and nothing to read, and disables them otherwise.
    pub(super) fn update_direct_reads(&mut self) {
        let idle = self.queue.is_empty() && self.stop.is_none();
        let Some(watchdog) = &mut self.watchdog else { return };
        if watchdog.reading && idle && self.pool.has_free_reader() {
            watchdog.reading = false;
        }
        let enabled = idle && !watchdog.reading;
        self.pool.set_direct_reads(enabled);
        if !enabled {
            // A worker that became free before it could see the change is seen here.
            self.assign();
        }
    }
}
