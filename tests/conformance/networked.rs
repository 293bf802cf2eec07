//! Networked buffer under the suite, over Redis and directly: two shims' networks with a real server between them, and
//! the same receiver at the end as in the local mode.

use std::marker::PhantomData;
use std::net::{Ipv4Addr, SocketAddr};

use cwasi_config::messages::MessagesConfig;
use cwasi_coordinator::registry::{Record, Registry};
use cwasi_direct::key::NodeKey;
use cwasi_direct::tls::Tls;
use cwasi_dispatcher::{Resolve, ResolvedRoute, Route, RouteQuery};
use cwasi_host::network::{self, DirectSettings, Network};
use cwasi_modes::CallError;
use cwasi_modes::local::LocalRoute;
use cwasi_networked::RedisTarget;
use cwasi_sys::clock::Deadline;
use cwasi_testbed::port::free_port;
use cwasi_testbed::redis::{Redis, RedisVersion};
use cwasi_wire::control::{EdgeReport, ModeHint};
use tokio::runtime::{Handle, Runtime};

use crate::MAX_PAYLOAD;
use crate::callee::{Callee, identity};
use crate::dispatched::Reachable;

/// How calls travel between the nodes.
pub trait Path: Send {
    const SERVER: RedisVersion;
    /// Never over the server.
    const IS_DIRECT: bool = false;
}

pub struct Redis7;
pub struct Valkey8;
pub struct Direct;

impl Path for Redis7 {
    const SERVER: RedisVersion = RedisVersion::Redis7;
}

impl Path for Valkey8 {
    const SERVER: RedisVersion = RedisVersion::Valkey8;
}

impl Path for Direct {
    const SERVER: RedisVersion = RedisVersion::Redis7;
    const IS_DIRECT: bool = true;
}

/// One node: a reactor, its network and its registry.
struct Node {
    reactor: Runtime,
    network: Network,
}

impl Node {
    fn start<P: Path>(name: &str, target: &RedisTarget, callee: &Callee) -> Self {
        let reactor =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let reactor = reactor.unwrap();
        let dir = callee.dir().join(name);
        let registry = Registry::new(&dir);
        let direct = P::IS_DIRECT.then(|| DirectSettings {
            tls: Tls::new(NodeKey::fresh().unwrap()).unwrap(),
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, free_port(Ipv4Addr::LOCALHOST.into()))),
            advertise: None,
            redis: None,
            dir: dir.join("link"),
            always: true,
            peers: Vec::new(),
        });
        let network = {
            let _entered = reactor.enter();
            Network::connect(target, name, &registry, &MessagesConfig::default(), direct).unwrap()
        };
        Self { reactor, network }
    }
}

/// Caller's node, callee's node, and what is behind and between them.
pub struct Networked<P> {
    callee: Callee,
    here: Node,
    there: Option<Node>,
    _redis: Redis,
    path: PhantomData<P>,
}

impl<P: Path> Reachable for Networked<P> {
    type Resolver = ToNetwork;
    // A round that happens to have more calls at a time makes a connection, with four descriptors of this process.
    const KEPT: usize = if P::IS_DIRECT { 16 } else { 0 };

    fn start() -> Self {
        let redis = Redis::start(P::SERVER);
        let target = RedisTarget { url: redis.url(), ca: None };
        let callee = Callee::start();
        let here = Node::start::<P>("here", &target, &callee);
        let there = Node::start::<P>("there", &target, &callee);
        let record = Record {
            identity: identity("callee"),
            instance: "0123456789abcdef".to_owned(),
            group: String::new(),
            workflow: String::new(),
            trust: String::new(),
            allow: Vec::new(),
            socket: callee.socket(),
            max_payload: MAX_PAYLOAD,
            max_head: 65_536,
            container: "callee".to_owned(),
            http: false,
            http_port: None,
            http_idle_ms: 0,
            timeout_ms: None,
            triggers: Vec::new(),
            workers: None,
            link: String::new(),
        };
        there.reactor.block_on(there.network.serve(record));
        Self { callee, here, there: Some(there), _redis: redis, path: PhantomData }
    }

    fn resolver(&self) -> ToNetwork {
        let (network, reactor) = (self.here.network.clone(), self.here.reactor.handle().clone());
        ToNetwork { network, reactor }
    }

    /// The callee's shim and the callee: a node that lost its power.
    fn kill(&mut self) {
        if let Some(there) = self.there.take() {
            there.reactor.shutdown_background();
        }
        self.callee.kill();
    }
}

/// Connects to the caller's shim.
pub struct ToNetwork {
    network: Network,
    reactor: Handle,
}

impl ToNetwork {
    fn connect(&self) -> LocalRoute {
        let caller = network::BridgeCaller {
            identity: identity("caller"),
            group: String::new(),
            workflow: String::new(),
            instance: "1".to_owned(),
            hint: ModeHint::Auto,
            max_payload: MAX_PAYLOAD,
            callee: identity("callee"),
            http: false,
            passed_over: Vec::new(),
        };
        let _entered = self.reactor.enter();
        let connection = self.network.bridge(caller).unwrap();
        LocalRoute { instance: String::new(), connection, max_request: MAX_PAYLOAD, lends: true }
    }
}

impl Resolve for ToNetwork {
    fn resolve(
        &mut self,
        _: &RouteQuery<'_>,
        _: Option<Deadline>,
    ) -> Result<ResolvedRoute, CallError> {
        let (bridge, reason) = (self.connect(), String::new());
        Ok(ResolvedRoute { route: Some(Route::Networked { bridge, reason }), instances: 1 })
    }

    fn report(&mut self, _: Vec<EdgeReport>) {}
}

mod redis_7 {
    use super::{Networked, Redis7};
    use crate::dispatched::Waiting;

    crate::apart_conformance!(Waiting<Networked<Redis7>>);

    #[test]
    fn nothing_leaks() {
        crate::in_a_process_of_its_own(
            "networked::redis_7::nothing_leaks",
            crate::suite::nothing_leaks::<Waiting<Networked<Redis7>>>,
        );
    }
}

mod in_flight {
    use super::{Networked, Redis7};

    crate::fan_conformance!(Networked<Redis7>);

    #[test]
    fn nothing_leaks() {
        crate::in_a_process_of_its_own(
            "networked::in_flight::nothing_leaks",
            crate::fan::nothing_leaks_from_calls_in_flight::<Networked<Redis7>>,
        );
    }
}

mod valkey_8 {
    use super::{Networked, Valkey8};
    use crate::dispatched::Waiting;

    crate::apart_conformance!(Waiting<Networked<Valkey8>>);
}

mod direct {
    use super::{Direct, Networked};
    use crate::dispatched::Waiting;

    crate::apart_conformance!(Waiting<Networked<Direct>>);

    #[test]
    fn nothing_leaks() {
        crate::in_a_process_of_its_own(
            "networked::direct::nothing_leaks",
            crate::suite::nothing_leaks::<Waiting<Networked<Direct>>>,
        );
    }
}

mod direct_in_flight {
    use super::{Direct, Networked};

    crate::fan_conformance!(Networked<Direct>);

    #[test]
    fn nothing_leaks() {
        crate::in_a_process_of_its_own(
            "networked::direct_in_flight::nothing_leaks",
            crate::fan::nothing_leaks_from_calls_in_flight::<Networked<Direct>>,
        );
    }
}
