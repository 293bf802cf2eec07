//! Spinning: polls for an event that is expected within microseconds, because a wake-up costs more.
//!
//! The processor is not yielded meanwhile: another process that wants it would keep it for milliseconds. So a spin is
//! short. After a spin without result, the process sleeps at once for some time, longer each time (back-off).

use cwasi_sys::clock::monotonic_ns;

/// Longest time to try before sleeping, in nanoseconds.
pub const SPIN_NS: u64 = 50_000;
/// After this many waits in a row that were too long, waits sleep at once ...
const MISSES_MAX: u32 = 2;
/// ... this many times at first, and twice as many after each further miss ...
const SKIPS_FIRST: u32 = 8;
/// ... up to so many misses.
const DOUBLINGS_MAX: u32 = 7;
/// Pauses of the processor between two tries: its other thread has it for itself meanwhile.
const PAUSES: u32 = 16;

/// One process' history of its spins.
#[derive(Debug, Default)]
pub struct Spin {
    misses: u32,
    /// Waits that sleep at once.
    skips: u32,
    last: LastSpin,
}

/// How the last wait ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LastSpin {
    /// It did not poll.
    #[default]
    None,
    /// It polled, and found something in time.
    InTime,
    /// It polled for as long as it may. What it found then, if anything, it found too late.
    InVain,
}

impl Spin {
    /// How the last wait ended.
    #[must_use]
    pub const fn last(&self) -> LastSpin {
        self.last
    }

    /// The next wait polls, whatever the earlier ones found.
    pub const fn poll_next(&mut self) {
        self.skips = 0;
    }

    /// The next waits sleep at once: another process needs this processor.
    pub fn sleep_next(&mut self) {
        self.skips = self.skips.max(SKIPS_FIRST);
    }

    /// Polls `attempt` until it returns a result, or until sleeping is better.
    ///
    /// # Errors
    /// The first of `attempt`'s.
    pub fn wait<T, E>(
        &mut self,
        attempt: impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<Option<T>, E> {
        self.wait_by(monotonic_ns, attempt)
    }

    fn wait_by<T, E>(
        &mut self,
        mut now: impl FnMut() -> u64,
        mut attempt: impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<Option<T>, E> {
        self.last = LastSpin::None;
        if self.skips > 0 {
            self.skips -= 1;
            return Ok(None);
        }
        let until = now().saturating_add(SPIN_NS);
        loop {
            let found = attempt()?;
            // A late result shows that another process had this processor: spinning was no use.
            let late = now() >= until;
            if late {
                self.miss();
            } else if found.is_some() {
                self.misses = 0;
            }
            if late || found.is_some() {
                self.last = if late { LastSpin::InVain } else { LastSpin::InTime };
                return Ok(found);
            }
            (0..PAUSES).for_each(|_| std::hint::spin_loop());
        }
    }

    fn miss(&mut self) {
        self.misses = self.misses.saturating_add(1);
        if let Some(doublings) = self.misses.checked_sub(MISSES_MAX) {
            self.skips = SKIPS_FIRST << doublings.min(DOUBLINGS_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::convert::Infallible;

    use super::*;

    /// Tries of one wait in which each takes `each_ns` and the one with number `after` finds something.
    fn tries(spin: &mut Spin, each_ns: u64, after: Option<u32>) -> u32 {
        let (clock, mut tries) = (Cell::new(0), 0);
        let found = spin.wait_by(
            || clock.get(),
            || {
                tries += 1;
                clock.set(clock.get() + each_ns);
                Ok::<_, Infallible>((Some(tries) == after).then_some(()))
            },
        );
        assert_eq!(found.unwrap().is_some(), after.is_some_and(|after| after <= tries));
        tries
    }

    #[test]
    fn spins_back_off_while_in_vain() {
        let mut spin = Spin::default();
        for _ in 0..100 {
            assert_eq!(tries(&mut spin, 1000, Some(3)), 3);
        }
        let in_vain = (0..10_000).filter(|_| tries(&mut spin, 1000, None) > 0).count();
        assert!((5..40).contains(&in_vain), "{in_vain}");
        let found = (0..=SKIPS_FIRST << DOUBLINGS_MAX)
            .filter(|_| tries(&mut spin, 1000, Some(1)) > 0)
            .count();
        assert!(found > 0, "it pays again");
        assert_eq!(tries(&mut spin, 1000, Some(2)), 2);
    }

    #[test]
    fn late_results_count_as_misses() {
        let mut spin = Spin::default();
        for _ in 0..MISSES_MAX {
            assert_eq!(tries(&mut spin, 10 * SPIN_NS, Some(1)), 1);
        }
        assert_eq!(tries(&mut spin, 1000, Some(1)), 0);
    }

    #[test]
    fn next_wait_can_be_forced() {
        let mut spin = Spin::default();
        assert_eq!((tries(&mut spin, 1000, None) > 1, spin.last()), (true, LastSpin::InVain));
        spin.sleep_next();
        assert_eq!((tries(&mut spin, 1000, Some(1)), spin.last()), (0, LastSpin::None));
        spin.poll_next();
        assert_eq!((tries(&mut spin, 1000, Some(3)), spin.last()), (3, LastSpin::InTime));
        assert_eq!((tries(&mut spin, 2 * SPIN_NS, Some(1)), spin.last()), (1, LastSpin::InVain));
    }

    #[test]
    fn errors_end_it() {
        let mut spin = Spin::default();
        assert_eq!(spin.wait(|| Err::<Option<()>, _>(7)), Err(7));
    }
}
