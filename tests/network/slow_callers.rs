//! A caller that starts calls, computes, and takes its answers late: they wait for it, and hold up nobody else.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::bed::{Node, PATIENCE, Served, target, wait_for};

/// Calls that it starts: their answers fill its connection several times over.
const CALLS: usize = 64;
/// Length of each answer in bytes: the longest that is no segment.
const LARGE: usize = 64 << 10;
/// How long it computes.
const COMPUTES: Duration = Duration::from_secs(2);
/// Calls of another caller meanwhile.
const OTHERS: usize = 50;

#[test]
fn a_caller_that_takes_its_answers_late_gets_all_of_them_and_holds_up_nobody() {
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
