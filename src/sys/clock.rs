//! `CLOCK_MONOTONIC` in nanoseconds: the same number in every process of this boot.

use nix::time::{ClockId, clock_gettime};

/// Nanoseconds since boot (without suspend).
#[must_use]
pub fn monotonic_ns() -> u64 {
    let now =
        clock_gettime(ClockId::CLOCK_MONOTONIC).expect("CLOCK_MONOTONIC exists on every Linux");
    let seconds = u64::try_from(now.tv_sec()).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec()).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}
