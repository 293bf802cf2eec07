//! Components and core modules call each other between two nodes, over Redis.

use cwasi_abi::Errno;
use cwasi_testbed::nodes::Nodes;

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
