//! Leader and followers: which worker sleeps on the callers' connections. Runs in workers and in sandbox init.

use std::sync::atomic::AtomicU64;

use cwasi_sys::shared::{Word, Words};

use super::slot::WorkerSlot;
use super::{ASLEEP, DIRECT_READS, FOLLOWERS, LEADER, LONG_RUNNING, NO_LEADER, POLL, PROCESSORS};

/// A free worker's role while it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReaderRole {
    /// It sleeps on the connections.
    Leader,
    /// It sleeps until it is woken to lead.
    Follower,
}

impl<W: Word> WorkerSlot<'_, W> {
    /// Takes a role before the worker sleeps: the lead, if there is no leader. A follower registers first, so a leader
    /// that gives up the lead afterwards wakes a follower.
    #[must_use]
    pub fn take_role(&self) -> ReaderRole {
        // Terminates: each further round is a change of the lead by another process.
        loop {
            let leader = self.common[LEADER].compare_exchange(NO_LEADER, self.number);
            if leader.is_ok() || leader == Err(self.number) {
                return ReaderRole::Leader;
            }
            self.common[FOLLOWERS].fetch_or(bit(self.number));
            if self.common[LEADER].load() != NO_LEADER {
                return ReaderRole::Follower;
            }
            self.stop_following();
        }
    }

    /// Removes the worker from the followers: it is awake.
    pub fn stop_following(&self) {
        self.common[FOLLOWERS].fetch_and(!bit(self.number));
    }

    /// Keeps the lead while it runs a short request: it polls the connections again before it sleeps.
    pub fn keep_lead(&self) {
        self.common[LEADER].store(self.number);
    }

    /// Gives up the lead before a request that may be long. Returns true when the caller must wake a follower.
    #[must_use]
    pub fn hand_over_lead(&self) -> bool {
        self.common[LEADER].store(NO_LEADER);
        self.has_followers()
    }

    /// True when a worker sleeps until it is woken to lead.
    #[must_use]
    pub fn has_followers(&self) -> bool {
        self.common[FOLLOWERS].load() != 0
    }

    /// Asks the next follower that wakes to poll before it sleeps.
    pub fn ask_to_poll(&self) {
        self.common[POLL].store(1);
    }

    /// True for the first follower that wakes after [`Self::ask_to_poll`].
    #[must_use]
    pub fn is_asked_to_poll(&self) -> bool {
        self.common[POLL].swap(0) != 0
    }

    /// True when at least as many readers are at work as there are processors. Followers and workers with a
    /// long-running request do not count. False until init has written the number of processors.
    #[must_use]
    pub fn all_processors_work(&self) -> bool {
        let others = self.common[FOLLOWERS].load() | self.inits.load(LONG_RUNNING);
        let at_work = self.readers.saturating_sub(u64::from(others.count_ones()));
        let processors = self.inits.load(PROCESSORS);
        processors > 0 && at_work >= processors
    }
}

impl<W: Word> WorkerSlot<'_, W> {
    /// Takes lead and role from this worker, which has ended. Returns true when the caller must wake a follower.
    #[must_use]
    pub fn clear_role(&self) -> bool {
        if !self.is_reader() {
            return false;
        }
        self.stop_following();
        let leader = self.common[LEADER].compare_exchange(self.number, NO_LEADER);
        // It may have ended after it was woken to lead and before it led.
        let no_leader = matches!(leader, Ok(_) | Err(NO_LEADER));
        no_leader && self.common[FOLLOWERS].load() != 0
    }
}

/// The words by which init controls all workers.
#[derive(Debug)]
pub struct WorkerControl<'a, W = AtomicU64> {
    inits: &'a Words<W>,
    common: &'a Words<W>,
    readers: u64,
}

impl<'a, W: Word> WorkerControl<'a, W> {
    /// Over init's page and the common page; `readers` workers read from connections.
    pub const fn new(inits: &'a Words<W>, common: &'a Words<W>, readers: usize) -> Self {
        Self { inits, common, readers: readers as u64 }
    }

    /// Enables or disables direct reads. Returns true when that is a change.
    pub fn set_direct_reads(&self, enabled: bool) -> bool {
        self.inits[DIRECT_READS].swap(u64::from(enabled)) != u64::from(enabled)
    }

    /// Records the workers (by index) with a long-running request. If the leader is one of them, it loses the lead.
    /// Returns true when the caller must wake a follower.
    pub fn set_long_running(&self, workers: impl Iterator<Item = usize>) -> bool {
        let numbers =
            workers.map(|index| index as u64 + 1).filter(|number| *number <= self.readers);
        let long = numbers.fold(0, |long, number| long | bit(number));
        self.inits[LONG_RUNNING].store(long);
        let leader = self.common[LEADER].load();
        leader != NO_LEADER
            && long & bit(leader) != 0
            && self.common[LEADER].compare_exchange(leader, NO_LEADER).is_ok()
            && self.common[FOLLOWERS].load() != 0
    }

    /// Records the number of processors.
    pub fn set_processors(&self, count: usize) {
        self.inits[PROCESSORS].store(count as u64);
    }

    /// Takes the lead from the leader, if there is one. Returns true when the caller must wake a follower.
    #[must_use]
    pub fn depose_leader(&self) -> bool {
        self.common[LEADER].store(NO_LEADER);
        self.common[FOLLOWERS].load() != 0
    }

    /// Records whether workers that begin a turn must wake init. Init reads the slots afterwards.
    pub fn set_asleep(&self, asleep: bool) {
        self.inits[ASLEEP].store(u64::from(asleep));
    }
}

/// Each reader's own bit.
const fn bit(number: u64) -> u64 {
    1 << (number % 64)
}
