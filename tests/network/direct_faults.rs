//! Direct connections over a bad network. Each test has a network of its own.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cwasi_modes::CallError;
use cwasi_sys::random::bytes16;
use cwasi_testbed::netns::Netns;
use cwasi_wire::envelope::Path;
use cwasi_wire::ids::CallId;

use crate::direct::{Pair, under_load};
use crate::fixture::{Executions, Node, PATIENCE, StopWhenDone, counts, wait_for};
use crate::packet_filter::{Dropped, PacketFilter};

/// How calls have ended.
pub type Ends = HashMap<CallId, Result<Vec<u8>, CallError>>;

pub fn in_a_network(test: impl FnOnce() + Send + 'static) {
    Netns::new(&[]).run(test);
}

fn port(pair: &Pair) -> u16 {
    pair.hosts[1].settings.listen.port()
}

/// What each caller was told is true.
pub fn assert_true(executions: &Executions, ends: &Ends) {
    let counts = counts(executions);
    for (id, end) in ends {
        let ran = counts.get(id).copied().unwrap_or_default();
        let is_true = match end {
            Ok(_) => ran == 1,
            Err(CallError::Unreachable { .. }) => ran == 0,
            Err(CallError::Broken { .. } | CallError::Timeout { .. }) => ran <= 1,
            Err(_) => false,
        };
        assert!(is_true, "{end:?} after {ran} runs");
    }
}

/// Calls of four workers during `meanwhile`, each of which ends somehow.
pub fn ends_under_load(here: &Node, meanwhile: impl FnOnce()) -> Ends {
    let (stop, ends) = (AtomicBool::new(false), Mutex::new(Ends::new()));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (stop, ends, mut worker) = (&stop, &ends, here.caller());
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let id = CallId(bytes16());
                    let end = worker.call_as(id, b"x", PATIENCE);
                    ends.lock().unwrap().insert(id, end);
                }
            });
        }
        let _stopping = StopWhenDone(&stop);
        meanwhile();
    });
    ends.into_inner().unwrap()
}

fn path(pair: &Pair) -> Path {
    pair.here.caller().path_of_a_call()
}

#[test]
fn lost_packets_lose_no_call() {
    const CALLS: usize = 60;
    in_a_network(|| {
        let pair = Pair::start();
        assert_eq!(path(&pair), Path::PATH_DIRECT);
        let filter = PacketFilter::of_port(port(&pair), Dropped::Percent(5));
        let large = vec![9; 300_000];
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let (mut worker, large) = (pair.here.caller(), &large);
                scope.spawn(move || {
                    for number in 0..CALLS {
                        let payload = if number % 10 == 0 { large } else { &b"x"[..] };
                        let answer = worker.call(payload, PATIENCE).map(|answer| answer.len());
                        assert_eq!(answer, Ok(payload.len()));
                    }
                });
            }
        });
        drop(filter);
        pair.assert_ran(1 + 4 * CALLS);
    });
}

#[test]
fn what_large_packets_do_not_reach_is_reached_over_redis() {
    in_a_network(|| {
        let pair = Pair::start();
        let mut worker = pair.here.caller();
        assert_eq!(worker.path_of_a_call(), Path::PATH_DIRECT);
        let filter = PacketFilter::of_port(port(&pair), Dropped::LongerThan(1500));
        assert_eq!(worker.path_of_a_call(), Path::PATH_DIRECT, "small packets arrive");
        let large = vec![9; 3 << 20];
        let mut call = || worker.call(&large, PATIENCE).map(|answer| answer.len());
        assert_eq!(call(), Ok(large.len()));
        let why = pair.why_not_direct().unwrap();
        assert!(why.contains("are large packets lost on the way (MTU)?"), "{why}");
        drop(filter);
        wait_for("a direct connection", || path(&pair) == Path::PATH_DIRECT);
        assert_eq!(call(), Ok(large.len()));
        assert!(counts(&pair.executions).values().all(|count| *count == 1));
    });
}

#[test]
fn a_peer_that_vanishes_without_a_word_leaves_every_call_an_end() {
    in_a_network(|| {
        let pair = Pair::start();
        assert_eq!(path(&pair), Path::PATH_DIRECT);
        let ends = ends_under_load(&pair.here, || {
            std::thread::sleep(Duration::from_millis(200));
            let filter = PacketFilter::of_port(port(&pair), Dropped::All);
            wait_for("calls over Redis", || path(&pair) == Path::PATH_REDIS);
            drop(filter);
            wait_for("direct calls", || path(&pair) == Path::PATH_DIRECT);
        });
        assert_true(&pair.executions, &ends);
        // The connections of both sides from before are gone, and nothing waits for them.
        let calls = under_load(&pair, || {});
        assert!(calls > 0);
    });
}
