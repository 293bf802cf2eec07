//! A Redis that is out of memory (`maxmemory` with `noeviction`): calls end in words or wait a little, and nothing that
//! was announced meanwhile holds up a later call.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cwasi_modes::CallError;
use cwasi_networked::claims::CHUNK_LEN;
use cwasi_sys::random::bytes16;
use cwasi_testbed::redis::Redis;
use cwasi_wire::envelope::CallStatus;
use cwasi_wire::ids::CallId;
use cwasi_wire::network::{self, Answer, AnswerKind, Claim, encode};

use crate::faults::call;
use crate::fixture::{Executions, GROWN, Instance, Node, PATIENCE, Peer, Served, StopWhenDone};
use crate::fixture::{Worker, counts, target, wait_for};

/// Callers that go on calling while there is no memory.
const CALLERS: usize = 4;
/// Room for two chunks: calls are accepted, and then lack it.
const ROOM: u64 = 2 * CHUNK_LEN as u64;
/// Stale announcements would hold up a call for longer.
const SOON: Duration = Duration::from_secs(20);
/// Announcements that nobody puts: at eight places and five seconds each, for longer than [`SOON`].
const STALE: usize = 64;

/// Lets Redis use `room` bytes more than now.
fn limit(redis: &Redis, room: u64) {
    let used: u64 = info(redis, "memory", "used_memory:").unwrap().parse().unwrap();
    redis.cli(&["CONFIG", "SET", "maxmemory", &(used + room).to_string()]);
}

/// Leaves Redis no memory at all.
fn exhaust(redis: &Redis) {
    redis.cli(&["CONFIG", "SET", "maxmemory", "1"]);
}

fn unlimit(redis: &Redis) {
    redis.cli(&["CONFIG", "SET", "maxmemory", "0"]);
}

fn info(redis: &Redis, section: &str, field: &str) -> Option<String> {
    let info = redis.cli(&["INFO", section]);
    info.lines().find_map(|line| line.strip_prefix(field)).map(|value| value.trim().to_owned())
}

/// How many commands Redis had no memory for.
fn refused(redis: &Redis) -> u64 {
    let count = info(redis, "errorstats", "errorstat_OOM:count=");
    count.map_or(0, |count| count.parse().unwrap())
}

/// Waits until Redis had no memory for `more` further commands.
fn wait_for_refusals(redis: &Redis, more: u64) {
    let before = refused(redis);
    wait_for("commands without memory", || refused(redis) >= before + more);
}

/// True for a call that says that there was no memory.
fn is_in_words(end: &Result<(), CallError>) -> bool {
    matches!(end, Err(CallError::Unreachable { cause, .. }) if cause.to_string().contains("Redis is out of memory"))
}

/// Calls until `stop`; how each call ended. `short` says that one has ended for want of memory.
fn keep_calling(
    worker: &mut Worker,
    short: &AtomicBool,
    stop: &AtomicBool,
) -> Vec<(CallId, Result<(), CallError>)> {
    let mut ends = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let id = CallId(bytes16());
        let end = worker.call_as(id, &vec![7; GROWN], SOON).map(drop);
        short.fetch_or(is_in_words(&end), Ordering::Relaxed);
        ends.push((id, end));
    }
    ends
}

/// A large call, and whether its payload came back.
fn echoed(worker: &mut Worker) -> Result<bool, CallError> {
    let payload = vec![9; GROWN];
    worker.call(&payload, SOON).map(|response| response == payload)
}

#[test]
fn large_calls_without_memory_fail_and_later_ones_succeed() {
    let served = Served::start();
    let here = Node::start("here", &target(&served.redis));
    let mut callers: Vec<_> = (0..CALLERS).map(|_| here.caller()).collect();
    limit(&served.redis, ROOM);
    let (short, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let ends: Vec<_> = std::thread::scope(|scope| {
        let calling = |worker| scope.spawn(|| keep_calling(worker, &short, &stop));
        let calling: Vec<_> = callers.iter_mut().map(calling).collect();
        let stopping = StopWhenDone(&stop);
        wait_for("a call that ends for want of memory", || short.load(Ordering::Relaxed));
        unlimit(&served.redis);
        drop(stopping);
        calling.into_iter().flat_map(|caller| caller.join().unwrap()).collect()
    });
    let ran = counts(&served.executions);
    assert!(ran.values().all(|count| *count == 1));
    for (id, end) in &ends {
        match end {
            Ok(()) => assert!(ran.contains_key(id)),
            Err(CallError::Unreachable { .. }) => assert!(!ran.contains_key(id)),
            Err(error) => panic!("{error}"),
        }
    }
    for worker in &mut callers {
        assert_eq!(echoed(worker), Ok(true));
    }
}

#[test]
fn a_cancelled_announcement_frees_its_place() {
    let served = Served::start();
    let mut peer = Peer::start(&target(&served.redis));
    let here = Node::start("here", &target(&served.redis));
    let mut worker = here.caller();
    for _ in 0..STALE {
        let key = format!("cwasi:pay:{}", hex::encode(bytes16()));
        let length = 2 * u64::from(CHUNK_LEN);
        let claim = Claim { key, length, chunk_length: CHUNK_LEN, ..Claim::default() };
        let (id, mut message) = call(network::Payload::of_claim(claim));
        message.remaining_us = u64::try_from(PATIENCE.as_micros()).unwrap() * 4;
        peer.publish(&served.channel(), &encode(&message));
        let accepted = peer.accepted_by();
        let kind = AnswerKind::ANSWER_CANCELLED;
        let payload = network::Payload::default();
        let cancel = Answer::of("cwasi:re:peer", id, kind, CallStatus::ANSWERED, payload);
        peer.publish(&accepted, &encode(&cancel));
    }
    assert_eq!(echoed(&mut worker), Ok(true));
    assert_eq!(served.ran(), 1);
}

#[test]
fn announcements_of_a_shim_that_died_give_their_places_back() {
    let served = Served::start();
    let mut dying = Peer::start(&target(&served.redis));
    for _ in 0..STALE {
        let key = format!("cwasi:pay:{}", hex::encode(bytes16()));
        let length = 2 * u64::from(CHUNK_LEN);
        let claim = Claim { key, length, chunk_length: CHUNK_LEN, ..Claim::default() };
        let (_, mut message) = call(network::Payload::of_claim(claim));
        message.remaining_us = u64::try_from(PATIENCE.as_micros()).unwrap() * 4;
        dying.publish(&served.channel(), &encode(&message));
        dying.accepted_by();
    }
    dying.reactor.shutdown_background();
    let (_node, mut worker) = Node::start("here", &target(&served.redis)).caller_kept();
    assert_eq!(echoed(&mut worker), Ok(true));
    assert_eq!(served.ran(), 1);
}

#[test]
fn a_small_call_waits_for_memory_and_ends_in_words_without() {
    let served = Served::start();
    let (_node, mut worker) = Node::start("here", &target(&served.redis)).caller_kept();
    exhaust(&served.redis);
    let Err(CallError::Unreachable { cause, .. }) = worker.call(b"x", SOON) else {
        panic!("it was served without memory")
    };
    assert!(cause.to_string().contains("Redis is out of memory"), "{cause}");
    assert_eq!(served.ran(), 0);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| worker.call(b"x", PATIENCE));
        wait_for_refusals(&served.redis, 1);
        unlimit(&served.redis);
        assert_eq!(waiting.join().unwrap(), Ok(b"x".to_vec()));
    });
    assert_eq!(served.ran(), 1);
}

#[test]
fn a_response_without_memory_comes_when_there_is_some() {
    let served = Served::start();
    let (_node, mut worker) = Node::start("here", &target(&served.redis)).caller_kept();
    limit(&served.redis, ROOM);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| worker.call(b"grow", PATIENCE));
        wait_for("the call to run", || served.ran() == 1);
        // Announced, withdrawn, and announced again.
        wait_for_refusals(&served.redis, 3);
        unlimit(&served.redis);
        let grown = waiting.join().unwrap().map(|response| response == vec![7; GROWN]);
        assert_eq!(grown, Ok(true));
    });
    assert_eq!(served.ran(), 1);
}

#[test]
fn what_is_announced_already_stays_announced_without_memory() {
    let served = Served::start();
    let left = || {
        let key = format!("cwasi:at:{}", served.instance.record.instance);
        served.redis.cli(&["PTTL", &key]).parse::<i64>().unwrap()
    };
    exhaust(&served.redis);
    wait_for_refusals(&served.redis, 1);
    let before = left();
    wait_for("the location to be kept for longer", || left() > before);
    unlimit(&served.redis);
}

/// Its calls would fail while it has no instance.
#[test]
fn a_function_stays_on_demand_without_memory() {
    let redis = Redis::start(cwasi_testbed::redis::RedisVersion::Redis7);
    let peer = Peer::start(&target(&redis));
    peer.announce_on_demand();
    let keys = redis.cli(&["KEYS", "cwasi:demand:*"]);
    let key = keys.trim();
    exhaust(&redis);
    redis.cli(&["EXPIRE", key, "60"]);
    peer.announce_on_demand();
    assert!(redis.cli(&["TTL", key]).parse::<u64>().unwrap() > 60);
    unlimit(&redis);
}

#[test]
fn a_full_redis_handles_its_messages_and_refuses_others() {
    let redis = Redis::start(cwasi_testbed::redis::RedisVersion::Redis7);
    let node = Node::start("node", &target(&redis));
    node.emit(b"first", PATIENCE).unwrap();
    exhaust(&redis);
    let Err(CallError::Unreachable { cause, .. }) = node.emit(b"second", SOON) else {
        panic!("it was kept without memory")
    };
    assert!(cause.to_string().contains("Redis is out of memory"), "{cause}");
    let executions = Executions::default();
    let instance = Instance::start(&executions);
    node.serve(&instance);
    wait_for("the message to be handled", || executions.lock().unwrap().len() == 1);
    unlimit(&redis);
    node.emit(b"third", PATIENCE).unwrap();
    wait_for("the next one to be handled", || executions.lock().unwrap().len() == 2);
}
