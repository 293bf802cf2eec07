//! Functions that are started on demand: calls are held until there is an instance, and counted.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cwasi_modes::CallError;
use cwasi_modes::causes::Unreached;
use cwasi_networked::{Listener, demand};
use cwasi_testbed::redis::{Redis, RedisVersion};
use cwasi_wire::control::{FunctionReport, ModeHint};
use cwasi_wire::network::Demand;

use crate::fixture::{Executions, Instance, Node, PATIENCE, Peer, StopWhenDone, Worker};
use crate::fixture::{counts, identity, target, wait_for};

/// A call in a thread of its own.
fn called(
    mut worker: Worker,
    payload: &[u8],
    wait: Duration,
) -> JoinHandle<Result<Vec<u8>, CallError>> {
    let payload = payload.to_vec();
    std::thread::spawn(move || worker.call(&payload, wait))
}

/// What does for functions what an autoscaler's operator does.
struct Controller {
    peer: Peer,
    messages: Listener,
}

impl Controller {
    /// Announces `b`.
    fn start(redis: &Redis) -> Self {
        let peer = Peer::start(&target(redis));
        let messages = peer.reactor.block_on(peer.link.listen(demand::CHANNEL));
        peer.announce_on_demand();
        Self { peer, messages }
    }

    fn next_message(&mut self) -> Vec<u8> {
        let next = async { tokio::time::timeout(PATIENCE, self.messages.next()).await };
        self.peer.reactor.block_on(next).unwrap().unwrap()
    }

    fn next(&mut self) -> Demand {
        Demand::decode(&self.next_message()).unwrap()
    }

    /// Reads the messages that were sent until now: those before one of its own.
    fn forget(&mut self, redis: &Redis) {
        const OWN: &str = "own";
        redis.cli(&["PUBLISH", demand::CHANNEL, OWN]);
        while self.next_message() != OWN.as_bytes() {}
    }

    /// Reads messages until this many calls wait. As for the operator, none waits when messages do not repeat it: that the
    /// last call has ended is said once, and a link that is down on a busy machine loses it.
    fn wait_until_waiting(&mut self, calls: u64) {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            let next = async { tokio::time::timeout(demand::BELIEVED, self.messages.next()).await };
            let waiting = match self.peer.reactor.block_on(next) {
                Ok(message) => Demand::decode(&message.unwrap()).unwrap().waiting,
                Err(_silence) => 0,
            };
            if waiting == calls {
                return;
            }
        }
        panic!("{calls} calls do not wait");
    }
}

#[test]
fn a_call_waits_until_an_instance_has_started() {
    let redis = Redis::start(RedisVersion::Redis7);
    let mut controller = Controller::start(&redis);
    let (here, there) =
        (Node::start("here", &target(&redis)), Node::start("there", &target(&redis)));
    let call = called(here.caller(), b"payload", PATIENCE);
    let demand = controller.next();
    assert_eq!((demand.identity, demand.waiting, demand.running), (identity("b"), 1, 0));
    let executions = Executions::default();
    let instance = Instance::start(&executions);
    there.serve(&instance);
    assert_eq!(call.join().unwrap().unwrap(), b"payload");
    controller.wait_until_waiting(0);
    assert_eq!(executions.lock().unwrap().len(), 1);
}

#[test]
fn a_call_does_not_wait_when_its_caller_is_gone() {
    let redis = Redis::start(RedisVersion::Redis7);
    let mut controller = Controller::start(&redis);
    let here = Node::start("here", &target(&redis));
    let mut worker = here.caller();
    worker.start(b"payload", PATIENCE * 10);
    controller.wait_until_waiting(1);
    drop(worker);
    controller.wait_until_waiting(0);
}

/// The deadline is the caller's.
#[test]
fn a_call_for_which_no_instance_starts_ends_at_its_deadline() {
    let redis = Redis::start(RedisVersion::Redis7);
    let mut controller = Controller::start(&redis);
    let here = Node::start("here", &target(&redis));
    let call = called(here.caller(), b"payload", Duration::from_secs(5));
    let error = call.join().unwrap().unwrap_err();
    let not_started = matches!(&error, CallError::Unreachable { cause: Unreached::Remote { text }, .. }
        if *text == Unreached::NotStarted.to_string());
    assert!(not_started || matches!(error, CallError::Timeout { .. }), "{error:?}");
    controller.wait_until_waiting(0);
}

#[test]
fn a_call_ends_when_its_function_is_withdrawn() {
    let redis = Redis::start(RedisVersion::Redis7);
    let mut controller = Controller::start(&redis);
    let here = Node::start("here", &target(&redis));
    let call = called(here.caller(), b"payload", PATIENCE);
    controller.wait_until_waiting(1);
    let peer = &controller.peer;
    peer.reactor.block_on(demand::withdraw(&peer.session(), &identity("b"))).unwrap();
    let error = call.join().unwrap().unwrap_err();
    assert!(matches!(error, CallError::Unreachable { .. }), "{error:?}");
    controller.wait_until_waiting(0);
}

/// The worker asks for a route again, and gets the local one.
#[test]
fn a_call_that_waits_learns_of_an_instance_on_its_own_host() {
    let redis = Redis::start(RedisVersion::Redis7);
    let mut controller = Controller::start(&redis);
    let here = Node::start("here", &target(&redis));
    let call = called(here.caller_with(ModeHint::Auto), b"payload", PATIENCE);
    controller.wait_until_waiting(1);
    let instance = Instance::start(&Executions::default());
    here.registry.add(&instance.record).unwrap();
    let error = call.join().unwrap().unwrap_err();
    let moved = Unreached::Moved.to_string();
    assert!(error.to_string().contains(&moved), "{error}");
}

#[test]
fn instances_publish_what_they_do() {
    let redis = Redis::start(RedisVersion::Redis7);
    let mut controller = Controller::start(&redis);
    let there = Node::start("there", &target(&redis));
    let instance = Instance::start(&Executions::default());
    let id = &instance.record.instance;
    there.serve(&instance);
    let report = FunctionReport { busy: 2, queued: 3, turns: 4, ..FunctionReport::default() };
    there.network.observe(id, report);
    let demand = controller.next();
    assert_eq!((&demand.source, demand.running, demand.began), (id, 5, true));
    // The calls go on.
    let demand = controller.next();
    assert_eq!((&demand.source, demand.running, demand.began), (id, 5, false));
    // Parts of a fan-in wait for the others, perhaps for minutes.
    let report = FunctionReport { waiting_parts: 2, turns: 4, ..FunctionReport::default() };
    there.network.observe(id, report);
    let waiting = loop {
        let demand = controller.next();
        if demand.running != 5 {
            break demand;
        }
    };
    assert_eq!((&waiting.source, waiting.running, waiting.began), (id, 2, false));
}

/// Instances come and go under load: each call is answered once.
#[test]
fn no_call_is_lost_while_instances_come_and_go() {
    const CALLERS: usize = 4;
    const CALLS: usize = 400;
    const ROUNDS: usize = 4;
    let redis = Redis::start(RedisVersion::Redis7);
    let mut controller = Controller::start(&redis);
    let (here, there) =
        (Node::start("here", &target(&redis)), Node::start("there", &target(&redis)));
    let (executions, answered) = (Executions::default(), AtomicUsize::new(0));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopWhenDone(&done);
        let mut callers = Vec::new();
        for _ in 0..CALLERS {
            let mut worker = here.caller();
            let (done, answered) = (&done, &answered);
            callers.push(scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    assert_eq!(worker.call(b"payload", PATIENCE).unwrap(), b"payload");
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            }));
        }
        for round in 1..=ROUNDS {
            let mut instance = Instance::start(&executions);
            there.serve(&instance);
            let enough = round * CALLS / ROUNDS;
            wait_for("calls", || answered.load(Ordering::Relaxed) >= enough);
            // As a pod ends: no call comes any more, and those that it has end.
            there.withdraw(&instance);
            controller.forget(&redis);
            controller.wait_until_waiting(CALLERS as u64);
            instance.kill();
        }
        // All wait now; the last instance answers them.
        let instance = Instance::start(&executions);
        there.serve(&instance);
        let before = answered.load(Ordering::Relaxed);
        wait_for("the last calls", || answered.load(Ordering::Relaxed) >= before + CALLERS);
        done.store(true, Ordering::Relaxed);
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        drop(instance);
    });
    drop(controller);
    let counts = counts(&executions);
    assert!(counts.values().all(|count| *count == 1), "a call ran twice");
    assert_eq!(counts.len(), answered.load(Ordering::Relaxed));
}
