//! The callers: containers that call for a few seconds each, one after the other, several at a time.

use std::sync::atomic::Ordering;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Instant;

use cwasi_testbed::scene::wait_for;

use super::fixture::Fixture;

/// Callers at a time; the first ones are in the workflow.
const LANES: u64 = 4;
const LANES_IN_WORKFLOW: u64 = 2;
/// How long one calls, and when its calls end at the latest (`cwasi.timeout`).
const CALLS_FOR_SECONDS: &str = "4";
const TIMEOUT: &str = "20s";
/// Numbers that one caller may use.
const NUMBERS: u64 = 1_000_000;

/// Starts the lanes; each returns the names of its callers' accounts.
pub fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    fixture: &'scope Fixture,
    end: Instant,
) -> Vec<ScopedJoinHandle<'scope, Vec<String>>> {
    (0..LANES).map(|lane| scope.spawn(move || run_lane(fixture, lane, end))).collect()
}

fn run_lane(fixture: &Fixture, lane: u64, end: Instant) -> Vec<String> {
    let mut accounts = Vec::new();
    for turn in 0.. {
        if Instant::now() >= end {
            break;
        }
        let id = format!("c{lane}-{turn}");
        let first = (turn * LANES + lane + 1) * NUMBERS;
        let in_workflow = lane < LANES_IN_WORKFLOW;
        let run = fixture.guest(&id, "soak-caller", in_workflow);
        let run = run.annotation("cwasi.timeout", TIMEOUT).args([
            format!("/soak/{id}"),
            first.to_string(),
            CALLS_FOR_SECONDS.to_owned(),
            "a".to_owned(),
            "b".to_owned(),
        ]);
        let shim_kills = fixture.shim_kills().load(Ordering::SeqCst);
        match fixture.started(run) {
            Ok(()) => wait_for(&format!("{id} to end"), || {
                let tasks = fixture.tasks();
                (!tasks.iter().any(|task| task.id == id && task.is_running)).then_some(())
            }),
            // What there is of it is removed.
            Err(_) => fixture.note_killed(&id),
        }
        if in_workflow && fixture.shim_kills().load(Ordering::SeqCst) != shim_kills {
            fixture.note_killed(&id);
        }
        fixture.remove(&id);
        accounts.push(id);
    }
    accounts
}
