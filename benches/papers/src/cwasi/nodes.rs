//! Two nodes on this machine, each a containerd in a network of its own, of which one calls functions of the other.

use anyhow::Result;
use cwasi_bench::fixture::{Fixture, shim};
use cwasi_bench::side::Side;
use cwasi_testbed::nodes::{Nodes, configure, configure_with};

use super::engines::Sides;
use crate::run::Run;

/// Ways between nodes, as a node's `link` names them: the paper's networked buffer, and TLS from shim to shim.
pub const LINKS: [&str; 2] = ["redis", "direct"];
/// Level of the nodes' logs: no line for each call.
const LOG: &str = "info";

/// Nodes that reach a Redis and each other.
///
/// # Errors
/// When the runtime is missing.
pub fn start(run: &Run, name: &str) -> Result<Nodes> {
    let nodes = Nodes::joined(&shim(&run.programs)?, name);
    configure(nodes.cloud.containerd.ready(), "cloud", &nodes.redis, LOG);
    Ok(nodes)
}

/// Starts a driver on the edge for each of [`LINKS`].
///
/// # Errors
/// When one does not start.
pub fn drivers(nodes: &Nodes, edge: &Fixture<'_>, sides: &Sides) -> Result<[Side; 2]> {
    let [redis, direct] = LINKS.map(|link| {
        let ready = nodes.edge.containerd.ready();
        configure_with(ready, "edge", &nodes.redis, LOG, &format!("link = \"{link}\"\n"));
        // A workflow of its own has a shim of its own, which reads the configuration when it starts.
        let annotations = [("cwasi.mode", "networked"), ("cwasi.workflow", link)];
        Ok::<_, anyhow::Error>(sides.driver(edge, &annotations)?.side)
    });
    Ok([redis?, direct?])
}
