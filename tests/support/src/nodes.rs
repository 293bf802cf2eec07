//! Two nodes on one machine, edge and cloud: each a containerd in a network of its own with its own state, and one
//! Redis that both reach.

use std::path::Path;
use std::sync::Arc;

use crate::containerd::Containerd;
use crate::link::Link;
use crate::paths::ContainerdVersion;
use crate::ready::Ready;
use crate::redis::{Redis, RedisVersion, Setup};
use crate::scene::{Scene, unique};

const NAMES: [&str; 2] = ["edge", "cloud"];
/// User of the nodes, as in the URL; the server knows it by [`PASSWORD`].
const USER: &str = ":secret-of-the-nodes@";
const PASSWORD: &str = "secret-of-the-nodes";

/// One test's two nodes.
#[derive(Debug)]
pub struct Nodes {
    pub edge: Scene,
    pub cloud: Scene,
    /// The server between them.
    pub redis: Redis,
}

impl Nodes {
    /// Both nodes with the same containerd namespace, and a server, all of their own. Container ids must differ between
    /// the nodes: they share the machine's cgroups.
    ///
    /// # Panics
    /// When set-up, build or guests are missing.
    #[must_use]
    pub fn new(shim: &str, name: &str) -> Self {
        Self::start(shim, name, false)
    }

    /// The same nodes, which reach each other, too: their calls need no server.
    ///
    /// # Panics
    /// As [`Self::new`].
    #[must_use]
    pub fn joined(shim: &str, name: &str) -> Self {
        Self::start(shim, name, true)
    }

    fn start(shim: &str, name: &str, are_joined: bool) -> Self {
        let programs = Path::new(shim).parent().expect("a program lies in a folder");
        let containerds = NAMES.map(|_| {
            let started = Containerd::start_linked(ContainerdVersion::V1_6, programs);
            Arc::new(started.unwrap_or_else(|error| panic!("{error:#}")))
        });
        let both = [&*containerds[0], &*containerds[1]];
        if are_joined {
            join(both);
        }
        let redis = server(&both);
        for (containerd, node) in both.into_iter().zip(NAMES) {
            configure(containerd.ready(), node, &redis, "debug");
        }
        let namespace = unique(name);
        let [edge, cloud] =
            containerds.map(|containerd| Scene::on(containerd, programs, &namespace));
        Self { edge, cloud, redis }
    }

    /// The server's URL for a process of the machine.
    ///
    /// # Panics
    /// When the fixture has no cable.
    #[must_use]
    pub fn redis_url(&self) -> String {
        let link = self.edge.containerd.ready().link.as_ref().expect("a fixture with a cable");
        format!("redis://{USER}{}:{}", link.gateway, self.redis.port())
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // Before either looks for leftovers: they share the machine's cgroups.
            self.edge.remove_containers();
            self.cloud.remove_containers();
        }
    }
}

/// Has two nodes reach each other.
///
/// # Panics
/// When `ip` refuses.
pub fn join(nodes: [&Containerd; 2]) {
    Link::join(nodes.map(|node| {
        (node.ready().link.as_ref().expect("a fixture with a cable"), node.guard_pid())
    }));
}

/// A server that only the two nodes reach: it listens at the machine's end of their cables.
///
/// # Panics
/// When it does not start.
#[must_use]
pub fn server(nodes: &[&Containerd]) -> Redis {
    let gateways: Vec<_> = nodes
        .iter()
        .filter_map(|node| Some(node.ready().link.as_ref()?.gateway.to_string()))
        .collect();
    let mut args = vec!["--requirepass".to_owned(), PASSWORD.to_owned(), "--bind".to_owned()];
    args.extend(gateways);
    Redis::start(Setup { args, ..Setup::from(RedisVersion::Redis7) })
}

/// Writes a node's configuration; the shims that start from now on read it.
///
/// # Panics
/// When it cannot be written.
pub fn configure(ready: &Ready, node: &str, redis: &Redis, log: &str) {
    configure_with(ready, node, redis, log, "");
}

/// The same with more lines.
///
/// # Panics
/// When it cannot be written.
pub fn configure_with(ready: &Ready, node: &str, redis: &Redis, log: &str, more: &str) {
    let link = ready.link.as_ref().expect("a fixture with a cable");
    let (gateway, port) = (link.gateway, redis.port());
    ready.node().configure(&format!(
        "node = \"{node}\"\nlog = \"{log}\"\nredis_url = \"redis://{USER}{gateway}:{port}\"\n{more}"
    ));
}
