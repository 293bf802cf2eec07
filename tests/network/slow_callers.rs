//! A caller that starts calls, computes, and takes its answers late: they wait for it, and delay no other caller.

use std::collections::BTreeSet;
use std::time::Duration;

use cwasi_modes::{CallError, TooLarge};

use crate::fixture::{GROWN, Node, PATIENCE, Served, target, wait_for};

/// Calls that it starts: their answers fill its connection several times over.
const CALLS: usize = 64;
/// Length of each answer in bytes: the longest that is no segment.
const LARGE: usize = 64 << 10;
/// Answers of [`GROWN`] bytes: more than may wait for one connection.
const GROWN_CALLS: usize = 32;
/// Bytes of answers that may wait for one connection.
const WAITING_MAX: usize = 64 << 20;
/// How long it computes.
const COMPUTES: Duration = Duration::from_secs(2);
/// Calls of another caller meanwhile.
const OTHERS: usize = 50;

#[test]
fn a_late_reader_gets_all_answers_and_delays_no_caller() {
    let served = Served::start();
    let here = Node::start("here", &target(&served.redis));
    let (mut slow, mut other) = (here.caller(), here.caller());
    let payload = vec![7; LARGE];
    let mut started: BTreeSet<_> = (0..CALLS).map(|_| slow.start(&payload, PATIENCE).0).collect();
    for _ in 0..OTHERS {
        assert_eq!(other.call(b"x", PATIENCE), Ok(b"x".to_vec()));
    }
    wait_for("all calls to run", || served.ran() == CALLS + OTHERS);
    // The computation itself, not a wait for anything.
    std::thread::sleep(COMPUTES);
    for _ in 0..CALLS {
        let (id, ended) = slow.ended(PATIENCE);
        assert_eq!(ended.map(|answer| answer == payload), Ok(true));
        assert!(started.remove(&id.0), "an answer came twice");
    }
    assert_eq!(other.call(b"y", PATIENCE), Ok(b"y".to_vec()));
}

#[test]
fn what_waits_for_one_caller_is_bounded_in_bytes_and_only_its_own_calls_pay() {
    let served = Served::start();
    let here = Node::start("here", &target(&served.redis));
    let (mut slow, mut other) = (here.caller(), here.caller());
    // So its connection is full.
    let filling = vec![7; LARGE];
    for _ in 0..CALLS {
        slow.start(&filling, PATIENCE);
    }
    wait_for("all calls to run", || served.ran() == CALLS);
    for _ in 0..GROWN_CALLS {
        slow.start(b"grow", PATIENCE);
    }
    wait_for("the others to run", || served.ran() == CALLS + GROWN_CALLS);
    wait_for("their answers to be there", || {
        served.redis.cli(&["keys", "cwasi:try:*"]).trim().is_empty()
    });
    for number in 1..=OTHERS {
        assert_eq!(other.call(b"x", PATIENCE), Ok(b"x".to_vec()), "call {number}");
    }
    let mut answers = Vec::new();
    let mut dropped = 0;
    for _ in 0..CALLS + GROWN_CALLS {
        match slow.ended(PATIENCE).1 {
            Ok(answer) => answers.push(answer.len()),
            Err(CallError::TooLarge(TooLarge::Remote { text: message })) => {
                assert!(message.contains("wait for calls before you start more"), "{message}");
                dropped += 1;
            }
            Err(error) => panic!("{error:?}"),
        }
    }
    let grown = answers.iter().filter(|len| **len == GROWN).count();
    assert_eq!(answers.len(), grown + CALLS, "the others are as long as their payloads");
    assert_eq!(dropped, GROWN_CALLS - grown);
    assert!(dropped > 0 && grown <= WAITING_MAX / GROWN, "{grown} answers were kept");
    // What was too much is forgotten with the calls.
    slow.start(b"grow", PATIENCE);
    assert_eq!(slow.ended(PATIENCE).1.map(|answer| answer.len()), Ok(GROWN));
}
