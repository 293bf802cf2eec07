//! Which calls of other hosts this shim has accepted, and which their callers have given up: whoever is first decides.
//! No clock and no sockets.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use cwasi_wire::network::TryId;

/// How long an id stays after its connection: far longer than a caller asks, or a lost connection holds a message back.
const KEPT: Duration = Duration::from_secs(600);
/// Most ids that stay; the oldest go first.
const KEPT_MAX: usize = 64 * 1024;

/// Who was first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// This shim has accepted the call, and runs it or has run it.
    Accepted,
    /// Its caller has given it up: it never runs.
    GivenUp,
}

/// Decisions about calls whose callers may still ask.
#[derive(Debug, Default)]
pub struct Decisions {
    decided: HashMap<TryId, Decision>,
    /// Ids in the order in which they go.
    kept: VecDeque<(Instant, TryId)>,
}

impl Decisions {
    /// A call is here as a whole. True if it may run now: it was not given up, and did not come before.
    pub fn accept(&mut self, id: TryId) -> bool {
        let is_new = !self.decided.contains_key(&id);
        if is_new {
            self.decided.insert(id, Decision::Accepted);
        }
        is_new
    }

    /// A caller gives a call up, unless it was accepted before.
    pub fn give_up(&mut self, id: TryId, now: Instant) -> Decision {
        if let Some(decision) = self.decided.get(&id) {
            return *decision;
        }
        self.decided.insert(id, Decision::GivenUp);
        self.keep(id, now);
        Decision::GivenUp
    }

    /// The caller has the answer, and asks no more.
    pub fn answered(&mut self, id: TryId) {
        self.decided.remove(&id);
    }

    /// The connection has ended, and the caller may not have the answer.
    pub fn unanswered(&mut self, id: TryId, now: Instant) {
        if self.decided.contains_key(&id) {
            self.keep(id, now);
        }
    }

    fn keep(&mut self, id: TryId, now: Instant) {
        while let Some((until, oldest)) = self.kept.front().copied()
            && (until <= now || self.kept.len() >= KEPT_MAX)
        {
            self.kept.pop_front();
            self.decided.remove(&oldest);
        }
        self.kept.push_back((now + KEPT, id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_first_decides() {
        let (mut decisions, now) = (Decisions::default(), Instant::now());
        let [run, late] = [TryId([1; 16]), TryId([2; 16])];
        assert!(decisions.accept(run) && !decisions.accept(run), "it runs once");
        assert_eq!(decisions.give_up(run, now), Decision::Accepted);
        assert_eq!(decisions.give_up(late, now), Decision::GivenUp);
        assert!(!decisions.accept(late));
    }

    #[test]
    fn an_id_goes_after_the_answer_or_after_a_while() {
        let (mut decisions, now) = (Decisions::default(), Instant::now());
        decisions.accept(TryId([1; 16]));
        decisions.answered(TryId([1; 16]));
        assert!(decisions.decided.is_empty());
        decisions.accept(TryId([2; 16]));
        decisions.unanswered(TryId([2; 16]), now);
        assert_eq!(decisions.give_up(TryId([2; 16]), now), Decision::Accepted);
        decisions.give_up(TryId([3; 16]), now + KEPT);
        assert_eq!((decisions.decided.len(), decisions.kept.len()), (1, 1));
    }

    #[test]
    fn ids_are_bounded() {
        let (mut decisions, now) = (Decisions::default(), Instant::now());
        for number in 0..=u128::try_from(KEPT_MAX).unwrap() {
            decisions.give_up(TryId(number.to_le_bytes()), now);
        }
        assert_eq!((decisions.decided.len(), decisions.kept.len()), (KEPT_MAX, KEPT_MAX));
    }
}
