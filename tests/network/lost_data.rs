//! A Redis that has lost what shims announced (`FLUSHALL`, a restart without persistence): functions that exist are
//! waited for, and a name that nobody ever announced is still no function.

use std::thread::sleep;
use std::time::Duration;

use cwasi_host::network::FunctionLocations;
use cwasi_modes::CallError;
use cwasi_networked::{NetworkError, nodes};
use cwasi_testbed::redis::{Redis, RedisVersion};

use crate::fixture::{Executions, Instance, Node, PATIENCE, Peer, Served, target, wait_for};

/// Longer than shims take to announce their instances again.
const WAIT: Duration = Duration::from_secs(10);
/// Losses, of which a node has to wait for the announcements after at least one. On a busy machine a heartbeat may come
/// later than a node waits for it.
const LOSSES: usize = 5;

fn is_listed(listed: &FunctionLocations) -> bool {
    matches!(listed, FunctionLocations::At(locations) if locations.len() == 1)
}

#[test]
fn after_flushall_known_and_unknown_names_are_waited_for() {
    let served = Served::start();
    let known = Node::start("known", &target(&served.redis));
    let unknown = Node::start("unknown", &target(&served.redis));
    let mut worker = known.caller();
    assert_eq!(worker.call(b"x", WAIT), Ok(b"x".to_vec()));
    // Several times: the next heartbeat may come at any moment after it.
    for _ in 0..3 {
        served.redis.cli(&["FLUSHALL"]);
        assert_eq!(worker.call(b"x", WAIT), Ok(b"x".to_vec()));
    }
    let waited = (0..LOSSES).any(|_| {
        wait_for("the announcements", || is_listed(&known.locations("b").unwrap()));
        served.redis.cli(&["FLUSHALL"]);
        is_listed(&unknown.locations("b").unwrap())
    });
    assert!(waited, "the node says that there is no function");
}

/// Longer than a list counts as fresh, and shorter than a function without announcements counts as lost.
const FLUSHES: u32 = 25;

#[test]
fn known_instances_stay_while_a_database_is_new() {
    let served = Served::start();
    let known = Node::start("known", &target(&served.redis));
    assert!(is_listed(&known.locations("b").unwrap()));
    for _ in 0..FLUSHES {
        // No announcement stays for longer than this.
        served.redis.cli(&["FLUSHALL"]);
        let listed = known.locations("b").unwrap();
        assert!(is_listed(&listed), "{listed:?}");
        sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_lost_function_is_unreachable_an_unknown_one_none() {
    let redis = Redis::start(RedisVersion::Valkey8);
    let executions = Executions::default();
    let instance = Instance::start(&executions);
    let node = Node::start("node", &target(&redis));
    node.serve(&instance);
    assert!(is_listed(&node.locations("b").unwrap()));
    node.withdraw(&instance);
    wait_for("the list to be read again", || !is_listed(&node.locations("b").unwrap()));
    assert!(matches!(node.locations("b"), Ok(FunctionLocations::Vanished(_))));
    assert_eq!(node.locations("nobody"), Ok(FunctionLocations::Never));
    let mut worker = node.caller();
    let ended = worker.call(b"x", WAIT);
    assert!(matches!(ended, Err(CallError::Unreachable { .. })), "{ended:?}");
    node.serve(&instance);
    assert_eq!(worker.call(b"x", WAIT), Ok(b"x".to_vec()));
}

#[test]
fn messages_are_handled_after_flushall_too() {
    let redis = Redis::start(RedisVersion::Redis7);
    let executions = Executions::default();
    let instance = Instance::start(&executions);
    let node = Node::start("node", &target(&redis));
    node.serve(&instance);
    let handled = || executions.lock().unwrap().len();
    for count in 1..4 {
        node.emit(b"x", PATIENCE).unwrap();
        wait_for("the message", || handled() == count);
        redis.cli(&["FLUSHALL"]);
    }
}

#[test]
fn a_nodes_key_is_not_unknown_while_it_may_be_announced_again() {
    let redis = Redis::start(RedisVersion::Redis7);
    let peer = Peer::start(&target(&redis));
    let asked = || peer.reactor.block_on(nodes::of_key(&peer.session(), b"key"));
    // So long before the end of the key that tells how old a database is, this one is old.
    let is_old = || redis.cli(&["SET", "cwasi:since", "1", "EX", "3600"]);
    is_old();
    assert_eq!(asked(), Ok(None));
    peer.reactor.block_on(nodes::announce(&peer.session(), b"key", "edge")).unwrap();
    assert_eq!(asked(), Ok(Some("edge".to_owned())));
    redis.cli(&["FLUSHALL"]);
    assert_eq!(asked(), Err(NetworkError::Returning));
    is_old();
    assert_eq!(asked(), Ok(None));
    // A server that was away for longer than keys last, and has its other data.
    let epoch = peer.session().epoch;
    redis.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    let session = peer.reactor.block_on(peer.link.session_after(epoch));
    let returning = peer.reactor.block_on(nodes::of_key(&session, b"key"));
    assert_eq!(returning, Err(NetworkError::Returning));
    wait_for("the key to count as unknown", || asked() == Ok(None));
}
