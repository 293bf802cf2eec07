//! End to end on two nodes: containerds in networks of their own, one Redis between them. The same guests as
//! on one node, unchanged, reach callees on the other.

use cwasi_testbed::nodes::Nodes;
use cwasi_testbed::run::Outcome;
use cwasi_testbed::scene::Scene;

fn nodes(name: &str) -> Nodes {
    Nodes::new(env!("CARGO_BIN_EXE_containerd-shim-cwasi-v1"), name)
}

/// Starts a secondary as function `name`, in a container of its own name.
fn secondary(scene: &Scene, container: &str, name: &str, guest: &str) {
    scene.start(
        scene
            .guest(container, guest)
            .annotation("cwasi.role", "secondary")
            .annotation("cwasi.function", name),
    );
}

fn call(scene: &Scene, id: &str, target: &str, word: &str) -> Outcome {
    scene.run(scene.guest(id, "probe").args(["call", target, word]))
}

#[test]
fn a_callee_on_the_other_node_answers() {
    let nodes = nodes("other");
    secondary(&nodes.cloud, "server-c", "server", "server");
    assert_eq!(call(&nodes.edge, "p", "server", "hello").success().text(), "hello");
}

#[test]
fn payloads_of_every_size_come_back_from_the_other_node_unchanged() {
    let nodes = nodes("sizes");
    secondary(&nodes.cloud, "server-c", "server", "server");
    for size in [0, 1, 65_536, 65_537, 1 << 20, 104_857_600] {
        let run = nodes.edge.guest(&format!("p-{size}"), "probe");
        let outcome = nodes.edge.run(run.args(["call-size", "server", &size.to_string()]));
        assert_eq!(outcome.success().text(), format!("{size} bytes came back\n"));
    }
    // Nothing of them stays.
    let keys =
        nodes.redis.cli(&["-a", "secret-of-the-nodes", "--no-auth-warning", "KEYS", "cwasi:pay:*"]);
    assert_eq!(keys, "");
}
