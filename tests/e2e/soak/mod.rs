//! The fault suite: callers and an HTTP client call secondaries on a real containerd while workers, inits, zygotes,
//! shims and containerd itself are killed or paused, and what must be restarted by its owner is. Every call is
//! accounted for, from both sides ([`account`]), and at the end nothing is left.
//!
//! `CWASI_SOAK_SECONDS` is the time for the three containerds together (60), `CWASI_SOAK_SEED` the seed of the faults
//! (1); it is printed. The tables go to `target/soak`. `make soak MINUTES=n` runs it for longer, with another seed each
//! time.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

mod account;
mod callers;
mod faults;
mod fixture;
mod http;

use std::time::{Duration, Instant};

use account::Account;
use cwasi_testbed::paths::ContainerdVersion;
use faults::{Faults, Random};
use fixture::Fixture;

/// For the three containerds together.
const SECONDS: u64 = 60;
/// Seed of the faults when nobody asks for another: each run of the tests has the same ones.
const SEED: u64 = 1;

fn from_env(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

fn soak(version: ContainerdVersion) {
    let seed = from_env("CWASI_SOAK_SEED").unwrap_or(SEED);
    let seconds =
        from_env("CWASI_SOAK_SECONDS").unwrap_or(SECONDS) / ContainerdVersion::ALL.len() as u64;
    println!("{}: {seconds} s of faults, CWASI_SOAK_SEED={seed}", version.name());
    let fixture = Fixture::open(version, seed);
    let mut faults = Faults::new(&fixture, Random::new(seed));
    let callers = std::thread::scope(|scope| {
        let end = Instant::now() + Duration::from_secs(seconds);
        let mut runners = callers::start(scope, &fixture, end);
        runners.push(scope.spawn({
            let fixture = &fixture;
            move || http::run(fixture, end)
        }));
        while Instant::now() < end {
            faults.step();
        }
        runners.into_iter().flat_map(|runner| runner.join().unwrap()).collect::<Vec<_>>()
    });
    let account = Account::read(fixture.notes(), &callers, &fixture.killed());
    let table = account.table(version.name(), seed, seconds, faults.counts());
    println!("{table}");
    fixture.keep(&format!("{}-{seed}.txt", version.name()), &table);
    assert!(account.wrong.is_empty(), "CWASI_SOAK_SEED={seed}\n{}", account.wrong.join("\n"));
    assert!(account.answered() > 0, "no call was answered");
    fixture.clear();
}

#[test]
fn every_call_is_accounted_for_on_containerd_1_6() {
    soak(ContainerdVersion::V1_6);
}

#[test]
fn every_call_is_accounted_for_on_containerd_1_7() {
    soak(ContainerdVersion::V1_7);
}

#[test]
fn every_call_is_accounted_for_on_containerd_2() {
    soak(ContainerdVersion::V2);
}
