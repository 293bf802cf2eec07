//! Triggers: entries of others' streams are handled at least once, a channel's messages once for all instances.

use std::collections::BTreeSet;
use std::time::Duration;

use cwasi_config::triggers::Trigger;
use cwasi_host::network::ATTEMPTS_MAX;
use cwasi_modes::CallError;
use cwasi_networked::channels::LEASED;
use cwasi_networked::streams::dead_key;
use cwasi_networked::{RedisTarget, demand, stream_key};
use cwasi_testbed::redis::{Redis, RedisVersion, Setup};
use cwasi_wire::network::Location;

use crate::fixture::{
    Executions, Instance, MAX_PAYLOAD, Node, PATIENCE, Peer, counts, identity, target,
    wait_at_most, wait_for,
};

const STREAM: &str = "n:orders";
const CHANNEL: &str = "n:alarms";
/// The group of function `b`, as users write it.
const GROUP: &str = "cwasi:n/b";

fn stream() -> Trigger {
    Trigger::RedisStream(STREAM.into())
}

fn channel() -> Trigger {
    Trigger::RedisChannel(CHANNEL.into())
}

/// An instance of `b` with these triggers.
fn instance(executions: &Executions, triggers: &[Trigger]) -> Instance {
    let mut instance = Instance::start(executions);
    instance.record.triggers = triggers.to_vec();
    instance
}

/// A node with one instance of `b`, which reads the stream.
fn reading() -> (Redis, Executions, Instance, Node) {
    let redis = Redis::start(RedisVersion::Redis7);
    let executions = Executions::default();
    let instance = instance(&executions, &[stream()]);
    let node = Node::start("node", &target(&redis));
    node.prepare(&instance).unwrap();
    node.serve(&instance);
    (redis, executions, instance, node)
}

/// Adds an entry with one field.
fn add(redis: &Redis, payload: &str) -> String {
    redis.cli(&["XADD", STREAM, "*", "payload", payload])
}

fn handled(executions: &Executions) -> BTreeSet<String> {
    let text = |payload: &[u8]| String::from_utf8_lossy(payload).into_owned();
    executions.lock().unwrap().iter().map(|(_, payload)| text(payload)).collect()
}

fn ran(executions: &Executions) -> usize {
    executions.lock().unwrap().len()
}

/// Entries that were taken and are not done.
fn pending(redis: &Redis) -> String {
    redis.cli(&["XPENDING", STREAM, GROUP]).lines().next().unwrap_or_default().to_owned()
}

fn names(prefix: &str, count: usize) -> BTreeSet<String> {
    (0..count).map(|number| format!("{prefix} {number}")).collect()
}

#[test]
fn entries_are_handled_once_and_stay_in_their_stream() {
    for kind in [RedisVersion::Redis7, RedisVersion::Valkey8] {
        let redis = Redis::start(kind);
        add(&redis, "before the group");
        let executions = Executions::default();
        let instances = [(); 2].map(|()| instance(&executions, &[stream()]));
        let there = Node::start("there", &target(&redis));
        there.prepare(&instances[0]).unwrap();
        instances.iter().for_each(|instance| there.serve(instance));
        let sent = names("entry", 50);
        sent.iter().for_each(|payload| drop(add(&redis, payload)));
        wait_for("all entries", || handled(&executions) == sent);
        wait_for("their acknowledgement", || pending(&redis) == "0");
        assert_eq!(ran(&executions), 50, "an entry was handled twice without a fault");
        assert_eq!(redis.cli(&["XLEN", STREAM]), "51");
    }
}

#[test]
fn an_instance_handles_four_messages_of_all_its_streams_at_a_time() {
    let (redis, executions, instance, node) = reading();
    for number in 0..12 {
        node.emit(format!("held message {number}").as_bytes(), PATIENCE).unwrap();
        add(&redis, &format!("held entry {number}"));
    }
    // Both at one moment.
    let script = "return redis.call('XPENDING', KEYS[1], 'cwasi')[1] + redis.call('XPENDING', KEYS[2], ARGV[1])[1]";
    let key = stream_key(&identity("b"));
    let handled = || redis.cli(&["EVAL", script, "2", &key, STREAM, GROUP]).parse::<u32>().unwrap();
    wait_for("four messages", || handled() == 4);
    for _ in 0..20 {
        assert_eq!(handled(), 4);
    }
    instance.release();
    let mut most = 0;
    wait_for("all messages", || {
        most = most.max(handled());
        ran(&executions) == 24
    });
    assert!(most <= 4, "{most}");
}

#[test]
fn any_entry_has_a_payload() {
    let (redis, executions, _instance, _node) = reading();
    redis.cli(&["XADD", STREAM, "*", "id", "7", "city", "Rom"]);
    // As a client of another encoding writes it.
    redis.cli(&["EVAL", "return redis.call('XADD', KEYS[1], '*', '\\255', '\\254')", "1", STREAM]);
    add(&redis, "plain");
    let expected = [r#"{"city":"Rom","id":"7"}"#, "{\"\u{fffd}\":\"\u{fffd}\"}", "plain"];
    let expected: BTreeSet<_> = expected.map(str::to_owned).into();
    wait_for("all entries", || handled(&executions) == expected);
}

#[test]
fn entries_wait_while_there_is_no_instance() {
    let (redis, executions, first, node) = reading();
    node.withdraw(&first);
    drop(first);
    let sent = names("entry", 10);
    sent.iter().for_each(|payload| drop(add(&redis, payload)));
    let second = instance(&executions, &[stream()]);
    node.serve(&second);
    wait_for("all entries", || handled(&executions) == sent);
}

#[test]
fn what_a_dead_shim_left_is_handled_by_another() {
    let redis = Redis::start(RedisVersion::Redis7);
    let executions = Executions::default();
    let dying = Node::start("dying", &target(&redis));
    let first = instance(&executions, &[stream()]);
    dying.prepare(&first).unwrap();
    dying.serve(&first);
    let sent = names("slow", 40);
    sent.iter().for_each(|payload| drop(add(&redis, payload)));
    wait_for("some to be handled", || ran(&executions) > 5);
    dying.kill();
    drop(first);
    let second = instance(&executions, &[stream()]);
    let there = Node::start("there", &target(&redis));
    there.serve(&second);
    wait_at_most(PATIENCE * 4, "all entries", || handled(&executions) == sent);
    wait_at_most(PATIENCE * 4, "their acknowledgement", || pending(&redis) == "0");
    // Each attempt of an entry has the same id.
    assert_eq!(counts(&executions).len(), sent.len());
}

#[test]
fn an_entry_that_always_fails_becomes_a_dead_letter() {
    let (redis, executions, _instance, _node) = reading();
    let id = add(&redis, "fail always");
    add(&redis, "fine");
    let dead = dead_key(&identity("b"));
    wait_at_most(PATIENCE * 4, "the dead letter", || redis.cli(&["XLEN", &dead]) == "1");
    wait_for("its acknowledgement", || pending(&redis) == "0");
    let letter = redis.cli(&["XRANGE", &dead, "-", "+"]);
    for part in ["fail always", "no such plate", STREAM, &id] {
        assert!(letter.contains(part), "{part}: {letter}");
    }
    let failed =
        executions.lock().unwrap().iter().filter(|(_, one)| one.starts_with(b"fail")).count();
    assert_eq!(failed as u64, ATTEMPTS_MAX);
    assert_eq!(redis.cli(&["XLEN", STREAM]), "2", "they are not ours to delete");
}

#[test]
fn a_lost_group_is_made_again_and_loses_nothing_new() {
    let (redis, executions, _instance, _node) = reading();
    add(&redis, "first");
    wait_for("the first entry", || ran(&executions) == 1);
    // In one step, so that the entry is there before the group.
    let script =
        "redis.call('FLUSHALL') return redis.call('XADD', KEYS[1], '*', 'payload', 'second')";
    redis.cli(&["EVAL", script, "1", STREAM]);
    wait_for("the second entry", || handled(&executions).contains("second"));
    // A group that a user removes goes on behind what was handled.
    redis.cli(&["XGROUP", "DESTROY", STREAM, GROUP]);
    add(&redis, "third");
    wait_for("the third entry", || handled(&executions).contains("third"));
    assert_eq!(ran(&executions), 3);
}

#[test]
fn a_channels_message_runs_once_for_all_instances() {
    for kind in [RedisVersion::Redis7, RedisVersion::Valkey8] {
        let redis = Redis::start(kind);
        let executions = Executions::default();
        let nodes = ["one", "two"].map(|name| Node::start(name, &target(&redis)));
        let instances = [(); 4].map(|()| instance(&executions, &[channel()]));
        for (index, instance) in instances.iter().enumerate() {
            nodes[index % 2].serve(instance);
        }
        wait_for("a listener", || redis.cli(&["PUBSUB", "NUMSUB", CHANNEL]).ends_with('1'));
        let sent = names("message", 30);
        for message in &sent {
            assert_eq!(redis.cli(&["PUBLISH", CHANNEL, message]), "1", "one shim listens");
        }
        wait_for("all messages", || handled(&executions) == sent);
        wait_for("the stream to empty", || {
            redis.cli(&["XLEN", &stream_key(&identity("b"))]) == "0"
        });
        assert_eq!(ran(&executions), 30);
    }
}

#[test]
fn another_shim_listens_when_one_is_gone() {
    let redis = Redis::start(RedisVersion::Redis7);
    let executions = Executions::default();
    let (one, two) = (Node::start("one", &target(&redis)), Node::start("two", &target(&redis)));
    let (first, second) =
        (instance(&executions, &[channel()]), instance(&executions, &[channel()]));
    let listens = |count: &str| redis.cli(&["PUBSUB", "NUMSUB", CHANNEL]).ends_with(count);
    one.serve(&first);
    wait_for("the first to listen", || listens("1"));
    two.serve(&second);
    one.withdraw(&first);
    wait_for("the second to listen", || {
        redis.cli(&["PUBLISH", CHANNEL, "after the end"]) == "1"
            && handled(&executions).contains("after the end")
    });
    one.serve(&first);
    two.kill();
    wait_at_most(PATIENCE + LEASED, "the first to listen again", || {
        redis.cli(&["PUBLISH", CHANNEL, "after the death"]);
        handled(&executions).contains("after the death")
    });
}

#[test]
fn two_functions_of_one_shim_listen_to_one_channel() {
    let redis = Redis::start(RedisVersion::Redis7);
    let node = Node::start("node", &target(&redis));
    let (of_b, of_c) = (Executions::default(), Executions::default());
    let (b, mut c) = (instance(&of_b, &[channel()]), instance(&of_c, &[channel()]));
    c.record.identity = identity("c");
    [&b, &c].into_iter().for_each(|instance| node.serve(instance));
    wait_for("both to listen", || {
        redis.cli(&["PUBLISH", CHANNEL, "x"]);
        ran(&of_b) > 0 && ran(&of_c) > 0
    });
    node.withdraw(&b);
    let before = ran(&of_c);
    wait_for("the other to listen on", || {
        redis.cli(&["PUBLISH", CHANNEL, "x"]);
        ran(&of_c) > before
    });
}

/// A trigger is the function's own word: `cwasi.allow` is about functions that call it.
#[test]
fn triggers_need_no_permission_to_call() {
    let redis = Redis::start(RedisVersion::Redis7);
    let executions = Executions::default();
    let mut instance = instance(&executions, &[stream(), channel()]);
    instance.record.allow = vec!["somebody".into()];
    let node = Node::start("node", &target(&redis));
    node.prepare(&instance).unwrap();
    node.serve(&instance);
    add(&redis, "entry");
    node.emit(b"refused", PATIENCE).unwrap();
    wait_for("both triggers", || {
        redis.cli(&["PUBLISH", CHANNEL, "message"]);
        handled(&executions) == ["entry", "message"].map(str::to_owned).into()
    });
    let dead = dead_key(&identity("b"));
    wait_for("the refused one", || redis.cli(&["XLEN", &dead]) == "1");
}

#[test]
fn a_trigger_that_redis_refuses_is_an_error_and_ends_no_link() {
    let rules = "on >s3cret ~cwasi:* &cwasi:* -@all +@connection +@pubsub +@read +@write +@stream +@keyspace +@transaction -@dangerous";
    let args = ["--user", "cwasi"].into_iter().chain(rules.split(' ')).map(str::to_owned);
    let redis = Redis::start(Setup { args: args.collect(), ..Setup::from(RedisVersion::Redis7) });
    let executions = Executions::default();
    let limited = RedisTarget { url: redis.url_for("cwasi:s3cret@"), ca: None };
    let node = Node::start("node", &limited);
    for trigger in [stream(), channel()] {
        let instance = instance(&executions, &[trigger]);
        let fault = node.prepare(&instance).unwrap_err().to_string();
        assert!(fault.contains(":n:") && fault.contains("permission"), "{fault}");
        node.serve(&instance);
    }
    let there = Instance::start(&executions);
    node.serve(&there);
    let (_here, mut worker) = Node::start("here", &limited).caller_kept();
    assert_eq!(worker.call(b"x", PATIENCE), Ok(b"x".to_vec()), "calls go on");
    redis.cli(&["ACL", "SETUSER", "cwasi", "~n:*", "&n:*"]);
    let allowed = instance(&executions, &[stream(), channel()]);
    node.prepare(&allowed).unwrap();
    redis.cli(&["SET", "n:text", "no stream"]);
    let text = instance(&executions, &[Trigger::RedisStream("n:text".into())]);
    let fault = node.prepare(&text).unwrap_err().to_string();
    assert!(fault.contains("WRONGTYPE") && fault.contains("redis-stream:n:text"), "{fault}");
}

#[test]
fn a_message_of_a_refused_sender_starts_no_instance() {
    let redis = Redis::start(RedisVersion::Redis7);
    let controller = Peer::start(&target(&redis));
    let announcement = Location {
        identity: identity("b"),
        node: String::new(),
        instance: String::new(),
        allow: vec!["somebody".into()],
        max_payload: MAX_PAYLOAD,
        max_head: 65_536,
        http: false,
        link: None,
    };
    let session = controller.session();
    let announcing = demand::announce(&session, &announcement);
    controller.reactor.block_on(announcing).unwrap();
    let node = Node::start("node", &target(&redis));
    let refused = node.emit(b"x", Duration::from_secs(5));
    assert!(matches!(refused, Err(CallError::Refused(_))), "{refused:?}");
    assert_eq!(redis.cli(&["XLEN", &stream_key(&identity("b"))]), "0");
    node.emit_between(identity("somebody"), "b", b"x").unwrap();
    assert_eq!(redis.cli(&["XLEN", &stream_key(&identity("b"))]), "1");
}
