//! Who sleeps on the callers' connections: one worker, the leader. The others are its followers.

use std::sync::atomic::AtomicU64;

use crate::sys::shared::{Word, Words};

use super::slot::Slot;
use super::{
    ASLEEP, AWAKE, CLOSED, FOLLOWERS, GATE, LEADER, LONG, NO_LEADER, OPEN, PROCESSORS, SLEEP,
};

/// Who a worker is while it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It sleeps on the connections.
    Leader,
    /// It sleeps until it is woken to lead.
    Follower,
}

/// The worker's part.
impl<W: Word> Slot<'_, W> {
    /// Takes a role before the worker sleeps: the lead, when nobody has it. A follower has said so by then: whoever gives
    /// up the lead afterwards wakes one.
    #[must_use]
    pub fn take_role(&self) -> Role {
        // Terminates: each further round is one change of the lead by somebody else.
        loop {
            let leader = self.common[LEADER].compare_exchange(NO_LEADER, self.number);
            if leader.is_ok() || leader == Err(self.number) {
                return Role::Leader;
            }
            self.common[FOLLOWERS].fetch_or(bit(self.number));
            if self.common[LEADER].load() != NO_LEADER {
                return Role::Follower;
            }
            self.stop_following();
        }
    }

    /// A follower is awake again.
    pub fn stop_following(&self) {
        self.common[FOLLOWERS].fetch_and(!bit(self.number));
    }

    /// Leads on while it runs a short request: it looks at the connections again before it sleeps.
    pub fn keep_lead(&self) {
        self.common[LEADER].store(self.number);
    }

    /// Gives up the lead before a request that may be long; true when a follower must be woken.
    #[must_use]
    pub fn hand_over_lead(&self) -> bool {
        self.common[LEADER].store(NO_LEADER);
        self.common[FOLLOWERS].load() != 0
    }

    /// True when as many readers run or are about to as there are processors. Followers, and those that have had the same
    /// request for long, do not count. False as long as init has not said how many processors there are.
    #[must_use]
    pub fn all_processors_work(&self) -> bool {
        let others = self.common[FOLLOWERS].load() | self.inits.load(LONG);
        let at_work = self.readers.saturating_sub(u64::from(others.count_ones()));
        let processors = self.inits.load(PROCESSORS);
        processors > 0 && at_work >= processors
    }
}

/// Init's part.
impl<W: Word> Slot<'_, W> {
    /// Takes the lead from this worker, which a signal has stopped; true when a follower must be woken.
    #[must_use]
    pub fn lose_lead(&self) -> bool {
        let leader = self.common[LEADER].compare_exchange(self.number, NO_LEADER);
        self.reads() && leader.is_ok() && self.common[FOLLOWERS].load() != 0
    }

    /// Takes lead and role from this worker, which has ended; true when a follower must be woken.
    #[must_use]
    pub fn vacate(&self) -> bool {
        if !self.reads() {
            return false;
        }
        self.stop_following();
        let leader = self.common[LEADER].compare_exchange(self.number, NO_LEADER);
        // It may have been woken to lead, and ended before it did.
        let nobody = matches!(leader, Ok(_) | Err(NO_LEADER));
        nobody && self.common[FOLLOWERS].load() != 0
    }
}

/// What init says to all workers.
#[derive(Debug)]
pub struct Control<'a, W = AtomicU64> {
    inits: &'a Words<W>,
    common: &'a Words<W>,
    readers: u64,
}

impl<'a, W: Word> Control<'a, W> {
    /// Over init's page and the common page; `readers` workers read from connections.
    pub const fn new(inits: &'a Words<W>, common: &'a Words<W>, readers: usize) -> Self {
        Self { inits, common, readers: readers as u64 }
    }

    /// Lets workers read from connections, or no more. True when that changed it.
    pub fn set_gate(&self, open: bool) -> bool {
        let value = if open { OPEN } else { CLOSED };
        self.inits[GATE].swap(value) != value
    }

    /// Says which workers, by their indices, have had the same request for long. True when a follower must be woken,
    /// because one of these was the leader.
    pub fn set_long(&self, workers: impl Iterator<Item = usize>) -> bool {
        let numbers =
            workers.map(|index| index as u64 + 1).filter(|number| *number <= self.readers);
        let long = numbers.fold(0, |long, number| long | bit(number));
        self.inits[LONG].store(long);
        let leader = self.common[LEADER].load();
        leader != NO_LEADER
            && long & bit(leader) != 0
            && self.common[LEADER].compare_exchange(leader, NO_LEADER).is_ok()
            && self.common[FOLLOWERS].load() != 0
    }

    /// Says how many workers can run at a time.
    pub fn set_processors(&self, count: usize) {
        self.inits[PROCESSORS].store(count as u64);
    }

    /// Takes the lead from whoever has it; true when a follower must be woken.
    #[must_use]
    pub fn depose_leader(&self) -> bool {
        self.common[LEADER].store(NO_LEADER);
        self.common[FOLLOWERS].load() != 0
    }

    /// Says whether workers that begin a turn must wake init. Init looks at the slots afterwards.
    pub fn set_asleep(&self, asleep: bool) {
        self.inits[SLEEP].store(if asleep { ASLEEP } else { AWAKE });
    }
}

/// Each reader's own bit.
const fn bit(number: u64) -> u64 {
    1 << (number % 64)
}
