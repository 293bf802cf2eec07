//! `CLOCK_MONOTONIC` in nanoseconds: the same number in every process of this boot.
//!
//! Within a host a deadline is a moment of this clock ([`Deadline`]) from the guest's call to the callee's guest. It is
//! converted where it leaves these processes: to the time that is left in what goes to another host or is a request
//! (`wire::remaining`), to an [`Instant`] in the host functions' crate and tokio, and to a number in the messages and
//! the shared memory of one host.

use std::time::{Duration, Instant, SystemTime};

use nix::poll::{PollTimeout, ppoll};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};

/// The moment when a wait ends. An unbounded wait is `None` of an `Option<Deadline>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(u64);

impl Deadline {
    /// Before every moment: poll once, do not wait.
    pub const PASSED: Self = Self(0);

    /// After every moment.
    pub const NEVER: Self = Self(u64::MAX);

    /// At this number of nanoseconds of [`monotonic_ns`].
    #[must_use]
    pub const fn at_ns(ns: u64) -> Self {
        Self(ns)
    }

    /// The nanoseconds of [`monotonic_ns`].
    #[must_use]
    pub const fn as_ns(self) -> u64 {
        self.0
    }

    /// This long from now on.
    #[must_use]
    pub fn after(wait: Duration) -> Self {
        Self::at_ns(monotonic_ns()).plus(wait)
    }

    #[must_use]
    pub fn plus(self, more: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(more.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// What is left of it at `now` nanoseconds of [`monotonic_ns`].
    #[must_use]
    pub const fn left(self, now: u64) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(now))
    }

    /// True when it is over at `now` nanoseconds of [`monotonic_ns`].
    #[must_use]
    pub const fn has_passed(self, now: u64) -> bool {
        self.0 <= now
    }

    #[must_use]
    pub fn to_instant(self) -> Instant {
        let now = Instant::now();
        now.checked_add(self.left(monotonic_ns())).unwrap_or(now)
    }
}

impl From<Instant> for Deadline {
    fn from(moment: Instant) -> Self {
        Self::after(moment.saturating_duration_since(Instant::now()))
    }
}

/// How long `poll` and `epoll_wait` may sleep until a deadline (`None` = without a bound): milliseconds, rounded up.
#[must_use]
pub fn poll_timeout(until: Option<Deadline>) -> PollTimeout {
    let left_ns = match until {
        None => return PollTimeout::NONE,
        Some(Deadline::PASSED) => 0,
        Some(until) => until.0.saturating_sub(monotonic_ns()),
    };
    PollTimeout::try_from(left_ns.div_ceil(1_000_000)).unwrap_or(PollTimeout::MAX)
}

/// Sleeps, or less if a signal comes: by a system call that functions' seccomp profiles allow anyway.
pub fn pause(time: Duration) {
    let _interrupted = ppoll(&mut [], Some(TimeSpec::from_duration(time)), None);
}

/// Nanoseconds since boot (without suspend).
#[must_use]
pub fn monotonic_ns() -> u64 {
    let now =
        clock_gettime(ClockId::CLOCK_MONOTONIC).expect("CLOCK_MONOTONIC exists on every Linux");
    let seconds = u64::try_from(now.tv_sec()).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec()).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

/// Unix nanoseconds at which `CLOCK_MONOTONIC` was 0, by the present setting of the clock.
#[must_use]
pub fn monotonic_epoch_unix_ns() -> u64 {
    let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(unix.as_nanos()).unwrap_or(u64::MAX).saturating_sub(monotonic_ns())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_convert_to_durations_and_back() {
        for left in [Duration::ZERO, Duration::from_micros(7)] {
            assert_eq!(Deadline::at_ns(1_000).plus(left).left(1_000), left);
        }
        assert_eq!(Deadline::at_ns(5).left(9), Duration::ZERO);
        assert_eq!(Deadline::at_ns(9).plus(Duration::MAX), Deadline::at_ns(u64::MAX));
        assert!(Deadline::at_ns(9).has_passed(9) && !Deadline::at_ns(9).has_passed(8));
        assert!(Deadline::PASSED.has_passed(0));
    }

    #[test]
    fn poll_timeouts_round_up() {
        assert_eq!(poll_timeout(None), PollTimeout::NONE);
        for passed in [Deadline::PASSED, Deadline::at_ns(1), Deadline::at_ns(monotonic_ns())] {
            assert_eq!(poll_timeout(Some(passed)), PollTimeout::ZERO);
        }
        let hour = poll_timeout(Some(Deadline::after(Duration::from_secs(3600))));
        assert!((3_500_000..=3_600_000).contains(&hour.as_millis().unwrap()), "{hour:?}");
        assert_eq!(poll_timeout(Some(Deadline::at_ns(u64::MAX))), PollTimeout::MAX);
    }

    #[test]
    fn instants_convert_to_deadlines_and_back() {
        let moment = Instant::now() + Duration::from_secs(60);
        let there = Deadline::from(moment).to_instant();
        let apart = there.max(moment) - there.min(moment);
        // Each conversion reads the clocks one after the other.
        assert!(apart < Duration::from_secs(30), "{apart:?}");
        assert!(Deadline::PASSED.to_instant() <= Instant::now());
    }
}
