//! On which processor a process runs, and how it gets off it.
//!
//! The kernel of a virtual machine can take a processor that is idle for one that the host has taken away, and then wakes
//! a sleeper on the processor of whoever wakes it. So processes that call each other stay together on one processor while
//! others are idle, and looking for each other without sleeping is in vain there. Here they part themselves, where that
//! has paid before.

use nix::sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use nix::unistd::Pid;

/// Turns until the next move after one that was in vain ...
const TURNS_FIRST: u32 = 2;
/// ... twice as many after each further one, and at most this many: a move costs less than a hundredth of these.
const TURNS_MAX: u32 = 256;
/// An answer that takes less, in nanoseconds, could be waited for without sleeping, were it not for the processor.
const QUICK_NS: u64 = 150_000;
/// As many of them in a row are no coincidence.
const QUICK_MIN: u32 = 8;
/// As many answers that were found without sleeping say that a move was worth it.
const WORTH_MIN: u32 = 8;

/// The processor that this runs on, now.
#[must_use]
pub fn current() -> Option<usize> {
    sched_getcpu().ok()
}

/// How many there are for this process; `None` where the kernel does not say.
#[must_use]
pub fn count() -> Option<usize> {
    let all = sched_getaffinity(Pid::from_raw(0)).ok()?;
    let set = (0..CpuSet::count()).filter(|index| all.is_set(*index).unwrap_or(false));
    Some(set.count())
}

/// Goes on on another processor than `processor`; false where there is no other, or the system calls are not to be had.
/// What it may run on stays as it was. Takes tens of microseconds: a thread of the kernel does it.
pub fn leave(processor: usize) -> bool {
    let this = Pid::from_raw(0);
    let Ok(all) = sched_getaffinity(this) else { return false };
    let mut others = all;
    let mut any = (0..CpuSet::count()).map(|index| all.is_set(index).unwrap_or(false)).enumerate();
    if others.unset(processor).is_err() || !any.any(|(index, set)| set && index != processor) {
        return false;
    }
    let left = sched_setaffinity(this, &others).is_ok();
    // Refused when its processors were changed meanwhile, and then the kernel has set them.
    let _restored = sched_setaffinity(this, &all);
    left
}

/// When to move: seldom where that was in vain.
#[derive(Debug, Default)]
pub struct Moves {
    turns: u32,
    left: u32,
}

impl Moves {
    /// A chance to move; true when it should be taken.
    pub const fn may(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left == 0
    }

    /// Whether the last move was worth it.
    pub const fn judge(&mut self, worth: bool) {
        self.turns = match (worth, self.turns) {
            (true, _) => 0,
            (false, 0) => TURNS_FIRST,
            (false, TURNS_MAX..) => TURNS_MAX,
            (false, turns) => turns * 2,
        };
        self.left = self.turns;
    }
}

/// A caller that has one callee's answer to wait for at a time, and parts from it when both could do without sleeping: it
/// announces that, so that the callee looks for the next call, and moves when it has the answer.
#[derive(Debug, Default)]
pub struct Parting {
    moves: Moves,
    quick: u32,
    state: State,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Together,
    /// With the next call.
    ToAnnounce,
    Announced,
    /// With as many answers found without sleeping since.
    Parted(u32),
}

impl Parting {
    /// A call is sent; true when it announces the move.
    pub fn announces(&mut self) -> bool {
        let announces = self.state == State::ToAnnounce;
        if announces {
            self.state = State::Announced;
        }
        announces
    }

    /// The answer came after `took` nanoseconds, found by looking or else waited for asleep. True when it is time to
    /// move; what came of that is told with `moved`.
    pub fn answered(&mut self, looking: bool, took: u64) -> bool {
        match self.state {
            State::Together => {
                self.quick = if looking || took > QUICK_NS { 0 } else { self.quick + 1 };
                if self.quick >= QUICK_MIN {
                    self.quick = 0;
                    if self.moves.may() {
                        self.state = State::ToAnnounce;
                    }
                }
            }
            State::ToAnnounce => {}
            State::Announced => return true,
            State::Parted(found) if looking => {
                self.state = State::Parted(found + 1);
                if found + 1 >= WORTH_MIN {
                    self.end(true);
                }
            }
            State::Parted(0) => self.end(false),
            // It was worth it, until something came in between.
            State::Parted(_) => self.state = State::Together,
        }
        false
    }

    /// Whether there was another processor to move to.
    pub const fn moved(&mut self, moved: bool) {
        if moved {
            self.state = State::Parted(0);
        } else {
            self.end(false);
        }
    }

    const fn end(&mut self, worth: bool) {
        self.moves.judge(worth);
        self.state = State::Together;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls until one announces a move.
    fn until_announced(parting: &mut Parting) -> u32 {
        let calls = (1..).find(|_| {
            let announced = parting.announces();
            assert_eq!(parting.answered(false, 30_000), announced);
            announced
        });
        calls.unwrap()
    }

    #[test]
    fn quick_answers_that_had_to_be_slept_for_are_a_reason_to_move() {
        let mut parting = Parting::default();
        for _ in 0..1000 {
            assert!(!parting.announces() && !parting.answered(true, 10_000), "all is well");
            assert!(!parting.announces() && !parting.answered(false, 2 * QUICK_NS), "it is slow");
            assert!(!parting.announces() && !parting.answered(false, 10_000), "a coincidence");
        }
        assert_eq!(until_announced(&mut parting), QUICK_MIN);
    }

    #[test]
    fn moves_in_vain_become_rare_and_one_that_pays_makes_them_usual() {
        let mut parting = Parting::default();
        let mut before = 0;
        for _ in 0..7 {
            let calls = until_announced(&mut parting);
            assert!(calls > before, "{calls} after {before}");
            before = calls;
            parting.moved(true);
            assert!(!parting.answered(false, 30_000));
        }
        until_announced(&mut parting);
        parting.moved(true);
        assert!(!parting.answered(true, 10_000) && !parting.answered(false, 10_000));
        assert_eq!(until_announced(&mut parting), QUICK_MIN + 1, "something came in between");
        parting.moved(true);
        (0..WORTH_MIN).for_each(|_| assert!(!parting.answered(true, 10_000)));
        assert_eq!(until_announced(&mut parting), QUICK_MIN + 1);
        parting.moved(false);
        assert!(until_announced(&mut parting) > QUICK_MIN * 2);
    }

    #[test]
    fn whoever_leaves_a_processor_may_come_back() {
        let this = Pid::from_raw(0);
        let before = sched_getaffinity(this).unwrap();
        let count =
            |set: &CpuSet| (0..CpuSet::count()).filter(|one| set.is_set(*one).unwrap()).count();
        let here = current().unwrap();
        assert_eq!(leave(here), count(&before) > 1);
        assert_eq!(sched_getaffinity(this).unwrap(), before);
        let mut only = CpuSet::new();
        only.set(here).unwrap();
        sched_setaffinity(this, &only).unwrap();
        assert!(!leave(here), "there is no other");
        assert_eq!(current(), Some(here));
    }
}
