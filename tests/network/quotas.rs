//! Quotas of one-way messages: a namespace fills its own part of Redis, and what is stored waits for its function.

use std::collections::BTreeSet;

use cwasi_abi::Errno;
use cwasi_config::messages::MessagesConfig;
use cwasi_host::network::EVENT_MAX;
use cwasi_modes::{CallError, Overload};
use cwasi_networked::stream_key;
use cwasi_networked::streams::dead_key;
use cwasi_testbed::redis::{Redis, RedisVersion};
use cwasi_wire::ids::Identity;

use crate::fixture::{Executions, Instance, Node, PATIENCE, identity, target, wait_for};

/// Of a namespace here; a sender has half of it.
const QUOTA: u64 = 4 << 20;
/// Functions without an instance that a namespace here may send to.
const FUNCTIONS: usize = 5;
/// Days that messages are kept.
const DAYS: u64 = 2;
/// Largest dead letters that together are longer than what Redis keeps of them.
const DEAD: usize = 12;
/// Bytes of a function's dead letters in Redis, at most.
const DEAD_BYTES: u64 = 8 << 20;

fn limits() -> MessagesConfig {
    MessagesConfig { waiting_max: QUOTA, functions_max: FUNCTIONS, kept_days: DAYS }
}

fn of(namespace: &str, function: &str) -> Identity {
    Identity { namespace: namespace.into(), ..identity(function) }
}

/// 256 KiB.
fn piece(number: usize) -> Vec<u8> {
    let mut bytes = format!("piece {number} ").into_bytes();
    bytes.resize(256 << 10, b'.');
    bytes
}

/// Sends pieces until one is refused; how many were stored, and the refusal.
fn flood(node: &Node, from: &Identity, to: impl Fn(usize) -> String) -> (usize, CallError) {
    for number in 0..1000 {
        if let Err(error) = node.emit_between(from.clone(), &to(number), &piece(number)) {
            return (number, error);
        }
    }
    panic!("nothing was refused");
}

fn assert_full(error: &CallError, whose: &str) {
    assert_eq!(error.errno(), Errno::Overloaded, "{error}");
    let text = error.to_string();
    assert!(text.contains(whose) && text.contains("messages.waiting_max"), "{text}");
}

/// Bytes of all that is stored, with what the server's allocator rounds up.
fn stored(redis: &Redis) -> u64 {
    let keys = redis.cli(&["--scan", "--pattern", "cwasi:*"]);
    let usage = |key: &str| redis.cli(&["MEMORY", "USAGE", key, "SAMPLES", "0"]);
    keys.lines().map(|key| usage(key).trim().parse::<u64>().unwrap()).sum()
}

#[test]
fn a_namespace_fills_its_own_quota_only() {
    for kind in [RedisVersion::Redis7, RedisVersion::Valkey8] {
        let redis = Redis::start(kind);
        let node = Node::limited("node", &target(&redis), &limits());
        let (first, error) = flood(&node, &of("n", "a"), |_| "b".to_owned());
        assert_full(&error, "function a ");
        assert_eq!(first, 7, "half of the quota, the bytes beside payloads included");
        let (second, error) = flood(&node, &of("n", "c"), |number| format!("none-{}", number % 3));
        assert_full(&error, "function c ");
        let (third, error) = flood(&node, &of("n", "d"), |_| "b".to_owned());
        assert_full(&error, "namespace n ");
        assert_eq!((second, third), (7, 1));
        let stored = stored(&redis);
        assert!(stored < QUOTA + EVENT_MAX, "{stored} bytes of {QUOTA}");
        // Another tenant has its own.
        node.emit_between(of("other", "a"), "b", &piece(0)).unwrap();
        // A consumer takes what waits; then there is room again.
        let executions = Executions::default();
        let instance = Instance::start(&executions);
        node.serve(&instance);
        let key = stream_key(&identity("b"));
        wait_for("the messages to be handled", || redis.cli(&["XLEN", &key]) == "0");
        let handled: BTreeSet<_> =
            executions.lock().unwrap().iter().map(|(_, payload)| payload.clone()).collect();
        let sent: BTreeSet<_> = (0..first).map(|i| piece(i)[..32].to_vec()).collect();
        assert_eq!((handled, executions.lock().unwrap().len()), (sent, first + third));
        // Twice the quota passes through, because it is handled.
        for number in 0..32 {
            let emit = || node.emit_between(of("n", "a"), "b", &piece(number));
            wait_for("room for another message", || emit().is_ok());
        }
    }
}

#[test]
fn messages_wait_for_a_bounded_number_of_functions_without_instance() {
    let redis = Redis::start(RedisVersion::Redis7);
    let node = Node::limited("node", &target(&redis), &limits());
    for number in 0..FUNCTIONS {
        node.emit_between(identity("a"), &format!("none-{number}"), b"x").unwrap();
    }
    let error = node.emit_between(identity("a"), "none-more", b"x").unwrap_err();
    assert_eq!(error.errno(), Errno::Overloaded);
    let limit = FUNCTIONS;
    assert_eq!(error, Overload::Functions { namespace: "n".into(), limit }.into());
    assert_eq!(redis.cli(&["EXISTS", &stream_key(&identity("none-more"))]), "0");
    node.emit_between(identity("a"), "none-0", b"again").unwrap();
    // A function that has an instance is none of them.
    let executions = Executions::default();
    let instance = Instance::start(&executions);
    node.serve(&instance);
    let announced = || node.emit_between(identity("a"), "b", b"x").is_ok();
    wait_for("the instance to be announced", announced);
}

#[test]
fn streams_expire_and_a_consumer_keeps_its_own() {
    let redis = Redis::start(RedisVersion::Redis7);
    let node = Node::limited("node", &target(&redis), &limits());
    let left = |function: &str| -> i64 {
        redis.cli(&["TTL", &stream_key(&identity(function))]).parse().unwrap()
    };
    let all = i64::try_from(DAYS * 24 * 60 * 60).unwrap();
    let is_whole = |left: i64| (all - 60..=all).contains(&left);
    node.emit_between(identity("a"), "none", b"x").unwrap();
    assert!(is_whole(left("none")), "{}", left("none"));
    let shorten = |function| redis.cli(&["EXPIRE", &stream_key(&identity(function)), "100"]);
    shorten("none");
    node.emit_between(identity("a"), "none", b"y").unwrap();
    assert!(is_whole(left("none")), "a sender prolongs it");
    let executions = Executions::default();
    let instance = Instance::start(&executions);
    node.serve(&instance);
    wait_for("the consumer's own stream", || is_whole(left("b")));
    shorten("b");
    wait_for("the consumer to prolong it", || is_whole(left("b")));
    let hash = redis.cli(&["--scan", "--pattern", "cwasi:sent:*"]);
    let hash = hash.lines().find(|key| !key.ends_with("corrected")).unwrap();
    assert!(redis.cli(&["TTL", hash]).parse::<i64>().unwrap() > 0);
}

/// A stream that expired, or that an operator deleted, and messages that an older version handled.
#[test]
fn what_is_gone_from_redis_is_gone_from_the_quota() {
    let redis = Redis::start(RedisVersion::Redis7);
    let node = Node::limited("node", &target(&redis), &limits());
    let (stored, error) = flood(&node, &of("n", "a"), |_| "b".to_owned());
    assert_full(&error, "function a ");
    redis.cli(&["DEL", &stream_key(&identity("b"))]);
    let emit = || node.emit_between(of("n", "a"), "b", &piece(0));
    wait_for("room after the stream is gone", || emit().is_ok());
    let (more, error) = flood(&node, &of("n", "a"), |_| "b".to_owned());
    assert_full(&error, "function a ");
    assert_eq!(more + 1, stored);
    redis.cli(&["XTRIM", &stream_key(&identity("b")), "MAXLEN", "1"]);
    wait_for("room after messages are gone", || emit().is_ok());
}

#[test]
fn dead_letters_have_a_bounded_number_of_bytes() {
    let redis = Redis::start(RedisVersion::Redis7);
    let mut instance = Instance::start(&Executions::default());
    // A sender that is not allowed: its messages are dead letters at once.
    instance.record.allow = vec!["somebody".into()];
    let node = Node::start("node", &target(&redis));
    node.serve(&instance);
    let (stream, dead) = (stream_key(&identity("b")), dead_key(&identity("b")));
    let largest = vec![1; usize::try_from(EVENT_MAX).unwrap()];
    for _ in 0..DEAD {
        node.emit(&largest, PATIENCE).unwrap();
    }
    wait_for("the messages to be buried", || redis.cli(&["XLEN", &stream]) == "0");
    let bytes = redis.cli(&["MEMORY", "USAGE", &dead, "SAMPLES", "0"]).parse::<u64>().unwrap();
    assert!((EVENT_MAX..=DEAD_BYTES).contains(&bytes), "{bytes}");
}
