//! End to end on a real containerd: calls that come together in one handler, from one primary, from several
//! functions, from two nodes. Every test ends with the check that nothing is left ([`cwasi_testbed::scene`]).

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::fs;

use cwasi_testbed::run::{Outcome, Run};
use cwasi_testbed::scene::Scene;

use crate::scene;

/// Above what is copied.
const LARGE: &str = "70000";

/// A secondary of this name.
fn secondary(scene: &Scene, id: &str, guest: &str) -> Run {
    scene.guest(id, guest).annotation("cwasi.role", "secondary").annotation("cwasi.function", id)
}

/// The handler of a fan-in, and where it notes its runs.
struct Merger(tempfile::TempDir);

impl Merger {
    fn start(scene: &Scene, annotations: &[(&str, &str)]) -> Self {
        let notes = tempfile::tempdir().unwrap();
        let run = secondary(scene, "merge", "merger").mount(notes.path(), "/log", "rw");
        scene.start(annotations.iter().fold(run, |run, (key, value)| run.annotation(key, value)));
        Self(notes)
    }

    /// Its runs: how many parts it had of how many.
    fn runs(&self) -> Vec<String> {
        let notes = fs::read_to_string(self.0.path().join("merged")).unwrap_or_default();
        notes.lines().map(str::to_owned).collect()
    }
}

fn relay(scene: &Scene, id: &str) {
    scene.start(secondary(scene, id, "relay").annotation("cwasi.concurrency", "4"));
}

fn gather(scene: &Scene, id: &str, args: &[&str]) -> Outcome {
    scene.run(scene.guest(id, "gather").args(args.iter().copied()))
}

#[test]
fn parts_of_one_primary_are_handled_once() {
    let scene = scene("fan-in");
    let merger = Merger::start(&scene, &[("cwasi.fan-in", "caller"), ("cwasi.workflow", "w")]);
    let outcome = gather(&scene, "p", &["direct", "merge", "k", "500", LARGE]);
    assert_eq!(outcome.success().text(), "500 parts: as expected\n");
    assert_eq!(merger.runs(), ["500 of 500"]);
    // The same key in another run is another group. In one workflow, large parts are lent.
    let run = scene.guest("q", "gather").annotation("cwasi.workflow", "w");
    let outcome = scene.run(run.args(["direct", "merge", "k", "500", LARGE]));
    assert_eq!(outcome.success().text(), "500 parts: as expected\n");
    assert_eq!(merger.runs(), ["500 of 500", "500 of 500"]);
}

#[test]
fn branches_come_together_with_the_run_that_they_were_called_in() {
    let scene = scene("branches");
    let merger = Merger::start(&scene, &[("cwasi.fan-in", "8")]);
    relay(&scene, "left");
    relay(&scene, "right");
    let args = ["relays", "merge", "k", "8", LARGE, "left", "right"];
    let outcome = gather(&scene, "p", &args);
    assert_eq!(outcome.success().text(), "8 parts by 2 relays: as expected\n");
    assert_eq!(merger.runs(), ["8 of 8"]);
}

#[test]
fn another_instance_is_warned_of() {
    let scene = scene("two");
    let merge = |id: &str| {
        let run = scene.guest(id, "merger").annotation("cwasi.role", "secondary");
        let run = run.annotation("cwasi.workflow", "w").annotation("cwasi.function", "merge");
        scene.start(run.annotation("cwasi.fan-in", "2"));
    };
    let warned = || {
        let groups = fs::read_dir(scene.node.state().join("g")).unwrap();
        let logs = groups.map(|group| group.unwrap().path().join("daemon.log"));
        let logs = logs.map(|log| fs::read_to_string(log).unwrap_or_default());
        logs.filter(|log| log.contains("do not meet") && log.contains("other=\"one\"")).count()
    };
    merge("one");
    assert_eq!(warned(), 0);
    merge("two");
    assert_eq!(warned(), 1);
}
