//! One-way messages: what was acknowledged is handled at least once, whatever happens in between.

use std::collections::BTreeSet;
use std::time::Duration;

use cwasi_host::network::EVENT_MAX;
use cwasi_modes::CallError;
use cwasi_networked::stream_key;
use cwasi_testbed::redis::{Redis, RedisVersion, Setup};

use crate::fixture::{
    Executions, Instance, Node, PATIENCE, identity, target, wait_at_most, wait_for,
};

/// Entries in front of a dead consumer's: as many as Redis looks at for four free handlers.
const LIVE: usize = 40;

/// Messages that were handled, by their payload.
fn handled(executions: &Executions) -> BTreeSet<Vec<u8>> {
    executions.lock().unwrap().iter().map(|(_, payload)| payload.clone()).collect()
}

fn waiting(redis: &Redis) -> String {
    redis.cli(&["XLEN", &stream_key(&identity("b"))])
}

/// What a dead shim left is taken some seconds later, four at a time.
fn wait_for_reclaim(redis: &Redis) {
    wait_at_most(PATIENCE * 4, "the stream to empty", || waiting(redis) == "0");
}

#[test]
fn messages_wait_for_their_function_and_are_then_handled_once() {
    for kind in [RedisVersion::Redis7, RedisVersion::Valkey8] {
        let redis = Redis::start(kind);
        let here = Node::start("here", &target(&redis));
        let sent: BTreeSet<_> = (0..50).map(|i| format!("event {i}").into_bytes()).collect();
        for payload in &sent {
            here.emit(payload, PATIENCE).unwrap();
        }
        assert_eq!(waiting(&redis), "50");
        let executions = Executions::default();
        let instances = [Instance::start(&executions), Instance::start(&executions)];
        let there = Node::start("there", &target(&redis));
        instances.iter().for_each(|instance| there.serve(instance));
        wait_for("the stream to empty", || waiting(&redis) == "0");
        assert_eq!(handled(&executions), sent);
        assert_eq!(
            executions.lock().unwrap().len(),
            50,
            "a message was handled twice without a fault"
        );
    }
}

#[test]
fn an_instance_of_the_senders_own_group_comes_first() {
    let redis = Redis::start(RedisVersion::Redis7);
    let node = Node::start("node", &target(&redis));
    let (in_blue, in_green) = (Executions::default(), Executions::default());
    let (mut blue, mut green) = (Instance::start(&in_blue), Instance::start(&in_green));
    for (instance, group) in [(&mut blue, "blue"), (&mut green, "green")] {
        instance.record.group = group.into();
        node.registry.add(&instance.record).unwrap();
    }
    // The shim of this one takes all messages from the stream.
    node.serve(&green);
    let sent = |group: &str, numbers: std::ops::Range<usize>| -> BTreeSet<_> {
        let payload = |number| format!("{group} {number}").into_bytes();
        let payloads: BTreeSet<_> = numbers.map(payload).collect();
        payloads.iter().for_each(|payload| node.emit_from(group, payload, PATIENCE).unwrap());
        payloads
    };
    let [of_blue, of_green, of_none] = ["blue", "green", ""].map(|group| sent(group, 0..10));
    wait_for("the stream to empty", || waiting(&redis) == "0");
    assert_eq!(handled(&in_blue), of_blue);
    assert_eq!(handled(&in_green), &of_green | &of_none);
    // Its record stays behind.
    blue.kill();
    let more = sent("blue", 10..20);
    wait_for("the stream to empty again", || waiting(&redis) == "0");
    assert!(handled(&in_green).is_superset(&more));
    assert_eq!(handled(&in_blue), of_blue);
}

#[test]
fn a_dead_consumers_message_behind_many_live_ones_is_taken() {
    let redis = Redis::start(RedisVersion::Redis7);
    let here = Node::start("here", &target(&redis));
    for number in 0..=LIVE {
        here.emit(format!("event {number}").as_bytes(), PATIENCE).unwrap();
    }
    let key = stream_key(&identity("b"));
    let deliver = |consumer: &str, count: &str| {
        let read = ["XREADGROUP", "GROUP", "cwasi", consumer, "COUNT", count, "STREAMS", &key, ">"];
        redis.cli(&read);
        let pending = redis.cli(&["XPENDING", &key, "cwasi", "-", "+", count, consumer]);
        let ids = pending.lines().step_by(4).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(ids.len().to_string(), count);
        ids
    };
    let live = deliver("living", &LIVE.to_string());
    let dead = deliver("dead", "1");
    redis.cli(&["XCLAIM", &key, "cwasi", "dead", "0", &dead[0], "IDLE", "3600000", "JUSTID"]);
    let executions = Executions::default();
    let instance = Instance::start(&executions);
    let there = Node::start("there", &target(&redis));
    there.serve(&instance);
    let last = format!("event {LIVE}").into_bytes();
    wait_at_most(PATIENCE * 4, "the dead one's message", || {
        // As a consumer that handles them does.
        let mut renew = vec!["XCLAIM", &key, "cwasi", "living", "0"];
        renew.extend(live.iter().map(String::as_str));
        renew.push("JUSTID");
        redis.cli(&renew);
        handled(&executions).contains(&last)
    });
    assert_eq!(handled(&executions), BTreeSet::from([last]), "living ones stay where they are");
}

#[test]
fn a_delivery_that_reached_no_instance_does_not_count() {
    let redis = Redis::start(RedisVersion::Redis7);
    let mut instance = Instance::start(&Executions::default());
    let node = Node::start("node", &target(&redis));
    node.serve(&instance);
    instance.kill();
    node.emit(b"event", PATIENCE).unwrap();
    let key = stream_key(&identity("b"));
    // Of each entry: its id, consumer, idle time and deliveries.
    wait_for("the delivery to be taken back", || {
        let pending = redis.cli(&["XPENDING", &key, "cwasi", "-", "+", "1"]);
        pending.lines().nth(3) == Some("0")
    });
}

#[test]
fn acknowledged_messages_survive_a_killed_server() {
    let args = ["--appendonly", "yes", "--appendfsync", "always"].map(str::to_owned).to_vec();
    let mut redis = Redis::start(Setup { args, ..Setup::from(RedisVersion::Redis7) });
    let executions = Executions::default();
    let instance = Instance::start(&executions);
    let there = Node::start("there", &target(&redis));
    there.serve(&instance);
    let here = Node::start("here", &target(&redis));
    let (mut acknowledged, mut others) = (BTreeSet::new(), 0);
    for i in 0..300 {
        if i == 150 {
            redis.stop();
            let away = here.emit(b"nobody", Duration::from_millis(500));
            assert!(
                matches!(away, Err(CallError::Unreachable { .. } | CallError::Broken { .. })),
                "{away:?}"
            );
            redis.restart();
        }
        let payload = format!("event {i}").into_bytes();
        match here.emit(&payload, PATIENCE) {
            Ok(()) => drop(acknowledged.insert(payload)),
            Err(CallError::Broken { .. }) => others += 1,
            Err(error) => panic!("{error}"),
        }
    }
    wait_for_reclaim(&redis);
    let handled = handled(&executions);
    assert!(acknowledged.is_subset(&handled), "an acknowledged message was lost");
    assert!(acknowledged.len() > 290, "{others} others");
}

#[test]
fn a_message_above_the_limit_is_refused() {
    let redis = Redis::start(RedisVersion::Redis7);
    let node = Node::start("node", &target(&redis));
    let most = usize::try_from(EVENT_MAX).unwrap();
    assert_eq!(node.emit(&vec![1; most], PATIENCE), Ok(()));
    let ended = node.emit(&vec![1; most + 1], PATIENCE);
    assert!(matches!(ended, Err(CallError::TooLarge { .. })), "{ended:?}");
}
