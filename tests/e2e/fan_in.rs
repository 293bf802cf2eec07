//! End to end on a real containerd: calls that come together in one handler, from one primary, from several
//! functions, from two nodes. Every test ends with the check that nothing is left ([`cwasi_testbed::scene`]).

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::fs;

use cwasi_testbed::nodes::Nodes;
use cwasi_testbed::run::{Outcome, Run};
use cwasi_testbed::scene::Scene;

const SHIM: &str = env!("CARGO_BIN_EXE_containerd-shim-cwasi-v1");

/// Above what is copied.
const LARGE: &str = "70000";

fn scene(name: &str) -> Scene {
    Scene::new(SHIM, name)
}

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
fn what_is_missing_is_told_or_left_out() {
    let scene = scene("missing");
    let merger = Merger::start(&scene, &[("cwasi.fan-in", "3"), ("cwasi.fan-in.timeout", "4s")]);
    let outcome = gather(&scene, "p", &["some", "merge", "frame-7", "3", "0", "2"]);
    let said = "timeout: 2 of 3 parts of `frame-7` arrived in 4s; missing: 1";
    assert_eq!(outcome.success().text(), format!("0: {said}\n2: {said}\n"));
    let outcome = gather(&scene, "q", &["some", "merge", "k", "4", "0"]);
    let text = outcome.success().text();
    assert!(text.contains("merge has cwasi.fan-in=3"), "{text}");
    assert!(merger.runs().is_empty());
    scene.remove("merge");
    let deliver = [("cwasi.fan-in.partial", "deliver"), ("cwasi.fan-in.timeout", "4s")];
    let merger = Merger::start(&scene, &[&deliver[..], &[("cwasi.fan-in", "3")]].concat());
    let outcome = gather(&scene, "r", &["some", "merge", "k", "3", "2", "1"]);
    let text = outcome.success().text();
    assert_eq!(text.matches("missing 0").count(), 2, "{text}");
    assert_eq!(merger.runs(), ["2 of 3"]);
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

#[test]
fn a_command_is_refused() {
    let scene = scene("command");
    let outcome = scene.run(secondary(&scene, "c", "filter").annotation("cwasi.fan-in", "2"));
    let said = &outcome.stderr;
    assert!(outcome.code != 0 && said.contains("cwasi.fan-in needs a reactor"), "{said}");
}

#[test]
fn parts_from_two_nodes_are_one_group() {
    let nodes = Nodes::new(SHIM, "fan-in-nodes");
    let merger = Merger::start(&nodes.cloud, &[("cwasi.fan-in", "6")]);
    relay(&nodes.cloud, "here");
    relay(&nodes.edge, "there");
    let args = ["relays", "merge", "k", "6", LARGE, "here", "there"];
    let outcome = gather(&nodes.edge, "p", &args);
    assert_eq!(outcome.success().text(), "6 parts by 2 relays: as expected\n");
    assert_eq!(merger.runs(), ["6 of 6"]);
}
