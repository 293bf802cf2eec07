//! The host's clocks, for guests. Runs inside a guest.
//!
//! `std::time::Instant` does not expose its number, and the harness compares numbers of several processes.
#![expect(unsafe_code, reason = "WASI's functions are unsafe in its bindings")]

/// `CLOCK_MONOTONIC` in ns: the same number in every process of this boot.
#[must_use]
pub fn monotonic_ns() -> u64 {
    read(wasi::CLOCKID_MONOTONIC)
}

/// CPU time of this guest's process in ns, what the host did for it in there included.
#[must_use]
pub fn cpu_ns() -> u64 {
    read(wasi::CLOCKID_PROCESS_CPUTIME_ID)
}

fn read(clock: wasi::Clockid) -> u64 {
    // SAFETY:
    // - the binding passes a pointer to a place of its own and nothing of ours.
    unsafe { wasi::clock_time_get(clock, 1) }.expect("every host of ours has these clocks")
}
