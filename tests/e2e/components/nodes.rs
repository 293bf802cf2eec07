//! Components and core modules call each other between two nodes, over Redis.

use cwasi_abi::Errno;
use cwasi_testbed::nodes::Nodes;
use cwasi_testbed::scene::wait_for;

use super::{LARGE, SHIM, SIZES, call, comes_back, probe, secondary, serving};

#[test]
fn a_core_module_calls_components_on_the_other_node() {
    let nodes = Nodes::new(SHIM, "comp-nodes");
    let (edge, cloud) = (&nodes.edge, &nodes.cloud);
    for name in ["server", "relay", "command", "http"] {
        cloud
            .start(secondary(cloud, &format!("{name}-c"), name).annotation("cwasi.function", name));
    }
    cloud.start(serving(cloud.guest("sink-c", "server"), "sink"));
    for target in ["server", "relay", "command"] {
        for size in SIZES {
            comes_back(edge, &format!("{target}-{size}"), target, size);
        }
    }
    assert_eq!(call(edge, "p", "http", "x"), "POST / x");
    for (order, errno, says) in
        [("!fail no wheels", Errno::Failed, "no wheels"), ("!trap", Errno::Trapped, "unreachable")]
    {
        let outcome = probe(edge, "q", &["call", "server", order]);
        assert_eq!(outcome.code, errno.code(), "{order}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(says), "{order}: {}", outcome.stderr);
    }
    comes_back(edge, "large", "relay", LARGE);
}

#[test]
fn messages_go_to_components_and_come_from_them() {
    let nodes = Nodes::new(SHIM, "comp-emit");
    let (edge, cloud) = (&nodes.edge, &nodes.cloud);
    let folder = tempfile::tempdir().unwrap();
    let command = secondary(cloud, "command-c", "command").annotation("cwasi.function", "command");
    cloud.start(command.mount(folder.path(), "/data", "rw"));
    edge.start(secondary(edge, "server-e", "server").annotation("cwasi.function", "server"));
    let written = |name: &str| {
        let file = folder.path().join(name);
        wait_for("the message", || file.exists().then_some(()));
    };
    let sent = probe(edge, "p", &["emit", "command", "!write /data/core"]);
    assert_eq!(sent.success().text(), "kept\n");
    written("core");
    let order = "!emit command !write /data/component";
    assert_eq!(call(edge, "q", "server", order), "emitted");
    written("component");
}

#[test]
fn a_component_calls_core_modules_and_components_on_the_other_node() {
    let nodes = Nodes::new(SHIM, "comp-nodes-back");
    let (edge, cloud) = (&nodes.edge, &nodes.cloud);
    // One worker for the call back to it.
    let here = secondary(edge, "server-e", "server").annotation("cwasi.concurrency", "2");
    edge.start(here.annotation("cwasi.function", "here"));
    edge.start(secondary(edge, "relay-e", "relay").annotation("cwasi.function", "relay"));
    cloud.start(secondary(cloud, "server-c", "server").annotation("cwasi.function", "there"));
    cloud.start(serving(cloud.guest("core-c", "server"), "core"));
    cloud.start(serving(cloud.guest("sink-c", "server"), "sink"));
    for target in ["core", "there"] {
        for size in SIZES {
            let order = format!("!send {target} {size}");
            let response = call(edge, &format!("{target}-{size}"), "here", &order);
            assert_eq!(response, format!("{size} bytes came back"), "{target}");
        }
    }
    // There and back again, and there.
    assert_eq!(call(edge, "p", "here", "!call there !call here !call core deep"), "deep");
    let failed = probe(edge, "q", &["call", "here", "!call core !trap"]);
    assert_eq!(failed.code, Errno::Failed.code(), "{}", failed.stderr);
    assert!(failed.stderr.contains("Trapped: "), "{}", failed.stderr);
    comes_back(edge, "large", "relay", LARGE);
}
