//! How a worker's requests go, which decides whether it stays the watcher, and where it runs.

use crate::sandbox::board::Slot;
use crate::sys::clock::monotonic_ns;
use crate::sys::processors::{self, Moves};

/// A worker that was away for less with its last request, in nanoseconds, will be back soon from the next. Longer than
/// what it is away for when its caller goes on first, on the same processor; shorter than the time between two of
/// init's looks, after which somebody else would get what came meanwhile.
const SOON_NS: u64 = 300_000;
/// As many requests without a sleep between them say that a move to another processor was worth it.
const WORTH_MIN: u32 = 4;

/// The last request, and the one that runs.
#[derive(Debug)]
pub struct Pace {
    /// When the one that was given last began, and how long the last one took, in nanoseconds.
    began: u64,
    took: Option<u64>,
    /// It called others: while it waited for them its processor was free.
    called: bool,
    /// How many of the workers can run at a time.
    processors: usize,
}

impl Pace {
    /// Nothing has run yet.
    pub fn new() -> Self {
        let processors = processors::count().unwrap_or(usize::MAX);
        Self { began: 0, took: None, called: false, processors }
    }

    /// A request begins.
    pub fn begin(&mut self) {
        self.began = monotonic_ns();
    }

    /// It has been answered.
    pub fn end(&mut self, called: bool) {
        self.took = Some(monotonic_ns().saturating_sub(self.began));
        self.called = called;
    }

    /// The worker will be back at once, as it was before.
    pub fn is_short(&self) -> bool {
        self.took.is_some_and(|took| took < SOON_NS)
    }

    /// What waits would wait for a processor anyway: as many workers get on.
    pub fn is_enough(&self, slot: Slot<'_>) -> bool {
        self.is_short() && !self.called && slot.at_work() >= self.processors
    }
}

/// One of the reserve that is called runs where the one that called it does, if it is not moved.
#[derive(Debug, Default)]
pub struct Moving {
    moves: Moves,
    /// Requests since the last move, until the worker sleeps.
    since: Option<u32>,
}

impl Moving {
    /// It was called: goes off the processor of the one that called it and has more requests before it.
    pub fn called(&mut self, slot: Slot<'_>) {
        let here = processors::current().filter(|here| *here == slot.place());
        let Some(here) = here.filter(|_| self.moves.may()) else { return };
        if processors::leave(here) {
            self.since = Some(0);
        } else {
            self.moves.judge(false);
        }
    }

    /// A request begins.
    pub fn begins(&mut self) {
        self.since = self.since.map(|requests| requests.saturating_add(1));
    }

    /// It goes to sleep.
    pub fn sleeps(&mut self) {
        if let Some(requests) = self.since.take() {
            self.moves.judge(requests >= WORTH_MIN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::board::Board;

    #[test]
    fn it_is_enough_while_requests_are_short_and_call_nobody() {
        let board = Board::new(2).unwrap();
        let slots = [0, 1].map(|index| board.slot(index).unwrap());
        let mut pace = Pace { began: 0, took: None, called: false, processors: 2 };
        assert!(!pace.is_short() && !pace.is_enough(slots[0]), "nothing is known");
        pace.took = Some(SOON_NS - 1);
        assert!(pace.is_short() && pace.is_enough(slots[0]));
        pace.called = true;
        assert!(pace.is_short() && !pace.is_enough(slots[0]), "it may have waited");
        pace.called = false;
        assert!(slots[0].watches() && slots[1].join_reserve());
        assert!(!pace.is_enough(slots[0]), "one processor is free");
        pace.processors = 1;
        assert!(pace.is_enough(slots[0]));
        // It began when the clock did.
        pace.end(true);
        assert!(!pace.is_short() && !pace.is_enough(slots[0]) && pace.called);
    }
}
