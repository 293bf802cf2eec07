//! A worker's life with the real engine: a fresh instance per request, and what thousands of requests leave.
//!
//! Has its own harness: each case runs in a forked process, since the engine wants one thread and some
//! guests take their process with them. `cargo test --test worker_life -- NAME` runs the cases whose name
//! contains NAME; `times` then prints what an instance and a call inside one VM cost.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod costs;
mod embedded_regions;
mod embedding;
mod guests;
mod harness;
mod hostile;
#[path = "../engines/suite/inside.rs"]
mod inside;
mod parts;
mod reactors;
mod regions;
mod worker;

fn main() {
    // Before the first fork, so that cases share the work.
    guests::build();
    let cases = [
        reactors::CASES,
        regions::CASES,
        parts::CASES,
        embedded_regions::CASES,
        embedding::CASES,
        costs::CASES,
        hostile::CASES,
    ]
    .concat();
    let code = harness::run(&cases);
    guests::remove();
    std::process::exit(code);
}
