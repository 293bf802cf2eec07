//! `dispatch_start`, `dispatch_wait` and `dispatch_forget` against a dispatcher that tests drive.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use cwasi_abi::{CallOptions, JOIN_KEY_MAX, Outcome};
use cwasi_modes::{CallError, CallResult, OutgoingPayload, Payload, TooManyCalls};
use cwasi_wire::envelope::Join;
use proptest::prelude::*;

use super::*;
use crate::fake::{FakeMemory, host};
use crate::{
    Context, Dispatch, RESPONSES_MAX, StartParameters, StartedCall, dispatch_start, response_read,
};

/// The calls of the dispatcher, and its answers.
#[derive(Default)]
struct Script {
    last: u32,
    /// Calls that have ended, by number.
    ended: BTreeMap<u32, Result<Vec<u8>, CallError>>,
    /// Key, parts and part of each call that is a part.
    joins: Vec<(String, u32, u32)>,
    forgotten: Vec<u32>,
}

struct Scripted(Rc<RefCell<Script>>);

impl Dispatch for Scripted {
    fn call(&mut self, _: &str, _: OutgoingPayload<'_>, _: Option<Deadline>) -> CallResult {
        Err(CallError::Internal { message: "no call is expected".into() })
    }

    fn start(
        &mut self,
        target: &str,
        _: OutgoingPayload<'_>,
        join: Option<Join>,
        _: Option<Deadline>,
    ) -> Result<StartedCall, TooManyCalls> {
        let mut script = self.0.borrow_mut();
        if target == "too-many" {
            return Err(TooManyCalls);
        }
        if target == "at-once" {
            return Ok(StartedCall::Ended(Ok(Payload::Inline(b"now".to_vec()))));
        }
        script.joins.extend(join.map(|join| (join.key, join.parts, join.part)));
        script.last += 1;
        Ok(StartedCall::Pending(CallTicket(script.last)))
    }

    fn wait(&mut self, calls: &[CallTicket], _: Option<Deadline>) -> Option<(usize, CallResult)> {
        let mut script = self.0.borrow_mut();
        let index = calls.iter().position(|call| script.ended.contains_key(&call.0))?;
        let ended = script.ended.remove(&calls[index].0).unwrap();
        Some((index, ended.map(Payload::Inline)))
    }

    fn forget(&mut self, call: CallTicket) {
        self.0.borrow_mut().forgotten.push(call.0);
    }
}

const HANDLES: u32 = 0;
const READY: u32 = 3000;
const TARGET: u32 = 3100;
const OPTIONS: u32 = 3400;
const KEY: u32 = 3500;
const HANDLE_OUT: u32 = 4000;

struct Fixture {
    host: Host,
    memory: FakeMemory,
    script: Rc<RefCell<Script>>,
}

impl Fixture {
    fn new() -> Self {
        let script = Rc::default();
        let mut host = host();
        host.dispatch = Box::new(Scripted(Rc::clone(&script)));
        host.begin(Context::default());
        Self { host, memory: FakeMemory::of(4096), script }
    }

    fn start_with(&mut self, target: &str, options: u32) -> Result<u32, Errno> {
        self.memory.write(GuestPtr(TARGET), target.as_bytes()).unwrap();
        let parameters = StartParameters {
            target: (GuestPtr(TARGET), u32::try_from(target.len()).unwrap()),
            payload: (GuestPtr(0), 8),
            options: GuestPtr(options),
            handle_out: GuestPtr(HANDLE_OUT),
        };
        dispatch_start(&mut self.host, &mut self.memory, None, parameters)?;
        Ok(self.word(HANDLE_OUT))
    }

    fn start(&mut self, target: &str) -> u32 {
        self.start_with(target, 0).unwrap()
    }

    fn word(&self, at: u32) -> u32 {
        let bytes = self.memory.slice(GuestPtr(at), 4).unwrap();
        u32::from_le_bytes(bytes.try_into().unwrap())
    }

    fn wait(&mut self, handles: &[u32]) -> Result<(u32, Outcome), Errno> {
        let bytes: Vec<u8> = handles.iter().flat_map(|handle| handle.to_le_bytes()).collect();
        self.memory.write(GuestPtr(HANDLES), &bytes).unwrap();
        let handles = (GuestPtr(HANDLES), u32::try_from(handles.len()).unwrap());
        dispatch_wait(&mut self.host, &mut self.memory, handles, 0, GuestPtr(READY))?;
        let [handle, length, status, reserved] = [4, 8, 12, 16].map(|at| self.word(READY + at));
        Ok((self.word(READY), Outcome { handle, length, status, reserved }))
    }

    fn read(&mut self, outcome: Outcome) -> Vec<u8> {
        let room = (GuestPtr(0), outcome.length);
        response_read(&mut self.host, &mut self.memory, None, outcome.handle, room).unwrap();
        self.memory.slice(GuestPtr(0), outcome.length).unwrap().to_vec()
    }

    fn end(&self, number: u32, ended: Result<&str, &str>) {
        let trapped = |message: &str| CallError::Trapped { message: message.to_owned() };
        let ended = ended.map(|text| text.as_bytes().to_vec()).map_err(trapped);
        self.script.borrow_mut().ended.insert(number, ended);
    }
}

#[test]
fn the_first_of_those_that_have_ended_is_given_and_its_handle_is_free() {
    let mut fixture = Fixture::new();
    let calls: Vec<u32> = (0..4).map(|_| fixture.start("f")).collect();
    assert_eq!(fixture.wait(&calls), Err(Errno::Timeout));
    fixture.end(3, Ok("three"));
    fixture.end(2, Err("why"));
    let (index, outcome) = fixture.wait(&calls).unwrap();
    assert_eq!((index, outcome.status), (1, 7));
    assert_eq!(fixture.read(outcome), b"why");
    assert_eq!(fixture.wait(&calls), Err(Errno::BadHandle), "one of them is free");
    let (index, outcome) = fixture.wait(&[calls[0], calls[2], calls[3]]).unwrap();
    assert_eq!((index, outcome.status), (1, 0));
    assert_eq!(fixture.read(outcome), b"three");
    assert_eq!(fixture.wait(&[calls[3], calls[0]]), Err(Errno::Timeout));
}

#[test]
fn a_call_that_ends_at_its_start_keeps_its_place() {
    let mut fixture = Fixture::new();
    let calls = [fixture.start("f"), fixture.start("at-once"), fixture.start("f")];
    fixture.end(2, Ok("last"));
    assert_eq!(fixture.wait(&calls).unwrap().0, 1, "the first has not ended");
    let calls = [calls[0], fixture.start("at-once")];
    fixture.end(1, Ok("first"));
    let (index, outcome) = fixture.wait(&calls).unwrap();
    assert_eq!((index, fixture.read(outcome)), (0, b"first".to_vec()));
    let (index, outcome) = fixture.wait(&calls[1..]).unwrap();
    assert_eq!((index, fixture.read(outcome)), (0, b"now".to_vec()));
}

#[test]
fn a_name_that_cannot_be_one_is_that_calls_end() {
    let mut fixture = Fixture::new();
    let call = fixture.start("");
    let (_, outcome) = fixture.wait(&[call]).unwrap();
    assert_eq!(outcome.status, 2);
    assert!(String::from_utf8(fixture.read(outcome)).unwrap().contains("empty"));
}

#[test]
fn nothing_is_started_outside_an_invocation_or_beyond_the_bounds() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.start_with("too-many", 0), Err(Errno::TooManyHandles));
    for _ in 0..CALLS_IN_FLIGHT_MAX {
        fixture.start("f");
    }
    assert_eq!(fixture.start_with("f", 0), Err(Errno::TooManyHandles));
    assert_eq!(fixture.script.borrow().last, 1024);
    fixture.host.end();
    assert_eq!(fixture.start_with("f", 0), Err(Errno::NotAvailable));
    fixture.host.begin(Context::default());
    assert!(fixture.start_with("f", 0).is_ok(), "the invocation's end forgot the others");
}

#[test]
fn a_wait_that_cannot_keep_a_response_loses_nothing() {
    let mut fixture = Fixture::new();
    let call = fixture.start("at-once");
    for _ in 0..RESPONSES_MAX {
        fixture.host.responses.insert(boxed(Payload::Inline(Vec::new()))).unwrap();
    }
    assert_eq!(fixture.wait(&[call]), Err(Errno::TooManyHandles));
    fixture.host.responses.clear();
    assert!(fixture.wait(&[call]).is_ok());
}

#[test]
fn wrong_handles_counts_and_pointers_change_nothing() {
    let mut fixture = Fixture::new();
    let call = fixture.start("at-once");
    assert_eq!(fixture.wait(&[]), Err(Errno::InvalidArgument));
    assert_eq!(fixture.wait(&[0]), Err(Errno::BadHandle));
    assert_eq!(fixture.wait(&[call, call + 1]), Err(Errno::BadHandle));
    let mut wait = |at, count, ready| {
        dispatch_wait(
            &mut fixture.host,
            &mut fixture.memory,
            (GuestPtr(at), count),
            0,
            GuestPtr(ready),
        )
    };
    assert_eq!(wait(0, 1025, READY), Err(Errno::InvalidArgument));
    assert_eq!(wait(4093, 1, READY), Err(Errno::BadPointer));
    assert_eq!(wait(0, 1, 4077), Err(Errno::BadPointer));
    assert_eq!(fixture.wait(&[call, call]).unwrap().0, 0);
}

#[test]
fn the_dispatcher_learns_of_forgotten_calls() {
    let mut fixture = Fixture::new();
    let (pending, over) = (fixture.start("f"), fixture.start("at-once"));
    assert_eq!(dispatch_forget(&mut fixture.host, pending), Ok(()));
    assert_eq!(dispatch_forget(&mut fixture.host, over), Ok(()));
    assert_eq!(dispatch_forget(&mut fixture.host, pending), Err(Errno::BadHandle));
    assert_eq!(fixture.script.borrow().forgotten, [1]);
}

#[test]
fn options_name_the_part_or_are_refused() {
    for (key, parts, part, expected) in [
        (&b""[..], 1, 7, Ok(None)),
        (b"frame-7", 3, 2, Ok(Some(("frame-7", 3, 2)))),
        (b"k", 0, 9, Ok(Some(("k", 0, 9)))),
        (b"k", 3, 3, Err(Errno::InvalidArgument)),
        (b"\xff", 1, 0, Err(Errno::InvalidArgument)),
        (&[b'x'; JOIN_KEY_MAX + 1], 1, 0, Err(Errno::InvalidArgument)),
    ] {
        let mut fixture = Fixture::new();
        fixture.memory.write(GuestPtr(KEY), key).unwrap();
        let len = u32::try_from(key.len()).unwrap();
        let options: Vec<u8> =
            [KEY, len, parts, part].iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(options.len(), CallOptions::SIZE);
        fixture.memory.write(GuestPtr(OPTIONS), &options).unwrap();
        let started = fixture.start_with("f", OPTIONS).map(|_| {
            let joins = std::mem::take(&mut fixture.script.borrow_mut().joins);
            joins.into_iter().next()
        });
        let expected =
            expected.map(|join| join.map(|(key, parts, part)| (key.to_owned(), parts, part)));
        assert_eq!(started, expected, "{key:?} {parts} {part}");
    }
    let mut fixture = Fixture::new();
    assert_eq!(fixture.start_with("f", 4090), Err(Errno::BadPointer));
    assert_eq!(fixture.script.borrow().last, 0);
}

proptest! {
    /// Whatever ends in whatever order: every call is given exactly once, lowest place first.
    #[test]
    fn every_call_ends_exactly_once(order in Just((1_u32..=20).collect::<Vec<_>>()).prop_shuffle(), burst in 1_usize..5) {
        let mut fixture = Fixture::new();
        let mut open: Vec<u32> = (0..20).map(|_| fixture.start("f")).collect();
        let mut given = Vec::new();
        for numbers in order.chunks(burst) {
            for number in numbers {
                fixture.end(*number, Ok("x"));
            }
            for _ in numbers {
                let (index, outcome) = fixture.wait(&open).unwrap();
                given.push(open.remove(index as usize));
                fixture.read(outcome);
            }
            if !open.is_empty() {
                prop_assert_eq!(fixture.wait(&open), Err(Errno::Timeout));
            }
        }
        given.sort_unstable();
        prop_assert_eq!(given, (1..=20).collect::<Vec<_>>());
    }
}
