//! End to end on a real containerd: payloads and responses that are made in place and not copied. Every test ends
//! with the check that nothing is left ([`cwasi_testbed::scene`]).

use std::fs;

use cwasi_testbed::processes::descendants;
use cwasi_testbed::run::{Outcome, Run};
use cwasi_testbed::scene::{Scene, wait_for};

use crate::scene;

/// 100 MiB, the largest payload of the paper's experiments.
const LARGE: &str = "104857600";

/// Runs the sender as a primary with these arguments.
fn sender(scene: &Scene, id: &str, args: &[&str]) -> Outcome {
    scene.run(scene.guest(id, "sender").args(args.iter().copied()))
}

/// As [`sender`], in a workflow: there, memory is lent.
fn sender_in(scene: &Scene, workflow: &str, id: &str, args: &[&str]) -> Outcome {
    let run = scene.guest(id, "sender").annotation("cwasi.workflow", workflow);
    scene.run(run.args(args.iter().copied()))
}

fn reader(scene: &Scene, id: &str) {
    scene.start(secondary(scene, id));
}

fn reader_in(scene: &Scene, workflow: &str, id: &str) {
    scene.start(secondary(scene, id).annotation("cwasi.workflow", workflow));
}

fn secondary(scene: &Scene, id: &str) -> Run {
    let run = scene.guest(id, "reader").annotation("cwasi.role", "secondary");
    run.annotation("cwasi.function", id).annotation("cwasi.concurrency", "1")
}

/// How the memfds of payloads and of pools are called; the library that stands in for LLVM is another one.
const MEMFD: &str = "memfd:cwasi-p";

/// Descriptors and mappings of payloads in the processes of a container.
fn memfds(scene: &Scene, id: &str) -> usize {
    let init = scene.pid(id);
    let mut pids = vec![init];
    pids.extend(descendants(init).iter().map(|process| process.pid));
    let mut found = 0;
    for pid in pids {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        found += maps.lines().filter(|line| line.contains(MEMFD)).count();
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let targets = descriptors.filter_map(|entry| fs::read_link(entry.path()).ok());
        found += targets.filter(|target| target.to_string_lossy().contains(MEMFD)).count();
    }
    found
}

#[test]
fn one_region_of_100_mib_reaches_several_callees_unchanged() {
    let scene = scene("regions");
    reader(&scene, "first");
    reader(&scene, "second");
    let outcome = sender(&scene, "p", &["send", LARGE, "2", "first", "second"]);
    assert_eq!(outcome.success().text(), format!("{LARGE} bytes, 2 rounds: as expected\n"));
    // A worker drops an instance after it has answered.
    for callee in ["first", "second"] {
        wait_for("the payload to be gone", || (memfds(&scene, callee) == 0).then_some(()));
    }
}

#[test]
fn a_response_of_100_mib_is_read_where_it_arrives() {
    let scene = scene("responses");
    reader(&scene, "reader");
    let outcome = sender(&scene, "p", &["fetch", LARGE, "2", "reader"]);
    assert_eq!(outcome.success().text(), format!("{LARGE} bytes, 2 rounds: as expected\n"));
    wait_for("the response to be gone", || (memfds(&scene, "reader") == 0).then_some(()));
}

/// What is lent within a workflow comes back, and what is kept for the next call is given up after a while.
#[test]
fn a_workflow_lends_100_mib_both_ways_and_keeps_nothing() {
    let scene = scene("leases");
    reader_in(&scene, "w", "first");
    reader_in(&scene, "w", "second");
    reader_in(&scene, "other", "stranger");
    let outcome = sender_in(&scene, "w", "p", &["send", LARGE, "3", "first", "second", "stranger"]);
    assert_eq!(outcome.success().text(), format!("{LARGE} bytes, 3 rounds: as expected\n"));
    let outcome = sender_in(&scene, "w", "q", &["fetch", LARGE, "4", "first"]);
    assert_eq!(outcome.success().text(), format!("{LARGE} bytes, 4 rounds: as expected\n"));
    let outcome = sender_in(&scene, "w", "r", &["fetch", LARGE, "2", "stranger"]);
    assert_eq!(outcome.success().text(), format!("{LARGE} bytes, 2 rounds: as expected\n"));
    for callee in ["first", "second", "stranger"] {
        wait_for("what was lent to be gone", || (memfds(&scene, callee) == 0).then_some(()));
    }
}

#[test]
fn lengths_around_pages_and_frames_arrive_within_a_workflow() {
    let scene = scene("lent-lengths");
    reader_in(&scene, "w", "reader");
    for size in ["65536", "65537", "69633", "2097151", "2097152", "2097153", "6291456"] {
        for verb in ["send", "fetch"] {
            let id = format!("{verb}-{size}");
            let outcome = sender_in(&scene, "w", &id, &[verb, size, "3", "reader"]);
            assert_eq!(outcome.success().text(), format!("{size} bytes, 3 rounds: as expected\n"));
        }
    }
}
