//! Two nodes on one machine, edge and cloud: each a containerd in a network of its own with its own state, and one
//! Redis that both reach.

use std::fs;
use std::path::Path;
use std::sync::{Once, OnceLock};

use crate::containerd::Containerd;
use crate::link::Link;
use crate::paths::ContainerdVersion;
use crate::ready::Ready;
use crate::redis::{Redis, RedisVersion, Setup};
use crate::scene::{Scene, take_turn};

/// The containerds of this test process; taken down by their guards when it ends.
static SHARED: [OnceLock<Containerd>; 2] = [const { OnceLock::new() }; 2];
/// Names of the nodes, in the order of [`SHARED`].
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
    /// Both nodes with the same containerd namespace, and a fresh server. Container ids must differ between
    /// the nodes: they share the machine's cgroups.
    ///
    /// # Panics
    /// When set-up, build or guests are missing.
    #[must_use]
    pub fn new(shim: &str, name: &str) -> Self {
        let programs = Path::new(shim).parent().expect("a program lies in a folder");
        let turn = take_turn();
        let [edge, cloud] = [0, 1].map(|index| containerd(index, programs));
        let redis = server(&[edge, cloud]);
        for (containerd, node) in [edge, cloud].into_iter().zip(NAMES) {
            configure(containerd.ready(), node, &redis, "debug");
        }
        let namespace = format!("{name}-{}", std::process::id());
        let edge = Scene::on(edge, programs, &namespace, Some(turn));
        let cloud = Scene::on(cloud, programs, &namespace, None);
        Self { edge, cloud, redis }
    }

    /// The same nodes, which reach each other, too: their calls need no server. Both kinds are not for one process.
    ///
    /// # Panics
    /// As [`Self::new`].
    #[must_use]
    pub fn joined(shim: &str, name: &str) -> Self {
        static JOINED: Once = Once::new();
        let nodes = Self::new(shim, name);
        JOINED.call_once(|| join([nodes.edge.containerd, nodes.cloud.containerd]));
        nodes
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

fn containerd(index: usize, programs: &Path) -> &'static Containerd {
    SHARED[index].get_or_init(|| {
        Containerd::start_linked(ContainerdVersion::V1_6, programs)
            .unwrap_or_else(|error| panic!("{error:#}"))
    })
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
    let gateway = ready.link.as_ref().expect("a fixture with a cable").gateway;
    let settings = format!(
        "{}node = \"{node}\"\nlog = \"{log}\"\nredis_url = \"redis://{USER}{gateway}:{}\"\n{more}",
        crate::guard::cwasi_config(&ready.dir),
        redis.port()
    );
    fs::write(ready.dir.join("cwasi.toml"), settings).expect("a fixture's directory is writable");
}
