//! End to end on two nodes: containerds in networks of their own, one Redis between them. The same guests as
//! on one node, unchanged, reach callees on the other.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use cwasi_testbed::nodes::Nodes;
use cwasi_testbed::numbered::Numbered;
use cwasi_testbed::run::{Outcome, Run};
use cwasi_testbed::scene::{Scene, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::SHIM;

fn nodes(name: &str) -> Nodes {
    Nodes::new(SHIM, name)
}

/// Function `name` as a secondary, in a container of another name.
fn secondary(scene: &Scene, container: &str, name: &str) -> Run {
    scene
        .guest(container, "server")
        .annotation("cwasi.role", "secondary")
        .annotation("cwasi.function", name)
}

fn call(scene: &Scene, id: &str, target: &str, word: &str) -> Outcome {
    scene.run(scene.guest(id, "probe").args(["call", target, word]))
}

fn kill_daemons(scene: &Scene) {
    let below = scene.processes();
    for process in below.iter().filter(|one| one.command.contains("cwasi-shim")) {
        kill(Pid::from_raw(process.pid), Signal::SIGKILL).unwrap();
    }
}

/// What the group of a running container says about its calls so far: mode and calls.
fn modes(scene: &Scene) -> BTreeMap<String, u64> {
    let state = scene.node.state();
    let mut modes = BTreeMap::new();
    for folder in ["g", "edges"] {
        for entry in fs::read_dir(state.join(folder)).into_iter().flatten().flatten() {
            let path = entry.path();
            add(&mut modes, if folder == "g" { path.join("edges.json") } else { path }.as_path());
        }
    }
    modes
}

fn add(modes: &mut BTreeMap<String, u64>, path: &Path) {
    let Ok(text) = fs::read(path) else { return };
    let lines: Vec<serde_json::Value> = serde_json::from_slice(&text).unwrap();
    for line in lines {
        let mode = line["mode"].as_str().unwrap().to_owned();
        *modes.entry(mode).or_default() += line["calls"].as_u64().unwrap();
    }
}

#[test]
fn a_callee_on_the_other_node_answers() {
    let nodes = nodes("other");
    nodes.cloud.start(secondary(&nodes.cloud, "server-c", "server"));
    assert_eq!(call(&nodes.edge, "p", "server", "hello").success().text(), "hello");
    let forced = nodes.edge.guest("local", "probe").annotation("cwasi.mode", "local");
    let refused = nodes.edge.run(forced.args(["call", "server", "x"]));
    assert!(refused.stderr.contains("cwasi.mode=local forbids it"), "{}", refused.stderr);
    // The callee itself, to show that a hint may force the network on one node too.
    let forced = nodes.cloud.guest("forced", "probe").annotation("cwasi.mode", "networked");
    assert_eq!(nodes.cloud.run(forced.args(["call", "server", "x"])).success().text(), "x");
    assert!(modes(&nodes.cloud).contains_key("networked"), "{:?}", modes(&nodes.cloud));
}

#[test]
fn who_may_call_is_checked_on_the_callees_node() {
    let nodes = nodes("allow");
    let callee = secondary(&nodes.cloud, "server-c", "server");
    nodes.cloud.start(callee.annotation("cwasi.allow", "somebody"));
    let refused = call(&nodes.edge, "probe-e", "server", "x");
    assert_eq!(refused.code, 4, "{}", refused.stderr);
    assert!(refused.stderr.contains("its cwasi.allow is somebody"), "{}", refused.stderr);
}

#[test]
fn payloads_of_every_size_come_back_from_the_other_node_unchanged() {
    let nodes = nodes("sizes");
    nodes.cloud.start(secondary(&nodes.cloud, "server-c", "server"));
    for size in [0, 1, 65_536, 65_537, 1 << 20, 104_857_600] {
        let run = nodes.edge.guest(&format!("p-{size}"), "probe");
        let outcome = nodes.edge.run(run.args(["call-size", "server", &size.to_string()]));
        assert_eq!(outcome.success().text(), format!("{size} bytes came back\n"));
    }
    // Nothing of them stays.
    let user = ["-a", "secret-of-the-nodes", "--no-auth-warning"];
    assert_eq!(nodes.redis.cli(&[&user[..], &["KEYS", "cwasi:pay:*"]].concat()), "");
}

#[test]
fn calls_prefer_a_callee_of_their_node() {
    let nodes = nodes("move");
    let numbered = Numbered::default();
    nodes.cloud.start(numbered.noting("server-c", secondary(&nodes.cloud, "server-c", "server")));
    let caller = numbered.calling(nodes.edge.guest("numbers", "probe"), "server");
    let caller = caller.spawn(&nodes.edge.containerd).unwrap();
    numbered.wait_for_more("server-c", 20);
    nodes.edge.start(numbered.noting("server-e", secondary(&nodes.edge, "server-e", "server")));
    numbered.wait_for_more("server-e", 20);
    let there = numbered.executed("server-c").len();
    numbered.wait_for_more("server-e", 100);
    assert_eq!(numbered.executed("server-c").len(), there, "calls still leave the node");
    nodes.edge.kill("server-e", "KILL");
    numbered.wait_for_more("server-c", 20);
    let ends = numbered.finish(caller);
    // At most the call that the killed instance had.
    numbered.check(&["server-c", "server-e"], &ends, 1);
    let modes = modes(&nodes.edge);
    assert!(modes["networked"] >= 40 && modes["local"] >= 120, "{modes:?}");
}

#[test]
fn a_killed_remote_shim_leaves_its_call_unknown() {
    let nodes = nodes("shim");
    nodes.cloud.start(secondary(&nodes.cloud, "server-c", "server"));
    let waiting = nodes.edge.guest("waiting", "probe").args(["call", "server", "!sleep 20000"]);
    let waiting = waiting.spawn(&nodes.edge.containerd).unwrap();
    let log = nodes.cloud.node.state();
    wait_for("the call to arrive", || {
        let logs = fs::read_dir(log.join("g")).unwrap().flatten();
        let mut texts =
            logs.filter_map(|dir| fs::read_to_string(dir.path().join("daemon.log")).ok());
        texts.any(|text| text.contains("call accepted")).then_some(())
    });
    kill_daemons(&nodes.cloud);
    let ended = waiting.finish().unwrap();
    assert!(ended.stderr.contains("broken"), "{}", ended.stderr);
    // Its location is gone with it, at the latest when nobody listens.
    let nobody = call(&nodes.edge, "nobody", "server", "x");
    assert!([3, 10].contains(&nobody.code), "{} {}", nobody.code, nobody.stderr);
    nodes.cloud.remove("server-c");
    // `ctr` removes its own FIFOs with the task, which is gone: with any runtime.
    nodes.cloud.node.remove_fifos();
    nodes.cloud.start(secondary(&nodes.cloud, "server-c2", "server"));
    assert_eq!(call(&nodes.edge, "again", "server", "x").success().text(), "x");
}

#[test]
fn a_cut_network_is_an_error_within_the_deadline_and_heals() {
    let nodes = nodes("cut");
    nodes.cloud.start(secondary(&nodes.cloud, "server-c", "server"));
    assert_eq!(call(&nodes.edge, "before", "server", "x").success().text(), "x");
    let cable = nodes.edge.containerd.ready().link.clone().unwrap();
    cable.cut();
    let run = nodes.edge.guest("cut", "probe").annotation("cwasi.timeout", "20s");
    let ended = nodes.edge.run(run.args(["call", "server", "x"]));
    cable.mend();
    // Unreachable: the look-up found no Redis; timeout: it was still thought to be there.
    assert!([5, 10].contains(&ended.code), "{} {}", ended.code, ended.stderr);
    assert_eq!(call(&nodes.edge, "after", "server", "x").success().text(), "x");
}

#[test]
fn redis_stopped_and_started_again_is_served_again() {
    let mut nodes = nodes("restart");
    nodes.cloud.start(secondary(&nodes.cloud, "server-c", "server"));
    assert_eq!(call(&nodes.edge, "before", "server", "x").success().text(), "x");
    nodes.redis.stop();
    let run = nodes.edge.guest("stopped", "probe").annotation("cwasi.timeout", "20s");
    let ended = nodes.edge.run(run.args(["call", "server", "x"]));
    assert_eq!(ended.code, 10, "{}", ended.stderr);
    assert!(ended.stderr.contains("Redis is away"), "{}", ended.stderr);
    assert!(!ended.stderr.contains("secret"), "{}", ended.stderr);
    nodes.redis.restart();
    // It has forgotten every location: calls wait until they are announced again, by callers that never knew one, too.
    assert_eq!(call(&nodes.edge, "restarted", "server", "x").success().text(), "x");
    nodes.redis.cli(&["-a", "secret-of-the-nodes", "--no-auth-warning", "FLUSHALL"]);
    assert_eq!(call(&nodes.edge, "flushed", "server", "x").success().text(), "x");
    let nobody = call(&nodes.edge, "nobody", "nobody", "x");
    assert_eq!(nobody.code, 3, "{}", nobody.stderr);
}

#[test]
fn the_password_of_redis_is_nowhere_to_be_read() {
    let nodes = nodes("secret");
    nodes.cloud.start(secondary(&nodes.cloud, "server-c", "server"));
    let said = nodes.cloud.run(nodes.cloud.guest("env", "probe").args(["env"])).success();
    assert!(!said.text().contains("secret-of-the-nodes"));
    for process in nodes.cloud.processes() {
        let environment = fs::read(format!("/proc/{}/environ", process.pid)).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&environment).contains("secret-of-the-nodes"));
        assert!(!process.command.contains("secret-of-the-nodes"), "{process:?}");
    }
    let state = nodes.cloud.node.state();
    for group in fs::read_dir(state.join("g")).unwrap().flatten() {
        let log = fs::read_to_string(group.path().join("daemon.log")).unwrap();
        assert!(log.contains("connected to Redis"), "{log}");
        assert!(!log.contains("secret-of-the-nodes"), "{log}");
    }
}

#[test]
fn messages_are_kept_until_their_function_runs_on_any_node() {
    let nodes = nodes("emit");
    let numbered = Numbered::default();
    let sent = nodes.edge.guest("sender", "probe");
    let sent = nodes.edge.run(sent.args(["emit", "server", "!record 1", "!record 2", "!record 3"]));
    assert_eq!(sent.success().text(), "kept\nkept\nkept\n");
    nodes.cloud.start(numbered.noting("server-c", secondary(&nodes.cloud, "server-c", "server")));
    wait_for("the messages", || (numbered.executed("server-c").len() == 3).then_some(()));
    let numbers: BTreeSet<_> =
        numbered.executed("server-c").into_iter().map(|(number, _)| number).collect();
    assert_eq!(numbers, BTreeSet::from([1, 2, 3]));
}

#[test]
fn without_redis_a_message_is_refused_in_words() {
    let shim = SHIM;
    let scene = Scene::new(shim, "no-redis");
    let sent = scene.run(scene.guest("sender", "probe").args(["emit", "server", "x"])).success();
    assert!(sent.text().starts_with("not available: "), "{}", sent.text());
    assert!(sent.text().contains("redis_url"), "{}", sent.text());
}
