//! End to end on two nodes that reach each other: calls go from shim to shim. The same guests as on one node,
//! unchanged. [`super::nodes`] has nodes that only reach Redis.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::fs;

use cwasi_direct::key::NodeKey;
use cwasi_host::metrics::node::NodeMetrics;
use cwasi_host::state::StateDir;
use cwasi_testbed::nodes::Nodes;
use cwasi_testbed::numbered::Numbered;
use cwasi_testbed::run::Run;
use cwasi_testbed::scene::{Scene, wait_for};

use crate::SHIM;

fn nodes(name: &str) -> Nodes {
    Nodes::joined(SHIM, name)
}

fn server(scene: &Scene, container: &str) -> Run {
    let run = scene.guest(container, "server").annotation("cwasi.role", "secondary");
    run.annotation("cwasi.function", "server")
}

/// What the shims of a node have logged.
fn logs(scene: &Scene) -> String {
    let groups = scene.node.state().join("g");
    let read = |dir: fs::DirEntry| fs::read_to_string(dir.path().join("daemon.log")).ok();
    fs::read_dir(groups).unwrap().flatten().filter_map(read).collect()
}

#[test]
fn payloads_of_every_size_come_back_without_redis() {
    let nodes = nodes("sizes");
    nodes.cloud.start(server(&nodes.cloud, "server-c"));
    for size in [0, 1, 65_536, 65_537, 1 << 20, 104_857_600] {
        let run = nodes.edge.guest(&format!("p-{size}"), "probe");
        let outcome = nodes.edge.run(run.args(["call-size", "server", &size.to_string()]));
        assert_eq!(outcome.success().text(), format!("{size} bytes came back\n"));
    }
    let metrics = NodeMetrics::read(&StateDir::new(&nodes.edge.node.state()));
    let of_this = metrics.edges.keys().filter(|key| key.namespace.starts_with("sizes-"));
    let mut paths: Vec<_> = of_this.map(|key| (key.mode.as_str(), key.path.as_str())).collect();
    paths.dedup();
    assert_eq!(paths, [("networked", "direct")]);
    let user = ["-a", "secret-of-the-nodes", "--no-auth-warning"];
    assert_eq!(nodes.redis.cli(&[&user[..], &["KEYS", "cwasi:try:*"]].concat()), "");
}

#[test]
fn one_port_serves_all_shims_of_a_node_and_survives_its_owner() {
    let nodes = nodes("port");
    // Functions outside of pods and workflows have a shim each; the first one has the port.
    nodes.cloud.start(server(&nodes.cloud, "first").annotation("cwasi.function", "other"));
    let numbered = Numbered::default();
    nodes.cloud.start(numbered.noting("server-c", server(&nodes.cloud, "server-c")));
    let caller = numbered.calling(nodes.edge.guest("numbers", "probe"), "server");
    let caller = caller.spawn(&nodes.edge.containerd).unwrap();
    numbered.wait_for_more("server-c", 20);
    let owner = "takes direct connections for the shims of this node";
    assert!(logs(&nodes.cloud).contains(owner));
    let folder = nodes.cloud.node.state().join("link");
    let files = || fs::read_dir(&folder).unwrap().count();
    let before = files();
    nodes.cloud.remove("first");
    numbered.wait_for_more("server-c", 100);
    wait_for("the other shim to listen", || logs(&nodes.cloud).contains(owner).then_some(()));
    wait_for("the first one's socket to go", || (files() < before).then_some(()));
    let new = nodes.edge.run(nodes.edge.guest("new", "probe").args(["call", "server", "x"]));
    assert_eq!(new.success().text(), "x");
    let ends = numbered.finish(caller);
    numbered.check(&["server-c"], &ends, 0);
}

/// Has both nodes list each other, and know no Redis.
fn without_redis(nodes: &mut Nodes) {
    nodes.redis.stop();
    let both = [&nodes.edge, &nodes.cloud].map(|scene| scene.containerd.ready());
    let entries = both.map(|ready| {
        let key = NodeKey::in_file(&ready.dir.join("link.key")).unwrap();
        let digits: String = key.raw().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{}:9470#{digits}", ready.link.as_ref().unwrap().address)
    });
    for (ready, other) in both.into_iter().zip(entries.iter().rev()) {
        let file = ready.dir.join("cwasi.toml");
        let text = fs::read_to_string(&file).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with("redis_url"));
        let kept: String = lines.map(|line| format!("{line}\n")).collect();
        let key = ready.dir.join("link.key");
        fs::write(file, format!("{kept}link_key = {key:?}\nlink_peers = [{other:?}]\n")).unwrap();
    }
}

#[test]
fn nodes_that_list_each_other_need_no_redis() {
    let mut nodes = nodes("peers");
    without_redis(&mut nodes);
    nodes.cloud.start(server(&nodes.cloud, "server-c"));
    let other = server(&nodes.edge, "other-e").annotation("cwasi.function", "other");
    nodes.edge.start(other);
    for (scene, callee) in [(&nodes.edge, "server"), (&nodes.cloud, "other")] {
        for size in [1, 1 << 20] {
            let run = scene.guest(&format!("p-{callee}-{size}"), "probe");
            let outcome = scene.run(run.args(["call-size", callee, &size.to_string()]));
            assert_eq!(outcome.success().text(), format!("{size} bytes came back\n"));
        }
    }
    let sender = nodes.edge.guest("sender", "probe").args(["emit", "server", "x"]);
    let sent = nodes.edge.run(sender).success();
    assert!(sent.text().contains("this node has no redis_url"), "{}", sent.text());
}
