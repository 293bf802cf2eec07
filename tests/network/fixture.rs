//! Nodes, instances that count, callers, and a peer that does what a test wants.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cwasi_config::messages::MessagesConfig;
use cwasi_coordinator::registry::{Record, Registry};
use cwasi_host::network::{BridgeCaller, DirectSettings, FunctionLocations, Network, TriggerFault};
use cwasi_modes::local::incoming::ParsedMessage;
use cwasi_modes::local::receiver::ConnectionEvent;
use cwasi_modes::local::{LocalMode, LocalRoute, Receiver, error_answer, send_as_is};
use cwasi_modes::{CallError, OutgoingCall, OutgoingPayload, Payload};
use cwasi_networked::{
    Listener, NetworkError, RedisLink, RedisTarget, demand, instance_channel, locations,
};
use cwasi_sys::clock::Deadline;
use cwasi_sys::random::bytes16;
use cwasi_sys::seqpacket;
use cwasi_testbed::redis::{Redis, RedisVersion};
use cwasi_wire::control::ModeHint;
use cwasi_wire::envelope::{CallStatus, Path, Response};
use cwasi_wire::ids::{CallId, Identity};
use cwasi_wire::network::Location;
use cwasi_wire::trace_headers::TraceHeaders;
use tokio::runtime::Runtime;

/// Largest payload of every function here.
pub const MAX_PAYLOAD: u64 = 8 << 20;
/// Length of a large response to a small request.
pub const GROWN: usize = 4 << 20;
/// Far longer than anything here takes.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// What ran, in order, by id and first bytes of the payload; shared by all instances of a test.
pub type Executions = Arc<Mutex<Vec<(CallId, Vec<u8>)>>>;
/// Bytes of a payload that are noted.
const NOTED: usize = 32;

pub fn identity(function: &str) -> Identity {
    Identity { namespace: "n".into(), pod_namespace: String::new(), function: function.into() }
}

pub fn target(redis: &Redis) -> RedisTarget {
    RedisTarget { url: redis.url(), ca: None }
}

pub fn reactor() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Set when dropped: threads of a scope stop also when the test fails, which would otherwise wait for them without end.
pub struct StopWhenDone<'a>(pub &'a AtomicBool);

impl Drop for StopWhenDone<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Longest wait for Redis of a node that starts; it may be away.
const LINK_MAX: Duration = Duration::from_secs(10);

/// Polls until `condition` holds.
pub fn wait_for(what: &str, condition: impl FnMut() -> bool) {
    wait_at_most(PATIENCE, what, condition);
}

/// As [`wait_for`], for what takes several periods of the runtime.
pub fn wait_at_most(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < limit, "waited {limit:?} for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// One node: a shim's network and its reactor.
pub struct Node {
    pub network: Network,
    /// Instances on this node.
    pub registry: Registry,
    reactor: Option<Runtime>,
    _state: tempfile::TempDir,
}

impl Node {
    pub fn start(name: &str, target: &RedisTarget) -> Self {
        Self::limited(name, target, &MessagesConfig::default()).linked()
    }

    /// Waits until it has Redis, if that is there.
    pub fn linked(self) -> Self {
        let start = Instant::now();
        while start.elapsed() < LINK_MAX && self.locations("nobody").is_err() {
            std::thread::sleep(Duration::from_millis(5));
        }
        self
    }

    /// The same with limits of one-way messages.
    pub fn limited(name: &str, target: &RedisTarget, messages: &MessagesConfig) -> Self {
        Self::with(name, target, messages, None)
    }

    /// The same with direct connections, if there are any.
    pub fn with(
        name: &str,
        target: &RedisTarget,
        messages: &MessagesConfig,
        direct: Option<DirectSettings>,
    ) -> Self {
        Self::over(|registry| Network::connect(target, name, registry, messages, direct).unwrap())
    }

    /// A node without Redis.
    pub fn among_peers(name: &str, direct: DirectSettings) -> Self {
        Self::over(|registry| Network::among_peers(name, registry, direct))
    }

    pub fn over(start: impl FnOnce(&Registry) -> Network) -> Self {
        let reactor = reactor();
        let state = tempfile::tempdir().unwrap();
        let registry = Registry::new(state.path());
        let network = {
            let _entered = reactor.enter();
            start(&registry)
        };
        Self { network, registry, reactor: Some(reactor), _state: state }
    }

    /// What a shim does with an instance that is ready.
    pub fn register(&self, instance: &Instance) {
        self.registry.add(&self.network.linked(instance.record.clone())).unwrap();
        self.serve(instance);
    }

    /// What it does with one that ends.
    pub fn unregister(&self, instance: &Instance) {
        let record = &instance.record;
        self.registry.remove(&record.identity, &record.instance).unwrap();
        self.withdraw(instance);
    }

    pub fn serve(&self, instance: &Instance) {
        self.reactor.as_ref().unwrap().block_on(self.network.serve(instance.record.clone()));
    }

    /// What comes before [`Self::serve`] in a shim.
    pub fn prepare(&self, instance: &Instance) -> Result<(), TriggerFault> {
        self.reactor.as_ref().unwrap().block_on(self.network.prepare(&instance.record))
    }

    pub fn withdraw(&self, instance: &Instance) {
        self.reactor.as_ref().unwrap().block_on(self.network.withdraw(&instance.record));
    }

    /// What a shim does before it ends.
    pub fn close(&self) {
        self.reactor.as_ref().unwrap().block_on(self.network.close());
    }

    /// Where a worker of this node would find function `name`.
    pub fn locations(&self, name: &str) -> Result<FunctionLocations, NetworkError> {
        self.reactor.as_ref().unwrap().block_on(self.network.locations(&identity(name)))
    }

    /// Ends everything of the node at once; nobody is told.
    pub fn kill(mut self) {
        // Once it returns, its sockets are closed.
        self.reactor.take().unwrap().shutdown_timeout(PATIENCE);
    }

    /// A worker's connection, with its node.
    pub fn caller_kept(self) -> (Self, Worker) {
        let worker = self.caller();
        (self, worker)
    }

    /// A message from function `a` to function `b` that nobody waits for.
    pub fn emit(&self, payload: &[u8], wait: Duration) -> Result<(), CallError> {
        self.emit_from("", payload, wait)
    }

    /// The same when function `a` is in this pod or workflow.
    pub fn emit_from(&self, group: &str, payload: &[u8], wait: Duration) -> Result<(), CallError> {
        self.emit_as(BridgeCaller { group: group.into(), ..a_calls_b() }, payload, wait)
    }

    /// A message from function `from` to function `to`.
    pub fn emit_between(&self, from: Identity, to: &str, payload: &[u8]) -> Result<(), CallError> {
        let callee = from.sibling(to);
        self.emit_as(BridgeCaller { identity: from, callee, ..a_calls_b() }, payload, PATIENCE)
    }

    fn emit_as(
        &self,
        caller: BridgeCaller,
        payload: &[u8],
        wait: Duration,
    ) -> Result<(), CallError> {
        let deadline = tokio::time::Instant::now() + wait;
        let payload = shaped(payload.to_vec());
        let target = caller.callee.function.clone();
        let described = (TraceHeaders::default(), Vec::new());
        let emitting =
            self.network.emit(&caller, CallId(bytes16()), &target, described, payload, deadline);
        self.reactor.as_ref().unwrap().block_on(emitting)
    }

    /// A worker's connection from function `a` to function `b`.
    pub fn caller(&self) -> Worker {
        self.caller_with(ModeHint::Networked)
    }

    /// The same for a function with this mode.
    pub fn caller_with(&self, hint: ModeHint) -> Worker {
        let caller = BridgeCaller { hint, ..a_calls_b() };
        let _entered = self.reactor.as_ref().unwrap().enter();
        let connection = self.network.bridge(caller).unwrap();
        let route = LocalRoute {
            instance: String::new(),
            connection,
            max_request: MAX_PAYLOAD,
            lends: true,
        };
        Worker { mode: LocalMode::new(MAX_PAYLOAD), route }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(reactor) = self.reactor.take() {
            reactor.shutdown_background();
        }
    }
}

fn a_calls_b() -> BridgeCaller {
    BridgeCaller {
        identity: identity("a"),
        group: String::new(),
        workflow: String::new(),
        instance: "caller".into(),
        hint: ModeHint::Networked,
        max_payload: MAX_PAYLOAD,
        callee: identity("b"),
        http: false,
        passed_over: Vec::new(),
    }
}

pub struct Worker {
    mode: LocalMode,
    route: LocalRoute,
}

impl Worker {
    pub fn call_as(
        &mut self,
        id: CallId,
        payload: &[u8],
        wait: Duration,
    ) -> Result<Vec<u8>, CallError> {
        let deadline = self.send(id, payload, wait)?;
        loop {
            match self.mode.receive(&self.route, "b", deadline)? {
                Some(answer) if answer.id == id => {
                    return answer.result.map(|payload| payload.into_vec().unwrap());
                }
                // Of a call that timed out.
                Some(_late) => {}
                None => return Err(CallError::Timeout { target: "b".to_owned() }),
            }
        }
    }

    /// Sends a call, and does not wait for its end.
    pub fn start(&mut self, payload: &[u8], wait: Duration) -> CallId {
        let id = CallId(bytes16());
        self.send(id, payload, wait).unwrap();
        id
    }

    /// Sends a call; its deadline.
    fn send(
        &mut self,
        id: CallId,
        payload: &[u8],
        wait: Duration,
    ) -> Result<Option<Deadline>, CallError> {
        let deadline = Some(Deadline::after(wait));
        let call = OutgoingCall {
            id,
            target: "b",
            payload: OutgoingPayload::Bytes(payload),
            deadline,
            trace: TraceHeaders::default(),
            traced: false,
            attempt: 1,
            run: None,
            join: None,
        };
        assert!(self.mode.send(&self.route, &call, call.payload, deadline)?, "there is room");
        Ok(deadline)
    }

    /// The end of any call that was [started](Self::start).
    pub fn ended(&mut self, wait: Duration) -> (CallId, Result<Vec<u8>, CallError>) {
        let deadline = Some(Deadline::after(wait));
        let answer = self.mode.receive(&self.route, "b", deadline).unwrap().unwrap();
        (answer.id, answer.result.map(|payload| payload.into_vec().unwrap()))
    }

    /// The path of a call, as the shim tells the worker.
    pub fn path_of_a_call(&mut self) -> Path {
        let deadline = self.send(CallId(bytes16()), b"x", PATIENCE).unwrap();
        self.mode.receive(&self.route, "b", deadline).unwrap().unwrap().path
    }

    pub fn call(&mut self, payload: &[u8], wait: Duration) -> Result<Vec<u8>, CallError> {
        self.call_as(CallId(bytes16()), payload, wait)
    }
}

/// An instance of `b`: echoes, and notes what it ran. `slow…` takes 50 ms, `held…` until [`Instance::release`] or the
/// instance's end, `fail…` is an error, `grow…` answers [`GROWN`] bytes.
pub struct Instance {
    pub record: Record,
    released: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    _dir: tempfile::TempDir,
}

static NEXT: AtomicU64 = AtomicU64::new(1);

impl Instance {
    pub fn start(executions: &Executions) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("r.sock");
        let listener = seqpacket::listener(&socket).unwrap();
        let (stop, released) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let (flag, executions) = (Arc::clone(&stop), Arc::clone(executions));
        let gate = Arc::clone(&released);
        let thread = Some(std::thread::spawn(move || {
            run(Receiver::new(listener, MAX_PAYLOAD).unwrap(), &flag, &gate, &executions);
        }));
        let record = record(&format!("{:016x}", NEXT.fetch_add(1, Ordering::Relaxed)), socket);
        Self { record, released, stop, thread, _dir: dir }
    }

    /// Ends what is held, and holds nothing from now on.
    pub fn release(&self) {
        self.released.store(true, Ordering::Relaxed);
    }

    /// Ends it at once; its connections close.
    pub fn kill(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.kill();
    }
}

fn record(instance: &str, socket: PathBuf) -> Record {
    Record {
        identity: identity("b"),
        instance: instance.into(),
        group: String::new(),
        workflow: String::new(),
        trust: String::new(),
        allow: Vec::new(),
        socket,
        max_payload: MAX_PAYLOAD,
        max_head: 65_536,
        container: "b".into(),
        http: false,
        http_port: None,
        http_idle_ms: 0,
        timeout_ms: None,
        triggers: Vec::new(),
        workers: None,
        link: String::new(),
    }
}

fn run(mut receiver: Receiver, stop: &AtomicBool, released: &AtomicBool, executions: &Executions) {
    let is_over = || stop.load(Ordering::Relaxed) || released.load(Ordering::Relaxed);
    while !stop.load(Ordering::Relaxed) {
        receiver.accept().unwrap();
        let mut busy = false;
        let ids: Vec<_> = receiver.ready().collect();
        for id in ids {
            if let ConnectionEvent::Message(ParsedMessage::Request(incoming)) =
                receiver.next_event(id)
            {
                busy = true;
                let payload = incoming.payload.into_vec().unwrap();
                let noted = payload[..payload.len().min(NOTED)].to_vec();
                executions.lock().unwrap().push((incoming.id, noted));
                if payload.starts_with(b"slow") {
                    std::thread::sleep(Duration::from_millis(50));
                }
                while payload.starts_with(b"held") && !is_over() {
                    std::thread::sleep(Duration::from_millis(5));
                }
                let (status, payload) = if payload.starts_with(b"fail") {
                    error_answer(&CallError::Failed { message: "no such plate".into() })
                } else if payload.starts_with(b"grow") {
                    (CallStatus::ANSWERED, shaped(vec![7; GROWN]))
                } else {
                    (CallStatus::ANSWERED, shaped(payload))
                };
                let response = Response::of(incoming.id, status);
                let connection = incoming.connection.fd.as_fd();
                // A caller that went away is no failure of the callee.
                drop(send_as_is(connection, &response, payload.outgoing(), &[], None));
            }
        }
        if !busy {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

fn shaped(payload: Vec<u8>) -> Payload {
    cwasi_networked::claims::shaped(payload).unwrap()
}

/// A server, and a node that serves one instance of `b`.
pub struct Served {
    _node: Node,
    pub instance: Instance,
    pub executions: Executions,
    pub redis: Redis,
}

impl Served {
    pub fn start() -> Self {
        let redis = Redis::start(RedisVersion::Redis7);
        let executions = Executions::default();
        let instance = Instance::start(&executions);
        let node = Node::start("there", &target(&redis));
        node.serve(&instance);
        Self { _node: node, instance, executions, redis }
    }

    /// Where calls of the instance are published.
    pub fn channel(&self) -> String {
        instance_channel(&self.instance.record.instance)
    }

    /// How many calls ran.
    pub fn ran(&self) -> usize {
        self.executions.lock().unwrap().len()
    }
}

/// A node that follows no rules: a link, and what a test does with it.
pub struct Peer {
    pub reactor: Runtime,
    pub link: RedisLink,
    pub answers: Listener,
}

impl Peer {
    pub fn start(target: &RedisTarget) -> Self {
        let reactor = reactor();
        let (link, answers) = {
            let _entered = reactor.enter();
            RedisLink::start(target, "cwasi:re:peer").unwrap()
        };
        let peer = Self { reactor, link, answers };
        drop(peer.session());
        peer
    }

    pub fn session(&self) -> cwasi_networked::RedisSession {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        self.reactor.block_on(self.link.session(deadline)).unwrap()
    }

    /// Announces an instance of `b` that nobody has to listen for, again and again as a shim does.
    pub fn announce(&self, instance: &str) {
        let location = Location {
            identity: identity("b"),
            node: "peer".into(),
            instance: instance.into(),
            allow: Vec::new(),
            max_payload: MAX_PAYLOAD,
            max_head: 65_536,
            http: false,
            link: None,
        };
        self.reactor.block_on(locations::announce(&self.session(), &location)).unwrap();
        let link = self.link.clone();
        self.reactor.spawn(async move {
            loop {
                tokio::time::sleep(locations::HEARTBEAT / 10).await;
                if let Ok(session) = link.session_now() {
                    // The next one, if this one fails.
                    let _announced = locations::announce(&session, &location).await;
                }
            }
        });
    }

    /// Announces `b` as a function that is started on demand.
    pub fn announce_on_demand(&self) {
        let announcement = Location {
            identity: identity("b"),
            node: String::new(),
            instance: String::new(),
            allow: Vec::new(),
            max_payload: MAX_PAYLOAD,
            max_head: 65_536,
            http: false,
            link: None,
        };
        self.reactor.block_on(demand::announce(&self.session(), &announcement)).unwrap();
    }

    /// Listens as an instance.
    pub fn listen(&self, instance: &str) -> Listener {
        self.reactor.block_on(self.link.listen(&instance_channel(instance)))
    }
}

/// How often each id is in the list.
pub fn counts(executions: &Executions) -> HashMap<CallId, usize> {
    let mut counts = HashMap::new();
    for (id, _) in executions.lock().unwrap().iter() {
        *counts.entry(*id).or_default() += 1;
    }
    counts
}
