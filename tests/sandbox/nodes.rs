//! Fan-in across hosts: parts from this one and from another meet in one receiver. Two networks of one process over
//! a real Redis, the function in a real sandbox.

use cwasi_abi::Errno;
use cwasi_config::messages::MessagesConfig;
use cwasi_coordinator::registry::{Record, Registry};
use cwasi_host::network::{BridgeCaller as Route, Network};
use cwasi_networked::RedisTarget;
use cwasi_testbed::redis::{Redis, RedisVersion};
use cwasi_wire::control::Entry;
use cwasi_wire::control::{FanIn, FunctionLaunch, ModeHint, Partial, Role};
use tokio::runtime::Runtime;

use crate::fan_in::{LARGE, LONG_MS, decoded, failed, join};
use crate::fixture::Fixture;
use crate::function::{Caller, Function, PAYLOAD_MAX, identity, launch};
use crate::guests::guests;

/// A host's shim, as far as calls over the network go.
struct Node {
    reactor: Runtime,
    network: Network,
    _state: tempfile::TempDir,
}

impl Node {
    fn start(name: &str, redis: &Redis) -> Self {
        let state = tempfile::tempdir().unwrap();
        let reactor = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let target = RedisTarget { url: redis.url(), ca: None };
        let network = {
            let _entered = reactor.enter();
            let registry = Registry::new(state.path());
            Network::connect(&target, name, &registry, &MessagesConfig::default(), None).unwrap()
        };
        Self { reactor, network, _state: state }
    }

    /// A worker's connection to `f`, wherever that is.
    fn caller(&self, function: &str) -> Caller {
        let route = Route {
            identity: identity(function),
            group: String::new(),
            workflow: String::new(),
            instance: function.into(),
            hint: ModeHint::Networked,
            max_payload: PAYLOAD_MAX,
            callee: identity("f"),
            http: false,
            passed_over: Vec::new(),
        };
        let _entered = self.reactor.enter();
        Caller::over(self.network.bridge(route).unwrap())
    }

    fn serve(&self, function: &Function<'_>) {
        let record = Record {
            identity: identity("f"),
            instance: "0123456789abcdef".into(),
            group: String::new(),
            workflow: String::new(),
            trust: String::new(),
            allow: Vec::new(),
            socket: function.receiver.clone(),
            max_payload: PAYLOAD_MAX,
            max_head: 65_536,
            container: "f".into(),
            http: false,
            http_port: None,
            http_idle_ms: 0,
            timeout_ms: None,
            triggers: Vec::new(),
            workers: None,
            link: String::new(),
        };
        self.reactor.block_on(self.network.serve(record));
    }
}

fn merge(parts: u32, timeout_ms: u64) -> FunctionLaunch {
    let fan_in = Some(FanIn { parts, timeout_ms, partial: Partial::Fail });
    FunctionLaunch { fan_in, ..launch(Role::Secondary, &guests().reactor, Entry::Reactor) }
}

#[test]
fn parts_from_two_hosts_are_one_group() {
    let fixture = Fixture::new();
    let redis = Redis::start(RedisVersion::Redis7);
    let function = Function::start(&fixture, "meet", merge(3, LONG_MS));
    let (here, there) = (Node::start("here", &redis), Node::start("there", &redis));
    here.serve(&function);
    let (mut local, mut one, mut two) =
        (function.caller(), there.caller("one"), there.caller("two"));
    one.send_part(&join("k", 0, 2), &[2; LARGE], LONG_MS);
    local.send_part(&join("k", 0, 0), &[0; LARGE], LONG_MS);
    two.send_part(&join("k", 0, 1), b"from there", LONG_MS);
    let parts = vec![(0, vec![0; LARGE]), (1, b"from there".to_vec()), (2, vec![2; LARGE])];
    for caller in [&local, &one, &two] {
        assert!(decoded(&caller.receive().1.unwrap()) == (3, parts.clone()));
    }
    // What is missing, and what does not fit, comes back over the network too.
    one.send_part(&join("k", 4, 1), b"e", LONG_MS);
    let (errno, message) = failed(one.receive().1);
    assert_eq!(errno, Errno::InvalidArgument);
    assert!(message.contains("cwasi.fan-in=3"), "{message}");
    function.end();
}
