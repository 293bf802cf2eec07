//! Fan-in at the receiver: parts wait for each other, the handler runs once, every caller gets the end.

use std::collections::BTreeMap;
use std::time::Duration;

use cwasi_abi::{Errno, PartsBlock, parts_header_len};
use cwasi_modes::Payload;
use cwasi_sys::clock::Deadline;
use cwasi_wire::control::{Entry, FanIn, FunctionLaunch, Partial, Role};
use cwasi_wire::envelope::{Join, Response};
use cwasi_wire::frame::FRAME_MAX;
use nix::sys::signal::Signal;
use nix::sys::stat::fstat;
use nix::unistd::Pid;

use crate::fixture::{Fixture, descriptors_of, eventually};
use crate::frames::receive_frame;
use crate::function::{Caller, Function, Outcome, launch};
use crate::guests::guests;
use crate::secondary::{idle_descriptors_len, overflow};

/// Longer than any of these tests waits for a caller.
pub const LONG_MS: u64 = 20_000;
/// Time enough for parts that come one after the other.
const SHORT_MS: u64 = 2000;
/// Above what is copied.
pub const LARGE: usize = 70_000;

fn merge(parts: u32, timeout_ms: u64, partial: Partial) -> FunctionLaunch {
    let fan_in = Some(FanIn { parts, timeout_ms, partial });
    FunctionLaunch { fan_in, ..launch(Role::Secondary, &guests().reactor, Entry::Reactor) }
}

pub fn join(key: &str, parts: u32, part: u32) -> Join {
    Join { key: key.into(), parts, part, ..Join::default() }
}

pub fn failed(outcome: Outcome) -> (Errno, String) {
    let (code, message) = outcome.unwrap_err();
    (Errno::from_code(code).unwrap(), message)
}

/// Expected parts, and number and bytes of each.
pub fn decoded(block: &[u8]) -> (u32, Vec<(u32, Vec<u8>)>) {
    let block = PartsBlock::decode(block).unwrap();
    (block.expected(), block.iter().map(|(number, bytes)| (number, bytes.to_vec())).collect())
}

pub fn answers(caller: &Caller, count: usize) -> BTreeMap<u64, Outcome> {
    let all: BTreeMap<_, _> = (0..count).map(|_| caller.receive()).collect();
    assert_eq!(all.len(), count, "one answer for each call");
    all
}

/// What init and worker hold, sockets of callers left out.
fn held(function: &Function<'_>) -> [usize; 3] {
    let worker = Pid::from_raw(function.workers()[0]);
    let maps = std::fs::read_to_string(format!("/proc/{worker}/maps")).unwrap();
    let mapped = maps.lines().filter(|line| line.contains("memfd:cwasi-p")).count();
    [function.container.descriptors().len(), descriptors_of(worker).len(), mapped]
}

#[test]
fn groups_are_handled_once_with_their_parts_in_order() {
    let fixture = Fixture::new();
    let function = Function::start(&fixture, "order", merge(3, LONG_MS, Partial::Fail));
    let (mut one, mut two) = (function.caller(), function.caller());
    one.send_part(&join("a", 0, 2), b"a2", LONG_MS);
    two.send_part(&join("b", 3, 0), b"b0", LONG_MS);
    one.send_part(&join("b", 0, 1), &[7; LARGE], LONG_MS);
    two.send_part(&join("a", 3, 0), b"", LONG_MS);
    two.send_part(&join("b", 0, 2), b"b2", LONG_MS);
    one.send_part(&join("a", 0, 1), b"a1", LONG_MS);
    let a = vec![(0, vec![]), (1, b"a1".to_vec()), (2, b"a2".to_vec())];
    let b = vec![(0, b"b0".to_vec()), (1, vec![7; LARGE]), (2, b"b2".to_vec())];
    for (caller, groups) in
        [(&one, [(1, &a), (2, &b), (3, &a)]), (&two, [(1, &b), (2, &a), (3, &b)])]
    {
        let answers = answers(caller, 3);
        for (number, group) in groups {
            assert!(decoded(answers[&number].as_ref().unwrap()) == (3, group.clone()), "{number}");
        }
    }
    function.end();
}

#[test]
fn an_incomplete_group_names_what_is_missing() {
    let fixture = Fixture::new();
    let mut function = Function::start(&fixture, "late", merge(3, SHORT_MS, Partial::Fail));
    let (mut one, mut two) = (function.caller(), function.caller());
    one.send_part(&join("frame-7", 0, 0), b"e", LONG_MS);
    two.send_part(&join("frame-7", 0, 2), b"z", LONG_MS);
    for caller in [&one, &two] {
        let (errno, message) = failed(caller.receive().1);
        assert_eq!(errno, Errno::Timeout);
        assert_eq!(message, "2 of 3 parts of `frame-7` arrived in 2s; missing: 1");
    }
    // A caller's own deadline ends its part only.
    one.send_part(&join("frame-8", 0, 0), b"e", 50);
    let (errno, message) = failed(one.receive().1);
    assert_eq!(errno, Errno::Timeout);
    assert!(message.contains("1 of 3 parts of `frame-8` arrived before"), "{message}");
    function.end();
    let said = function.container.errors();
    assert_eq!(said.matches("parts of `frame-7`").count(), 1, "{said}");
}

#[test]
fn errors_reach_a_caller_with_more_parts_than_its_socket_holds() {
    const PARTS: u32 = 600;
    let fixture = Fixture::new();
    // All parts have to be there before it ends.
    let function = Function::start(&fixture, "burst", merge(PARTS, 8000, Partial::Fail));
    let mut caller = function.caller();
    for part in 0..PARTS - 1 {
        caller.send_part(&join("k", 0, part), b"e", LONG_MS);
    }
    // No caller reads before all of them have failed: most answers find no room at first.
    let mut other = function.caller();
    eventually("the group to be over", || {
        other.send_part(&join("k", 0, 0), b"e", 1);
        (failed(other.receive().1).1 != "part 0 of `k` is here already").then_some(())
    });
    for (_, outcome) in answers(&caller, PARTS as usize - 1) {
        assert!(failed(outcome).1.contains("599 of 600 parts"));
    }
    function.end();
}

#[test]
fn a_partial_group_is_delivered_where_the_function_wants_it() {
    let fixture = Fixture::new();
    let function = Function::start(&fixture, "partial", merge(3, SHORT_MS, Partial::Deliver));
    let mut caller = function.caller();
    caller.send_part(&join("k", 0, 2), b"z", LONG_MS);
    caller.send_part(&join("k", 0, 0), b"e", LONG_MS);
    for (_, outcome) in answers(&caller, 2) {
        let parts = vec![(0, b"e".to_vec()), (2, b"z".to_vec())];
        assert_eq!(decoded(&outcome.unwrap()), (3, parts));
    }
    function.end();
}

#[test]
fn faults_and_deadlines_of_the_handler_are_every_callers_error_once() {
    let fixture = Fixture::new();
    let function = Function::start(&fixture, "faults", merge(3, LONG_MS, Partial::Fail));
    let (mut one, mut two) = (function.caller(), function.caller());
    let mut group = |how: &[u8], timeout_ms: u64| {
        one.send_part(&join("k", 0, 1), b"b", timeout_ms);
        one.send_part(&join("k", 0, 2), b"c", timeout_ms);
        two.send_part(&join("k", 0, 0), how, timeout_ms);
        let all = answers(&one, 2).into_values().chain(answers(&two, 1).into_values());
        all.map(failed).collect::<Vec<_>>()
    };
    for (how, timeout_ms, errno, text) in [
        (b"o", LONG_MS, Errno::Trapped, "out of bounds"),
        (b"r", LONG_MS, Errno::Trapped, overflow()),
        (b"x", LONG_MS, Errno::Failed, "exit(3)"),
        (b"f", LONG_MS, Errno::Failed, "deliberate failure"),
        (b"l", SHORT_MS, Errno::Timeout, "deadline"),
    ] {
        for (found, message) in group(how, timeout_ms) {
            assert_eq!(found, errno, "{message}");
            assert!(message.contains(text), "{message}");
        }
    }
    function.end();
}

#[test]
fn a_killed_worker_is_every_callers_error_and_is_replaced() {
    let fixture = Fixture::new();
    let function = Function::start(&fixture, "kill", merge(2, LONG_MS, Partial::Fail));
    let (mut one, mut two) = (function.caller(), function.caller());
    one.send_part(&join("k", 0, 0), b"l", LONG_MS);
    two.send_part(&join("k", 0, 1), b"y", LONG_MS);
    function.until_busy(1);
    let worker = Pid::from_raw(function.workers()[0]);
    nix::sys::signal::kill(worker, Signal::SIGKILL).unwrap();
    for caller in [&one, &two] {
        assert_eq!(failed(caller.receive().1).0, Errno::Broken);
    }
    one.send_part(&join("k", 0, 0), b"e", LONG_MS);
    two.send_part(&join("k", 0, 1), b"y", LONG_MS);
    assert!(one.receive().1.is_ok() && two.receive().1.is_ok());
    function.end();
}

/// A group of `parts`, sent from all callers in turn; even parts are large. Returns the block's summary.
fn large_group(callers: &mut [Caller], key: &str, parts: u32) -> Vec<u8> {
    let count = callers.len();
    for part in 0..parts {
        let mut payload = vec![0; if part % 2 == 0 { LARGE } else { 40 }];
        payload[..4].copy_from_slice(&(part << 8 | u32::from(b's')).to_le_bytes());
        callers[part as usize % count].send_part(&join(key, 0, part), &payload, LONG_MS);
    }
    let mut summary = None;
    for (index, caller) in callers.iter().enumerate() {
        let mine = (index..parts as usize).step_by(count).count();
        for (_, outcome) in answers(caller, mine) {
            let found = outcome.unwrap();
            assert!(summary.get_or_insert(found.clone()) == &found, "all get the same");
        }
    }
    summary.unwrap()
}

#[test]
fn five_hundred_parts_are_one_invocation_and_leave_nothing() {
    const PARTS: u32 = 500;
    let fixture = Fixture::new();
    let function = Function::start(&fixture, "many", merge(PARTS, LONG_MS, Partial::Fail));
    let mut callers: Vec<_> = (0..7).map(|_| function.caller()).collect();
    large_group(&mut callers, "first", PARTS);
    let settled = || {
        let now = held(&function);
        (now[1] == idle_descriptors_len() && now[2] == 0).then_some(now)
    };
    let before = eventually("nothing in the worker", settled);
    for round in 0..3 {
        let summary = large_group(&mut callers, &format!("round-{round}"), PARTS);
        assert_eq!(summary.len(), parts_header_len(PARTS as usize));
        for (number, entry) in (0..PARTS).zip(summary[16..].chunks(16)) {
            let word = |at: usize| u32::from_le_bytes(entry[at..at + 4].try_into().unwrap());
            let large = number % 2 == 0;
            assert_eq!((word(8), word(12) >> 8), (number, number), "number and content");
            assert_eq!(word(4) as usize, if large { LARGE } else { 40 });
            assert!(!large || word(0) % 4096 == 0, "large parts are mapped");
        }
    }
    let after = eventually("nothing in the worker", settled);
    assert_eq!(before, after);
    assert_eq!(function.workers().len(), 1);
    function.end();
}

#[test]
fn a_large_answer_is_one_segment_for_all() {
    let fixture = Fixture::new();
    let function = Function::start(&fixture, "shared", merge(2, LONG_MS, Partial::Fail));
    let (mut one, mut two) = (function.caller(), function.caller());
    one.send_part(&join("k", 0, 0), &[1; LARGE], LONG_MS);
    two.send_part(&join("k", 0, 1), &[2; LARGE], LONG_MS);
    let inode = |caller: &Caller| {
        let mut buffer = vec![0; FRAME_MAX];
        let deadline = Some(Deadline::after(Duration::from_millis(LONG_MS)));
        let answer = receive_frame::<Response>(&caller.connection, &mut buffer, 1 << 30, deadline);
        let Payload::Segment(segment) = answer.unwrap().payload else { panic!("copied") };
        let parts = vec![(0, vec![1; LARGE]), (1, vec![2; LARGE])];
        assert!(decoded(&segment.to_vec().unwrap()) == (2, parts));
        fstat(segment.as_fd()).unwrap().st_ino
    };
    assert_eq!(inode(&one), inode(&two));
    function.end();
}

#[test]
fn an_ending_instance_refuses_parts_that_wait() {
    let fixture = Fixture::new();
    let function = Function::start(&fixture, "stop", merge(2, LONG_MS, Partial::Fail));
    let mut caller = function.caller();
    caller.send_part(&join("k", 0, 0), b"e", LONG_MS);
    caller.send_part(&join("k", 0, 0), b"e", LONG_MS);
    assert_eq!(failed(caller.receive().1).0, Errno::InvalidArgument, "the first one waits");
    function.container.signal(Signal::SIGTERM);
    assert_eq!(failed(caller.receive().1).0, Errno::Unreachable);
    assert_eq!(function.container.wait(), 143);
    function.container.delete();
    let one_shot = FunctionLaunch { max_requests: 1, ..merge(2, LONG_MS, Partial::Fail) };
    let function = Function::start(&fixture, "shot", one_shot);
    let mut caller = function.caller();
    for part in [0, 1] {
        caller.send_part(&join("k", 0, part), b"e", LONG_MS);
    }
    assert!(answers(&caller, 2).into_values().all(|outcome| outcome.is_ok()));
    assert_eq!(function.container.wait(), 0, "a group is one request");
    function.container.delete();
}
