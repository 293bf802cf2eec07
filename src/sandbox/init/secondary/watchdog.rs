//! The watchdog of sandbox init: checks workers and connections, and reads requests that workers do not read. It checks
//! once per tick while requests come, and less often the longer none does.
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
//! Init sleeps while the function is idle, and while its busy workers have the same requests as at the last check and
//! none waits: a function that waits for the next one of a chain costs no checks. The next request wakes init. So init
//! reads a request within about two ticks when the leader does not, because it is stopped, slow or making its next
//! instance. It takes up to eight ticks more for the first request after some idle milliseconds, before init sleeps.
//! Stopped workers get no work.

use crate::init::pool::WorkerPool;
use crate::worker_table::{Phase, SlotState};
use cwasi_modes::local::receiver::RequestHead;
use cwasi_modes::local::{ConnectionId, Receiver};
use cwasi_sys::processors;
use cwasi_sys::watch::READY_MAX;
use cwasi_wire::control::FunctionLaunch;

#[cfg(test)]
mod tests;

/// Time between two checks in nanoseconds while something happens. After one, a caller learns that the function is
/// overloaded. After one or two, init queues a request that no worker reads.
const TICK_NS: u64 = 1_000_000;
/// Ticks within which one of the waiting requests must have been read. Otherwise the workers' slots are not to be
/// trusted.
const STALLED_TICKS: u32 = 4;
/// Checks without a request after which init sleeps. The first request after that wakes it. The time to the next check
/// doubles with each, so that a function with a request now and then costs few checks: they are 1, 2, 4 and 8 ticks
/// apart.
const QUIET_CHECKS: u32 = 4;
/// The same while a worker is busy. The check has seen its deadline, and taken the lead from it.
const BUSY_CHECKS: u32 = 1;
/// Most copies of connections that all workers hold together; init alone reads further connections.
const COPIES_MAX: usize = 1024;
/// How often init yields to workers that are reading before it reads itself.
const YIELDS_MAX: u32 = 100;

/// What init saw at its last check.
#[derive(Debug, Default)]
pub struct Watchdog {
    states: Vec<SlotState>,
    checked_at: u64,
    /// Checks in a row that found nothing.
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

    /// After an event, init checks for a while again. A timer is no event: init wakes once more for its last report, and
    /// checks after that would bring the next report, without an end.
    fn note_wait(&mut self, woken: bool) {
        if woken && self.may_sleep() {
            self.quiet = 0;
        }
    }

    /// True when the last checks found nothing to do.
    fn may_sleep(&self) -> bool {
        let checks = if self.is_busy() { BUSY_CHECKS } else { QUIET_CHECKS };
        self.quiet >= checks && self.heads.is_empty() && !self.reading
    }

    fn is_busy(&self) -> bool {
        self.states.iter().any(|state| state.is_busy())
    }

    /// Records the slots' states.
    fn note(&mut self, states: Vec<SlotState>) {
        self.quiet = if states == self.states { self.quiet.saturating_add(1) } else { 0 };
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

    /// When the next check is due.
    fn next(&self) -> u64 {
        let nothing_happens = self.heads.is_empty() && !self.reading && !self.is_busy();
        let doublings = if nothing_happens { self.quiet.min(QUIET_CHECKS - 1) } else { 0 };
        self.checked_at.saturating_add(TICK_NS << doublings)
    }

    /// When the next check is due; `None` when init sleeps until it is woken, unless it `stays_awake`.
    pub fn next_check(&self, pool: &WorkerPool<'_>, stays_awake: bool) -> Option<u64> {
        if !self.may_sleep() || stays_awake {
            return Some(self.next());
        }
        let control = pool.table.control();
        control.set_asleep(true);
        // A worker that began before it could see the sleep flag is seen here.
        if pool.states().eq(self.states.iter().copied()) {
            return None;
        }
        control.set_asleep(false);
        Some(self.next())
    }

    /// Checks the workers when a check is due; `None` when it is not. True if a worker has begun a request since the
    /// last check. `woken`: an event ended init's wait.
    pub fn check_workers(
        &mut self,
        pool: &mut WorkerPool<'_>,
        now: u64,
        woken: bool,
    ) -> Option<bool> {
        self.note_wait(woken);
        if self.next() > now {
            return None;
        }
        self.checked_at = now;
        let states: Vec<_> = pool.states().collect();
        let mut both = states.iter().zip(&self.states);
        let begun = both.any(|(state, before)| state.is_later_than(*before));
        if begun {
            pool.note_turns();
        }
        pool.note_long_running(self.long_running(&states));
        // The container's cpuset may have changed.
        pool.table.control().set_processors(processors::count().unwrap_or(0));
        self.note(states);
        Some(begun)
    }

    /// Checks the connections, after the workers. Returns those that init is to read now. Disables direct reads when
    /// more than `room` requests wait, or no reader is free.
    pub fn check_connections(
        &mut self,
        pool: &WorkerPool<'_>,
        receiver: &Receiver,
        begun: bool,
        room: usize,
    ) -> Vec<ConnectionId> {
        let ready: Vec<_> = receiver.shared_ready().collect();
        let stalls = self.stalls(begun, &ready, |id| receiver.head(id));
        let overflows = receiver.more_wait_than(room, &ready);
        if !stalls && !overflows {
            return Vec::new();
        }
        // The queue is bounded exactly only while init is the only reader.
        if overflows || !pool.has_free_reader() {
            self.begin_reading(pool);
        }
        pool.depose_leader();
        ready
    }

    /// True if workers may hold copies of one connection more than `shared`.
    pub fn may_share(pool: &WorkerPool<'_>, shared: usize) -> bool {
        let readers = pool.table.readers();
        // A single worker may hold any number.
        (shared + 1).saturating_mul(readers) <= COPIES_MAX.max(readers)
    }

    /// True while only init reads the shared connections.
    pub const fn reads(&self) -> bool {
        self.reading
    }

    /// Disables direct reads: from now on only init reads from connections.
    pub fn begin_reading(&mut self, pool: &WorkerPool<'_>) {
        if std::mem::replace(&mut self.reading, true) {
            return;
        }
        pool.set_direct_reads(false);
        // A worker that is reading now reads an earlier request than init will. A worker that takes longer is stopped
        // or dead, and then the order does not matter.
        for _ in 0..YIELDS_MAX {
            if !pool.states().any(|state| state.phase() == Phase::Reading) {
                return;
            }
            let _never_fails = nix::sched::sched_yield();
        }
    }

    /// Enables direct reads when `idle`: init has nothing queued and nothing to read. Disables them otherwise. Returns
    /// whether they are enabled.
    pub fn update_direct_reads(&mut self, pool: &WorkerPool<'_>, idle: bool) -> bool {
        if self.reading && idle && pool.has_free_reader() {
            self.reading = false;
        }
        let enabled = idle && !self.reading;
        pool.set_direct_reads(enabled);
        enabled
    }
}
