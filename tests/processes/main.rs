//! What starts processes, or ends with one, as far as it needs neither containers nor the engine.
//!
//! Has its own harness: each case runs in a forked process. Unit tests share one process, in which none starts another:
//! between fork and exec a child holds whatever all of them have open, so that an end of a socket or of a lease comes
//! too late for some other test, and a file that is being written cannot be executed.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod devices;
mod file_access;
#[path = "../worker_life/harness.rs"]
mod harness;
mod holders;
mod in_flight;
mod pages;
mod starts;
mod systemd;

fn main() {
    // A case has started this program in place of another one.
    let program = std::env::args().next().unwrap_or_default();
    starts::stand_in(&program);
    systemd::stand_in(&program);
    std::process::exit(harness::run(
        &[
            devices::CASES,
            file_access::CASES,
            holders::CASES,
            in_flight::CASES,
            pages::CASES,
            starts::CASES,
            systemd::CASES,
        ]
        .concat(),
    ));
}
