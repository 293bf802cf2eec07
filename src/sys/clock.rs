//! `CLOCK_MONOTONIC` in nanoseconds: the same number in every process of this boot.
//!
//! Within a host a deadline is a moment of this clock ([`Deadline`]) from the guest's call to the callee's guest. What
//! comes from another host, or goes there, is the time that is left (`wire::remaining`); the host functions' crate, which knows
//! no such clock, has [`Instant`]s. The conversions are here.

use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

/// When somebody stops waiting: nanoseconds of [`monotonic_ns`]. `None` = never, `Some(0)` = at once.
pub type Deadline = Option<u64>;

/// Nanoseconds since boot (without suspend).
#[must_use]
pub fn monotonic_ns() -> u64 {
    let now =
        clock_gettime(ClockId::CLOCK_MONOTONIC).expect("CLOCK_MONOTONIC exists on every Linux");
    let seconds = u64::try_from(now.tv_sec()).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec()).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

/// The deadline of somebody who at `now` waits this long; `None` = for ever.
#[must_use]
pub fn deadline_after(left: Option<Duration>, now: u64) -> Deadline {
    let nanos = |left: Duration| u64::try_from(left.as_nanos()).unwrap_or(u64::MAX);
    left.map(|left| now.saturating_add(nanos(left)))
}

/// What is left of a deadline at `now`; `None` = it never comes.
#[must_use]
pub fn left_until(deadline: Deadline, now: u64) -> Option<Duration> {
    deadline.map(|deadline| Duration::from_nanos(deadline.saturating_sub(now)))
}

/// A moment of this clock, for [`Deadline`].
#[must_use]
pub fn to_monotonic(moment: Instant) -> u64 {
    let left = moment.saturating_duration_since(Instant::now()).as_nanos();
    monotonic_ns().saturating_add(u64::try_from(left).unwrap_or(u64::MAX))
}

/// The moment of a [`Deadline`].
#[must_use]
pub fn from_monotonic(deadline_ns: u64) -> Instant {
    let left = deadline_ns.saturating_sub(monotonic_ns());
    let now = Instant::now();
    now.checked_add(Duration::from_nanos(left)).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_what_is_left_of_it_and_back() {
        for left in [None, Some(Duration::ZERO), Some(Duration::from_micros(7))] {
            assert_eq!(left_until(deadline_after(left, 1_000), 1_000), left);
        }
        assert_eq!(left_until(Some(5), 9), Some(Duration::ZERO));
        assert_eq!(deadline_after(Some(Duration::MAX), 9), Some(u64::MAX));
    }

    #[test]
    fn moments_of_both_clocks_are_the_same() {
        let moment = Instant::now() + Duration::from_secs(60);
        let there = from_monotonic(to_monotonic(moment));
        let apart = there.max(moment) - there.min(moment);
        // Each conversion reads the clocks one after the other.
        assert!(apart < Duration::from_secs(30), "{apart:?}");
        assert!(from_monotonic(0) <= Instant::now());
    }
}
