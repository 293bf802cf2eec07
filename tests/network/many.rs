//! Ten thousand calls over two nodes while instances and a shim come and go: every call ends one way, and what
//! callers were told agrees with what ran.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use cwasi_modes::CallError;
use cwasi_sys::random::bytes16;
use cwasi_testbed::redis::{Redis, RedisVersion};
use cwasi_wire::ids::CallId;

use crate::fixture::{Executions, Instance, Node, PATIENCE, counts, target, wait_for};

const CALLS: usize = 10_000;
const CALLERS: usize = 8;
/// Calls between two kills.
const BETWEEN_KILLS: usize = 400;

struct Ended {
    started: Instant,
    ended: Instant,
    result: Result<(), CallError>,
}

/// One of the threads that call, which has ended when this is dropped, also when it failed.
struct Calling<'a>(&'a AtomicUsize);

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Starts and ends instances and a whole node until all callers have ended; returns when something was killed.
fn come_and_go(
    redis: &Redis,
    executions: &Executions,
    stable: &Node,
    calling: &AtomicUsize,
) -> Vec<(Instant, Instant)> {
    let mut kills = Vec::new();
    let mut kill = |action: &mut dyn FnMut()| {
        let from = Instant::now();
        action();
        kills.push((from, Instant::now()));
    };
    let ran = || executions.lock().unwrap().len();
    let calls_go_on = || {
        let before = ran();
        let ended = || calling.load(Ordering::Relaxed) == 0;
        wait_for("calls", || ran() >= before + BETWEEN_KILLS || ended());
    };
    let mut round = 0;
    while calling.load(Ordering::Relaxed) > 0 {
        round += 1;
        let node = Node::start(&format!("passing-{round}"), &target(redis));
        let mut graceful = Instance::start(executions);
        let mut killed = Instance::start(executions);
        let orphan = Instance::start(executions);
        stable.serve(&graceful);
        node.serve(&killed);
        node.serve(&orphan);
        calls_go_on();
        // Withdrawn first, but calls may still be on their way to it.
        stable.withdraw(&graceful);
        kill(&mut || graceful.kill());
        kill(&mut || killed.kill());
        calls_go_on();
        let mut node = Some(node);
        kill(&mut || node.take().expect("killed once").kill());
    }
    kills
}

#[test]
fn ten_thousand_calls_end_one_way_each_and_the_counts_agree() {
    let redis = Redis::start(RedisVersion::Redis7);
    let executions = Executions::default();
    let nodes = ["one", "two"].map(|name| Node::start(name, &target(&redis)));
    let stable = [Instance::start(&executions), Instance::start(&executions)];
    nodes.iter().zip(&stable).for_each(|(node, instance)| node.serve(instance));
    let ends: Mutex<HashMap<CallId, Ended>> = Mutex::default();
    let (next, calling) = (AtomicUsize::new(0), AtomicUsize::new(CALLERS));
    let kills = std::thread::scope(|scope| {
        for number in 0..CALLERS {
            let mut worker = nodes[number % 2].caller();
            let (ends, next, calling) = (&ends, &next, Calling(&calling));
            scope.spawn(move || {
                let _calling = calling;
                while next.fetch_add(1, Ordering::Relaxed) < CALLS {
                    let (id, started) = (CallId(bytes16()), Instant::now());
                    let result = worker.call_as(id, &id.0, PATIENCE);
                    let result = result.map(|answer| assert_eq!(answer, id.0, "another's answer"));
                    let ended = Ended { started, ended: Instant::now(), result };
                    assert!(ends.lock().unwrap().insert(id, ended).is_none());
                }
            });
        }
        come_and_go(&redis, &executions, &nodes[0], &calling)
    });
    let ends = ends.into_inner().unwrap();
    let ran = counts(&executions);
    assert_eq!(ends.len(), CALLS);
    assert!(ran.values().all(|count| *count == 1), "a call ran twice");
    let (mut answered, mut unknown, mut refused) = (0, 0, 0);
    for (id, end) in &ends {
        match &end.result {
            Ok(()) => {
                answered += 1;
                assert!(ran.contains_key(id), "answered and not run");
            }
            Err(CallError::Broken { .. }) => {
                unknown += 1;
                let in_flight =
                    kills.iter().any(|(from, to)| end.started <= *to && end.ended >= *from);
                assert!(in_flight, "unknown without anything killed: {:?}", end.result);
            }
            Err(CallError::Unreachable { .. }) => {
                refused += 1;
                assert!(!ran.contains_key(id), "not accepted and run");
            }
            Err(error) => panic!("{error}"),
        }
    }
    println!(
        "{answered} answered, {unknown} unknown, {refused} not accepted; {} ran; {} kills",
        ran.len(),
        kills.len()
    );
    assert!(ran.len() >= answered && ran.len() <= answered + unknown);
    assert!(kills.len() >= 3 && answered > CALLS * 9 / 10);
}
