//! How long a worker's requests take, which decides whether it leads on while it runs the next one.

use crate::sandbox::board::Slot;
use crate::sys::clock::monotonic_ns;

/// A worker that was away for less with its last request, in nanoseconds, will be back soon from the next. Longer than
/// what it is away for when its caller goes on first, on the same processor; shorter than the time between two of
/// init's looks, after which somebody else would get what came meanwhile.
const SOON_NS: u64 = 300_000;

/// The last request, and the one that runs.
#[derive(Debug, Default)]
pub struct Pace {
    /// When the one that was given last began, and how long the last one took, in nanoseconds.
    began: u64,
    took: Option<u64>,
    /// It called others: while it waited for them its processor was free.
    called: bool,
}

impl Pace {
    /// A request begins.
    pub fn begin(&mut self) {
        self.began = monotonic_ns();
    }

    /// It has been answered.
    pub fn end(&mut self, called: bool) {
        self.took = Some(monotonic_ns().saturating_sub(self.began));
        self.called = called;
    }

    /// Making the next instance took so many nanoseconds more, in which the worker looked for nothing.
    pub fn prepare(&mut self, ns: u64) {
        self.took = self.took.map(|took| took.saturating_add(ns));
    }

    /// The worker will be back at once, as it was before.
    pub fn is_short(&self) -> bool {
        self.took.is_some_and(|took| took < SOON_NS)
    }

    /// What waits would wait for a processor anyway: as many workers get on.
    pub fn is_enough(&self, slot: Slot<'_>) -> bool {
        self.is_short() && !self.called && slot.all_processors_work()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::board::{Board, Role};

    #[test]
    fn it_is_enough_while_requests_are_short_and_call_nobody() {
        let board = Board::new(2).unwrap();
        board.control().set_processors(2);
        let slots = [0, 1].map(|index| board.slot(index).unwrap());
        let mut pace = Pace::default();
        assert!(!pace.is_short() && !pace.is_enough(slots[0]), "nothing is known");
        pace.took = Some(SOON_NS - 1);
        assert!(pace.is_short() && pace.is_enough(slots[0]));
        pace.called = true;
        assert!(pace.is_short() && !pace.is_enough(slots[0]), "it may have waited");
        pace.called = false;
        assert_eq!(slots.map(|slot| slot.take_role()), [Role::Leader, Role::Follower]);
        assert!(!pace.is_enough(slots[0]), "one processor is free");
        board.control().set_processors(1);
        assert!(pace.is_enough(slots[0]), "the cpuset became smaller");
        pace.prepare(1);
        assert!(!pace.is_short() && !pace.is_enough(slots[0]), "its instances take long");
        // It began when the clock did.
        pace.end(true);
        assert!(!pace.is_short() && !pace.is_enough(slots[0]) && pace.called);
    }
}
