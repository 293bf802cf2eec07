//! Callers that start many calls and read late: what they have not read waits for them, and delays no other caller.

use std::collections::BTreeMap;
use std::os::fd::AsFd;

use cwasi_abi::{CALLS_IN_FLIGHT_MAX, Errno, INLINE_MAX};
use cwasi_sys::seqpacket::{self, SocketError};
use cwasi_wire::control::{Entry, FanIn, FunctionLaunch, Partial, Role};
use cwasi_wire::envelope::Join;

use crate::fixture::{Fixture, WAIT};
use crate::function::{Caller, Function, Outcome, launch};
use crate::guests::guests;

/// Deadline of calls whose answers are read late, in milliseconds.
const LATE_MS: u64 = 60_000;
/// Deadline of calls that are not to wait for those, in milliseconds.
const SOON_MS: u64 = 20_000;
/// Calls of others while the late ones do not read.
const CALLS: usize = 20;

fn echo(concurrency: u32, queue: u32) -> FunctionLaunch {
    let reactor = launch(Role::Secondary, &guests().reactor, Entry::Reactor);
    FunctionLaunch { concurrency, queue, ..reactor }
}

/// A payload that comes back as it is.
fn payload(number: usize, len: usize) -> Vec<u8> {
    let mut payload = vec![b'e'; len];
    payload[1..5].copy_from_slice(&u32::try_from(number).unwrap().to_le_bytes());
    payload
}

/// Answers by the number of their request.
fn answers(caller: &Caller, count: usize) -> BTreeMap<u64, Outcome> {
    (0..count).map(|_| caller.receive()).collect()
}

#[test]
fn a_late_reader_delays_no_other_caller() {
    let fixture = Fixture::new();
    let function = Function::start(&fixture, "late", echo(2, 2000));
    let mut other = function.caller();
    // In frames, in a few long ones and in many short ones, and in segments, of which the queue holds 256.
    for (count, len) in [(8, 60_000), (60, 16_000), (1000, 100), (250, INLINE_MAX + 1)] {
        let mut late = function.caller();
        let sent: Vec<_> =
            (0..count).map(|number| late.send(&payload(number, len), LATE_MS)).collect();
        late.until_read();
        for number in 0..CALLS {
            let call = payload(number, 20);
            assert_eq!(other.call_within(&call, SOON_MS), Ok(call), "beside {count} of {len}");
        }
        let mut late_ones = answers(&late, count);
        for (number, call) in sent.into_iter().enumerate() {
            assert_eq!(late_ones.remove(&call), Some(Ok(payload(number, len))));
        }
    }
    function.end();
}

#[test]
fn a_group_does_not_wait_for_the_one_of_its_callers_that_reads_late() {
    let fixture = Fixture::new();
    let fan_in = Some(FanIn { parts: 2, timeout_ms: LATE_MS, partial: Partial::Fail });
    let function = Function::start(&fixture, "group", FunctionLaunch { fan_in, ..echo(1, 64) });
    let (mut late, mut other) = (function.caller(), function.caller());
    for number in 0..12 {
        let join = |part| Join { key: format!("{number}"), part, ..Join::default() };
        let [first, second] = [0, 1].map(|part| (join(part), payload(number, 28_000)));
        late.send_part(&first.0, &first.1, LATE_MS);
        let call = other.send_part(&second.0, &second.1, SOON_MS);
        let (answered, outcome) = other.receive();
        assert_eq!((answered, outcome.unwrap().len() > 56_000), (call, true));
    }
    assert!(answers(&late, 12).values().all(Result::is_ok));
    function.end();
}

#[test]
fn unread_answers_are_bounded_in_bytes_and_number() {
    const SENT: usize = 3000;
    let fixture = Fixture::new();
    let launch = FunctionLaunch { memory_max: Some(64 << 20), ..echo(2, 4000) };
    let function = Function::start(&fixture, "bounds", launch);
    let (mut large, mut many, mut other) =
        (function.caller(), function.caller(), function.caller());
    let of_large = 600;
    for number in 0..of_large {
        large.send(&payload(number, 60_000), LATE_MS);
        // What waits to be run has a bound of its own, an eighth of the memory limit: two times as many as these.
        if (number + 1) % 50 == 0 {
            large.until_read();
            function.until_idle(2);
        }
    }
    assert_eq!(other.call_within(b"e", SOON_MS), Ok(b"e".to_vec()));
    let outcomes = answers(&large, of_large);
    let dropped: Vec<_> = outcomes.values().filter_map(|outcome| outcome.as_ref().err()).collect();
    // A quarter of the memory limit may wait, in its socket are some more.
    let kept = (of_large - dropped.len()) * 60_000;
    assert!(kept > 15 << 20 && kept < 18 << 20, "{kept} bytes");
    for (errno, text) in dropped {
        assert_eq!(*errno, Errno::PayloadTooLarge.code());
        assert!(text.contains("wait for calls before you start more"), "{text}");
    }
    // Until its connection ends.
    let sent = (0..SENT).map_while(|_| many.try_send(b"e", LATE_MS)).count();
    assert_eq!(other.call_within(b"e", SOON_MS), Ok(b"e".to_vec()));
    // What was in its socket can be read.
    let mut buffer = vec![0; INLINE_MAX];
    let mut read = 0;
    let until = Some(cwasi_sys::clock::Deadline::after(WAIT));
    let end = loop {
        match seqpacket::receive(many.connection.as_fd(), &mut buffer, until) {
            Ok(_) => read += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(end, SocketError::Closed), "{end}");
    assert!(read < sent - CALLS_IN_FLIGHT_MAX, "{read} of {sent}");
    assert_eq!(other.call_within(b"e", SOON_MS), Ok(b"e".to_vec()));
    function.end();
}
