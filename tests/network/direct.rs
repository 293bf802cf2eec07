//! Direct connections between nodes: what faults do to calls, and what a stranger can do.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cwasi_config::messages::MessagesConfig;
use cwasi_direct::connection::{Kind, read_message, write_message};
use cwasi_direct::key::NodeKey;
use cwasi_direct::port::{self, PortSettings};
use cwasi_direct::tls::{ANY_SHIM, Tls};
use cwasi_host::network::{DirectSettings, FunctionLocations};
use cwasi_modes::CallError;
use cwasi_networked::{RedisTarget, locations, nodes};
use cwasi_sys::random::bytes16;
use cwasi_testbed::port::free_port;
use cwasi_testbed::redis::{Redis, RedisVersion};
use cwasi_wire::envelope::{CallStatus, Detail, Path};
use cwasi_wire::network::{
    self, Answer, AnswerKind, Call, Link, Location, NodeProof, TryId, decode, encode,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio_rustls::client::TlsStream;

use crate::faults::call;
use crate::fixture::{
    Executions, Instance, Node, PATIENCE, Peer, StopWhenDone, counts, identity, reactor, target,
    wait_for,
};

/// A machine: what its shims share.
pub struct Host {
    pub name: &'static str,
    pub dir: tempfile::TempDir,
    pub settings: DirectSettings,
}

impl Host {
    pub fn new(name: &'static str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port(Ipv4Addr::LOCALHOST.into())));
        let settings = DirectSettings {
            tls: Tls::new(NodeKey::fresh().unwrap()).unwrap(),
            listen,
            advertise: None,
            redis: None,
            dir: dir.path().join("link"),
            always: false,
            peers: Vec::new(),
        };
        Self { name, dir, settings }
    }

    /// A shim of it that knows these nodes, and no Redis.
    pub fn among(&self, peers: Vec<Link>) -> Node {
        let settings = DirectSettings { peers, always: true, ..self.settings.clone() };
        Node::among_peers(self.name, settings)
    }

    /// Its entry in `link_peers` of others.
    pub fn entry(&self) -> Link {
        let DirectSettings { listen, tls, .. } = &self.settings;
        let (address, shim) = (listen.to_string(), ANY_SHIM.to_owned());
        Link { address, shim, proof: tls.proof().unwrap() }
    }

    /// A shim of it.
    pub fn shim(&self, target: &RedisTarget) -> Node {
        assert!(self.dir.path().exists());
        Node::with(self.name, target, &MessagesConfig::default(), Some(self.settings.clone()))
    }
}

/// A server; a caller's node, and a node that serves an instance of `b`.
pub struct Pair {
    pub redis: Redis,
    pub here: Node,
    there: Option<Node>,
    pub hosts: [Host; 2],
    pub executions: Executions,
    instance: Instance,
}

impl Pair {
    pub fn start() -> Self {
        Self::of([Host::new("here"), Host::new("there")])
    }

    pub fn of(hosts: [Host; 2]) -> Self {
        Self::with(hosts, Redis::start(RedisVersion::Redis7))
    }

    fn with(hosts: [Host; 2], redis: Redis) -> Self {
        let target = target(&redis);
        let [here, there] = hosts.each_ref().map(|host| host.shim(&target).linked());
        let has_key = |it: &&Host| matches!(it.settings.tls.proof(), Ok(NodeProof::Key(_)));
        let keys = hosts.iter().filter(has_key).count();
        wait_for("the nodes' keys", || {
            redis.cli(&["KEYS", "cwasi:node:*"]).lines().count() >= keys
        });
        let executions = Executions::default();
        let instance = Instance::start(&executions);
        there.serve(&instance);
        Self { redis, here, there: Some(there), hosts, executions, instance }
    }

    pub fn link(&self) -> (Link, String) {
        let FunctionLocations::At(found) = self.here.locations("b").unwrap() else {
            panic!("it is announced")
        };
        (*found[0].link.clone().unwrap(), found[0].instance.clone())
    }

    pub fn why_not_direct(&self) -> Option<String> {
        let FunctionLocations::At(found) = self.here.locations("b").unwrap() else {
            panic!("it is announced")
        };
        self.here.network.why_not_direct(&found[0])
    }

    /// Each call has run once.
    pub fn assert_ran(&self, calls: usize) {
        let counts = counts(&self.executions);
        assert_eq!(counts.len(), calls);
        assert!(counts.values().all(|count| *count == 1));
    }
}

#[test]
fn payloads_of_all_lengths_are_their_own() {
    const CALLERS: usize = 3;
    let pair = Pair::start();
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let mut worker = pair.here.caller();
            scope.spawn(move || {
                for round in 0..20_usize {
                    // Longer and shorter ones in turn, in segments of the same length and of others.
                    let len = (1 << 20) - round * 40_000 + (round % 3) * (1 << 20);
                    let byte = u8::try_from(1 + caller + CALLERS * round).unwrap();
                    let answer = worker.call(&vec![byte; len], PATIENCE).unwrap();
                    assert!(answer.len() == len && answer.iter().all(|it| *it == byte), "{len}");
                }
            });
        }
    });
    pair.assert_ran(CALLERS * 20);
}

#[test]
fn a_redis_that_hangs_delays_no_call_to_a_known_location() {
    /// Calls that begin after a look-up in the Redis that hangs, and end before it.
    const MANY: usize = 10;
    /// Such look-ups at most: on a busy machine one may end before many calls.
    const LOOK_UPS: usize = 2 * MANY;
    let pair = Pair::start();
    assert_eq!(pair.here.caller().call(b"x", PATIENCE), Ok(b"x".to_vec()));
    let redis = Pid::from_raw(pair.redis.pid());
    kill(redis, Signal::SIGSTOP).unwrap();
    // Until the list is to be looked up again.
    std::thread::sleep(Duration::from_millis(1200));
    let mut calls = 1;
    let mut call = || {
        // A worker that asks for its route, too.
        assert!(matches!(pair.here.locations("b"), Ok(FunctionLocations::At(_))));
        assert_eq!(pair.here.caller().call(b"x", PATIENCE), Ok(b"x".to_vec()));
        calls += 1;
        calls
    };
    let (mut meanwhile, mut look_ups) = (0, 0);
    while meanwhile < MANY {
        look_ups += 1;
        assert!(look_ups <= LOOK_UPS, "{meanwhile} calls while a look-up waited for Redis");
        std::thread::scope(|scope| {
            // It waits for Redis, as long as its shim does.
            let unknown = scope.spawn(|| pair.here.locations("unknown"));
            while !unknown.is_finished() && meanwhile < MANY {
                call();
                meanwhile += usize::from(!unknown.is_finished());
            }
            assert!(unknown.join().unwrap().is_err());
        });
    }
    kill(redis, Signal::SIGCONT).unwrap();
    wait_for("Redis to be back", || pair.here.locations("unknown").is_ok());
    let calls = call();
    pair.assert_ran(calls);
}

/// Nobody pings Redis while its answer to SUBSCRIBE is awaited.
#[test]
fn a_redis_that_hangs_is_noticed_by_who_begins_to_listen() {
    let redis = Redis::start(RedisVersion::Redis7);
    let peer = Peer::start(&target(&redis));
    kill(Pid::from_raw(redis.pid()), Signal::SIGSTOP).unwrap();
    let _listener = peer.listen("instance");
    assert!(peer.link.session_now().is_err(), "the link is down");
    kill(Pid::from_raw(redis.pid()), Signal::SIGCONT).unwrap();
    drop(peer.session());
}

#[test]
fn a_node_that_dies_under_a_call_leaves_it_unknown() {
    let mut pair = Pair::start();
    let mut worker = pair.here.caller();
    assert_eq!(worker.call(b"x", PATIENCE), Ok(b"x".to_vec()));
    worker.start(b"held", PATIENCE);
    wait_for("the call to run", || pair.executions.lock().unwrap().len() == 2);
    pair.there.take().unwrap().kill();
    let (_id, ended) = worker.ended(PATIENCE);
    assert!(matches!(ended, Err(CallError::Broken { .. })), "{ended:?}");
    pair.assert_ran(2);
}

#[test]
fn a_port_that_nobody_reaches_sends_calls_over_redis() {
    let hosts = [Host::new("here"), Host::new("there")].map(|mut host| {
        let unused = free_port(Ipv4Addr::LOCALHOST.into());
        host.settings.advertise = Some(format!("127.0.0.1:{unused}"));
        host
    });
    let pair = Pair::of(hosts);
    let mut worker = pair.here.caller();
    for payload in [&b"x"[..], &[5; 300_000]] {
        assert_eq!(worker.call(payload, PATIENCE), Ok(payload.to_vec()));
    }
    assert_eq!(worker.path_of_a_call(), Path::PATH_REDIS);
    pair.assert_ran(3);
    let why = pair.why_not_direct().unwrap();
    assert!(why.contains("does not answer: Connection refused"), "{why}");
}

#[test]
fn a_node_without_a_link_is_reached_over_redis() {
    let pair = Pair::start();
    let old = Node::start("old", &target(&pair.redis));
    assert_eq!(old.caller().call(b"x", PATIENCE), Ok(b"x".to_vec()));
    let FunctionLocations::At(found) = old.locations("b").unwrap() else { panic!("announced") };
    assert!(old.network.why_not_direct(&found[0]).unwrap().contains("link = \"redis\""));
    pair.assert_ran(1);
}

/// Calls without end from four workers, during `meanwhile`; how many there were.
pub fn under_load(pair: &Pair, meanwhile: impl FnOnce()) -> usize {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let callers = [(); 4].map(|()| {
            let (stop, mut worker) = (&stop, pair.here.caller());
            scope.spawn(move || {
                let mut answered = 0;
                while !stop.load(Ordering::Relaxed) {
                    assert_eq!(worker.call(b"x", PATIENCE), Ok(b"x".to_vec()));
                    answered += 1;
                }
                answered
            })
        });
        let stopping = StopWhenDone(&stop);
        std::thread::sleep(Duration::from_millis(200));
        meanwhile();
        std::thread::sleep(Duration::from_millis(200));
        drop(stopping);
        callers.into_iter().map(|caller| caller.join().unwrap()).sum()
    })
}

#[test]
fn no_call_is_lost_when_the_ports_owner_is_killed() {
    let hosts = [Host::new("here"), Host::new("there")];
    let redis = Redis::start(RedisVersion::Redis7);
    let target = target(&redis);
    let owner = hosts[1].shim(&target);
    let mut unused = Instance::start(&Executions::default());
    unused.record.identity = identity("unused");
    owner.serve(&unused);
    let pair = Pair::with(hosts, redis);
    assert_eq!(pair.here.caller().call(b"x", PATIENCE), Ok(b"x".to_vec()));
    assert_eq!(pair.why_not_direct(), None);
    let connects = || {
        // A node without connections.
        let node = pair.hosts[0].shim(&target);
        assert_eq!(node.caller().call(b"new", PATIENCE), Ok(b"new".to_vec()));
    };
    let calls = under_load(&pair, || {
        owner.kill();
        (0..10).for_each(|_| connects());
    });
    assert_eq!(pair.redis.cli(&["KEYS", "cwasi:try:*"]), "", "nothing was published");
    pair.assert_ran(1 + calls + 10);
}

#[test]
fn no_call_is_lost_when_a_shim_ends() {
    let mut pair = Pair::start();
    let first = pair.there.take().unwrap();
    let second = pair.hosts[1].shim(&target(&pair.redis));
    let other = Instance::start(&pair.executions);
    second.serve(&other);
    wait_for(
        "both instances",
        || matches!(pair.here.locations("b"), Ok(FunctionLocations::At(found)) if found.len() == 2),
    );
    let calls = under_load(&pair, || {
        first.withdraw(&pair.instance);
        // It waits for half a second for calls that run.
        (0..10).for_each(|_| first.close());
        first.kill();
    });
    pair.assert_ran(calls);
}

/// The other end of a connection, which does what a test wants.
struct Stranger {
    reactor: Runtime,
    stream: TlsStream<TcpStream>,
}

impl Stranger {
    /// A node with this name, whose key is announced if `is_known`.
    fn connect(pair: &Pair, name: &str, is_known: bool) -> (Self, (Kind, Vec<u8>)) {
        let (reactor, key) = (reactor(), NodeKey::fresh().unwrap());
        let (link, _instance) = pair.link();
        let target = target(&pair.redis);
        let connecting = async {
            if is_known {
                let (redis, _answers) =
                    cwasi_networked::RedisLink::start(&target, "cwasi:re:stranger").unwrap();
                let until = tokio::time::Instant::now() + PATIENCE;
                let session = redis.session(until).await.unwrap();
                nodes::announce(&session, key.public(), name).await.unwrap();
            }
            let tls = Tls::new(key).unwrap();
            let stream = TcpStream::connect(&link.address).await.unwrap();
            let mut stream = tls.connect(stream, &link.shim, &link.proof).await.unwrap();
            let said = read_message(&mut stream).await.unwrap().unwrap();
            (stream, said)
        };
        let (stream, said) = reactor.block_on(connecting);
        (Self { reactor, stream }, said)
    }

    fn send(&mut self, kind: Kind, message: &[u8]) {
        self.reactor.block_on(write_message(&mut self.stream, kind, message)).unwrap();
    }

    /// The next answer; `None` when the connection has ended.
    fn answer(&mut self) -> Option<(AnswerKind, String)> {
        let reading =
            async { tokio::time::timeout(PATIENCE, read_message(&mut self.stream)).await };
        let (_kind, message) = self.reactor.block_on(reading).unwrap().ok().flatten()?;
        let answer: Answer = decode(&message).unwrap();
        let (kind, text) = (answer.kind.unwrap(), String::from_utf8_lossy(&answer.payload.inline));
        if kind == AnswerKind::ANSWER_ACCEPTED {
            // Of a call that takes longer than a moment.
            return self.answer();
        }
        Some((kind, text.into_owned()))
    }
}

fn request(pair: &Pair, payload: network::Payload) -> (TryId, Call) {
    let (id, call) = call(payload);
    (id, Call { instance: pair.link().1, reply_to: String::new(), ..call })
}

#[test]
fn who_is_not_announced_is_refused() {
    let pair = Pair::start();
    let refused = || {
        let (stranger, (kind, reason)) = Stranger::connect(&pair, "stranger", false);
        assert_eq!(kind, Kind::Refusal);
        (stranger, String::from_utf8(reason).unwrap())
    };
    // The server is new: nodes may announce themselves again.
    let (_stranger, reason) = refused();
    assert!(reason.starts_with("the caller's key is not known yet"), "{reason}");
    let day_ms = 24 * 3600 * 1000;
    pair.redis.cli(&["PEXPIRE", "cwasi:since", &day_ms.to_string()]);
    let (mut stranger, reason) = refused();
    assert_eq!(reason, "no node has announced the caller's key");
    let (_id, call) = request(&pair, network::Payload::of_bytes(b"x".to_vec()));
    let call = encode(&call);
    let sending = write_message(&mut stranger.stream, Kind::Call, &call);
    let _ended = stranger.reactor.block_on(sending);
    assert_eq!(stranger.answer(), None);
    pair.assert_ran(0);
}

#[test]
fn a_call_in_another_nodes_name_is_refused() {
    let pair = Pair::start();
    let (mut peer, (kind, _)) = Stranger::connect(&pair, "stranger", true);
    assert_eq!(kind, Kind::Ready);
    // It says that it comes from node `peer`.
    let (_id, call) = request(&pair, network::Payload::of_bytes(b"x".to_vec()));
    peer.send(Kind::Call, &encode(&call));
    let (kind, text) = peer.answer().unwrap();
    assert_eq!(kind, AnswerKind::ANSWER_REFUSED);
    assert!(text.contains("a call of node peer came from node stranger"), "{text}");
    pair.assert_ran(0);
}

#[test]
fn a_call_runs_once_and_not_after_it_was_given_up() {
    let pair = Pair::start();
    let (mut peer, _) = Stranger::connect(&pair, "peer", true);
    let (_id, once) = request(&pair, network::Payload::of_bytes(b"once".to_vec()));
    peer.send(Kind::Call, &encode(&once));
    assert_eq!(peer.answer(), Some((AnswerKind::ANSWER_ENDED, "once".to_owned())));
    // The same message on another connection, before the caller has shown that it has the answer.
    let (mut other, _) = Stranger::connect(&pair, "peer", true);
    other.send(Kind::Call, &encode(&once));
    assert_eq!(other.answer().unwrap().0, AnswerKind::ANSWER_REFUSED);
    let (id, given_up) = request(&pair, network::Payload::of_bytes(b"never".to_vec()));
    peer.send(Kind::GiveUp, &id.0);
    assert_eq!(peer.answer().unwrap().0, AnswerKind::ANSWER_REFUSED);
    peer.send(Kind::Call, &encode(&given_up));
    assert_eq!(peer.answer().unwrap().0, AnswerKind::ANSWER_REFUSED);
    pair.assert_ran(1);
}

#[test]
fn a_request_that_is_cut_off_does_not_run() {
    let pair = Pair::start();
    let (mut peer, _) = Stranger::connect(&pair, "peer", true);
    let (id, call) = request(&pair, network::Payload::following(1 << 20));
    peer.send(Kind::Call, &encode(&call));
    peer.reactor.block_on(peer.stream.write_all(&vec![1; 1 << 19])).unwrap();
    drop(peer);
    let (mut peer, _) = Stranger::connect(&pair, "peer", true);
    peer.send(Kind::GiveUp, &id.0);
    assert_eq!(peer.answer().unwrap().0, AnswerKind::ANSWER_REFUSED, "it was not accepted");
    pair.assert_ran(0);
}

/// What a caller hears when the callee's shim answers its call with this.
fn answered_by(
    answer: impl FnOnce(&Call) -> Answer + Send + 'static,
) -> Result<Vec<u8>, CallError> {
    let redis = Redis::start(RedisVersion::Redis7);
    let target = target(&redis);
    let peer = Peer::start(&target);
    let (host, tls) = (Host::new("there"), Tls::new(NodeKey::fresh().unwrap()).unwrap());
    let DirectSettings { listen, dir, .. } = host.settings.clone();
    let (address, shim) = (listen.to_string(), "ab".to_owned());
    let link = Link { address, shim: shim.clone(), proof: tls.proof().unwrap() };
    let location = Location {
        identity: identity("b"),
        node: "there".into(),
        instance: "i".into(),
        allow: Vec::new(),
        max_payload: 1 << 20,
        max_head: 65_536,
        http: false,
        link: Some(Box::new(link)),
    };
    peer.reactor.block_on(locations::announce(&peer.session(), &location)).unwrap();
    let mut port = {
        let _entered = peer.reactor.enter();
        port::share(PortSettings { listen, dir, shim }).unwrap()
    };
    peer.reactor.spawn(async move {
        let (mut stream, _key) = tls.accept(port.next().await.unwrap()).await.unwrap();
        write_message(&mut stream, Kind::Ready, &[]).await.unwrap();
        let (_kind, message) = read_message(&mut stream).await.unwrap().unwrap();
        let answer = answer(&decode(&message).unwrap());
        write_message(&mut stream, Kind::Answer, &encode(&answer)).await.unwrap();
        // Until the caller ends it.
        let _ended = read_message(&mut stream).await;
    });
    Host::new("here").shim(&target).caller().call(b"x", PATIENCE)
}

#[test]
fn a_callees_shim_cannot_have_its_caller_take_more_than_it_may() {
    const MUCH: u64 = 1 << 50;
    let ended = |errno: i32| {
        answered_by(move |call| {
            let id = TryId::from_field(&call.try_id).unwrap();
            let status = CallStatus::of(errno, Detail::DETAIL_NONE);
            let payload = network::Payload::following(MUCH);
            Answer::of("", id, AnswerKind::ANSWER_ENDED, status, payload)
        })
    };
    let response = ended(0);
    assert!(matches!(response, Err(CallError::TooLarge(_))), "{response:?}");
    let error = ended(8);
    assert!(matches!(error, Err(CallError::Broken { .. })), "{error:?}");
    let other = answered_by(|_call| {
        let (id, none) = (TryId([9; 16]), network::Payload::default());
        Answer::of("", id, AnswerKind::ANSWER_ENDED, CallStatus::ANSWERED, none)
    });
    assert!(other.is_err(), "an answer to another call");
}

#[test]
fn garbage_ends_its_connection_and_nothing_else() {
    let pair = Pair::start();
    let (_id, call) = request(&pair, network::Payload::of_bytes(b"x".to_vec()));
    let mut bytes = encode(&call);
    for round in 0..20_usize {
        let (mut peer, _) = Stranger::connect(&pair, "peer", true);
        match round % 4 {
            0 => peer.send(Kind::Call, &bytes16()),
            1 => peer.send(Kind::Answer, &bytes),
            2 => peer.send(Kind::GiveUp, b"short"),
            _ => {
                let head = [9, 0, 0, 0, 255, 255, 255, 255];
                peer.reactor.block_on(peer.stream.write_all(&head)).unwrap();
                peer.reactor.block_on(peer.stream.flush()).unwrap();
            }
        }
        assert_eq!(peer.answer(), None, "{round}");
        let place = round % bytes.len();
        bytes[place] ^= 0xff;
    }
    assert_eq!(pair.here.caller().call(b"x", PATIENCE), Ok(b"x".to_vec()));
    pair.assert_ran(1);
}

/// How many instances of `b` a node of peers knows.
pub fn instances(node: &Node) -> usize {
    match node.locations("b").unwrap() {
        FunctionLocations::At(found) => found.len(),
        _ => 0,
    }
}

#[test]
fn nodes_that_list_each_other_need_no_redis() {
    let hosts = [Host::new("here"), Host::new("there")];
    let here = hosts[0].among(vec![hosts[1].entry()]);
    let start = || hosts[1].among(vec![hosts[0].entry()]);
    let there = start();
    assert_eq!(here.locations("b"), Ok(FunctionLocations::Never), "no shim listens");
    let (executions, mut worker) = (Executions::default(), here.caller());
    let first = Instance::start(&executions);
    there.register(&first);
    wait_for("the first instance", || instances(&here) == 1);
    let large = vec![9; 3 << 20];
    for payload in [&b"x"[..], &large] {
        assert_eq!(worker.call(payload, PATIENCE).as_deref(), Ok(payload));
    }
    assert_eq!(here.locations("unknown"), Ok(FunctionLocations::Never));
    let unsent = here.emit(b"x", PATIENCE);
    assert!(matches!(unsent, Err(CallError::NotAvailable(_))), "{unsent:?}");
    let second = Instance::start(&executions);
    there.register(&second);
    wait_for("the second instance", || instances(&here) == 2);
    there.unregister(&first);
    wait_for("the first one to go", || instances(&here) == 1);
    assert_eq!(worker.call(b"x", PATIENCE), Ok(b"x".to_vec()));
    there.kill();
    let lost = worker.call(b"x", PATIENCE);
    assert!(matches!(lost, Err(CallError::Unreachable { .. })), "{lost:?}");
    let there = start();
    there.register(&second);
    wait_for("the node to be back", || worker.call(b"x", PATIENCE) == Ok(b"x".to_vec()));
    assert!(counts(&executions).values().all(|count| *count == 1));
}

#[test]
fn a_node_is_known_by_the_key_that_is_listed() {
    let [here, there, other] = [Host::new("here"), Host::new("there"), Host::new("other")];
    let (executions, node) = (Executions::default(), there.among(vec![here.entry()]));
    let instance = Instance::start(&executions);
    node.register(&instance);
    // The right key, as the others show.
    let found = here.among(vec![there.entry()]);
    wait_for("the instance", || instances(&found) == 1);
    let proof = other.entry().proof;
    let wrong = here.among(vec![Link { proof, ..there.entry() }]).locations("b").unwrap_err();
    assert!(wrong.to_string().contains("does not answer"), "{wrong}");
    let unlisted = other.among(vec![there.entry()]).locations("b").unwrap_err().to_string();
    assert!(unlisted.contains("the caller's key is not in link_peers"), "{unlisted}");
}
