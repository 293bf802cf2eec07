//! Calls in flight, over every mode that has a callee apart: the cases that only calls in flight can have.

use std::collections::BTreeSet;
use std::time::Duration;

use cwasi_abi::{CALLS_IN_FLIGHT_MAX, INLINE_MAX};
use cwasi_dispatcher::{Dispatcher, Resolve};
use cwasi_modes::CallTicket;
use cwasi_modes::{CallError, OutgoingPayload};
use cwasi_sys::clock::Deadline;
use cwasi_sys::segment::Segment;

use crate::blocked::BlockedRequests;
use crate::dispatched::{Reachable, dispatcher};
use crate::suite::{open_descriptors, wait_for_closed};

const PATIENCE: Duration = Duration::from_secs(30);

fn soon(wait: Duration) -> Option<Deadline> {
    Some(Deadline::after(wait))
}

fn start<R: Resolve>(dispatcher: &mut Dispatcher<R>, payload: &[u8]) -> CallTicket {
    dispatcher.start("callee", OutgoingPayload::Bytes(payload), None, soon(PATIENCE)).unwrap()
}

type End = Result<Vec<u8>, CallError>;

/// Calls whose end is not known yet, and their places.
type Open = Vec<(usize, CallTicket)>;

/// The next end of the calls in `open`.
fn next_end<R: Resolve>(dispatcher: &mut Dispatcher<R>, open: &mut Open) -> (usize, End) {
    let left: Vec<_> = open.iter().map(|(_, ticket)| *ticket).collect();
    let (index, end) = dispatcher.wait(&left, soon(PATIENCE)).expect("an end in time");
    let (place, _) = open.remove(index);
    (place, end.map(|payload| payload.into_vec().unwrap()))
}

/// The ends of all `tickets`, by their place, in the order in which they ended.
fn ends<R: Resolve>(dispatcher: &mut Dispatcher<R>, tickets: &[CallTicket]) -> Vec<(usize, End)> {
    let mut open: Open = tickets.iter().copied().enumerate().collect();
    tickets.iter().map(|_| next_end(dispatcher, &mut open)).collect()
}

pub fn answers_come_in_any_order<B: Reachable>() {
    let fixture = B::start();
    let mut dispatcher = dispatcher(fixture.resolver());
    let (late, last) = (BlockedRequests::new(b'w'), BlockedRequests::new(b'w'));
    let (late_payload, last_payload) = (late.payload().to_vec(), last.payload().to_vec());
    let payloads = [&late_payload[..], b"e-early", &last_payload, b"r-12"];
    let mut open: Open =
        payloads.map(|it| start(&mut dispatcher, it)).into_iter().enumerate().collect();
    let mut ends: Vec<_> = (0..2).map(|_| next_end(&mut dispatcher, &mut open)).collect();
    let places: BTreeSet<_> = ends.iter().map(|(place, _)| *place).collect();
    assert_eq!(places, BTreeSet::from([1, 3]));
    for blocked in [last, late] {
        blocked.release();
        ends.push(next_end(&mut dispatcher, &mut open));
    }
    let expected = [&late_payload[..], b"e-early", &last_payload, b"21-r"];
    for (place, end) in &ends {
        assert_eq!(end.as_deref(), Ok(expected[*place]));
    }
    assert_eq!([ends[2].0, ends[3].0], [2, 0]);
}

pub fn a_hundred_in_flight_end_each_with_its_own_answer<B: Reachable>() {
    let fixture = B::start();
    let mut dispatcher = dispatcher(fixture.resolver());
    let payload = |number: usize| {
        let mut payload = format!("e{number}").into_bytes();
        if number % 10 == 3 {
            payload.resize(INLINE_MAX + 10, b'x');
        }
        if number == 50 { b"f".to_vec() } else { payload }
    };
    let tickets: Vec<_> = (0..100).map(|number| start(&mut dispatcher, &payload(number))).collect();
    let ends = ends(&mut dispatcher, &tickets);
    assert_eq!(ends.len(), 100);
    for (place, end) in ends {
        if place == 50 {
            assert_eq!(end, Err(CallError::Failed { message: "no such plate".to_owned() }));
        } else {
            assert!(end.as_ref() == Ok(&payload(place)), "{place}");
        }
    }
    let edges = dispatcher.edges().take();
    let [edge] = &edges[..] else { panic!("{edges:?}") };
    assert_eq!((edge.calls, &edge.errors), (100, &[("failed".to_owned(), 1)].into()));
}

/// More bytes than the sockets hold, in both directions, before the first wait.
pub fn full_sockets_delay_no_call<B: Reachable>() {
    let fixture = B::start();
    let mut dispatcher = dispatcher(fixture.resolver());
    let payload = |number: u8| {
        let mut payload = vec![number; INLINE_MAX];
        payload[0] = b'e';
        payload
    };
    let tickets: Vec<_> = (0..60).map(|number| start(&mut dispatcher, &payload(number))).collect();
    for (place, end) in ends(&mut dispatcher, &tickets) {
        assert!(end == Ok(payload(u8::try_from(place).unwrap())), "{place}");
    }
}

pub fn one_segment_goes_to_many_calls<B: Reachable>() {
    let fixture = B::start();
    let mut dispatcher = dispatcher(fixture.resolver());
    let mut bytes = vec![7; 3 * INLINE_MAX];
    bytes[0] = b'e';
    let segment = Segment::copy_of(&bytes).unwrap();
    let tickets: Vec<_> = (0..20)
        .map(|_| {
            let payload = OutgoingPayload::Segment(&segment);
            dispatcher.start("callee", payload, None, soon(PATIENCE)).unwrap()
        })
        .collect();
    drop(segment);
    assert!(ends(&mut dispatcher, &tickets).iter().all(|(_, end)| end.as_ref() == Ok(&bytes)));
}

pub fn each_call_has_its_own_deadline<B: Reachable>() {
    let fixture = B::start();
    let mut dispatcher = dispatcher(fixture.resolver());
    let blocked = BlockedRequests::new(b'w');
    let payload = blocked.payload().to_vec();
    // Time enough to be accepted.
    let short = soon(Duration::from_secs(1));
    let late = dispatcher.start("callee", OutgoingPayload::Bytes(b"n"), None, short).unwrap();
    let good = start(&mut dispatcher, &payload);
    let mut open = vec![(0, late), (1, good)];
    let first = next_end(&mut dispatcher, &mut open);
    assert!(matches!(first, (0, Err(CallError::Timeout { .. }))), "{first:?}");
    blocked.release();
    assert_eq!(next_end(&mut dispatcher, &mut open), (1, Ok(payload)));
}

pub fn a_wait_that_ends_early_loses_nothing<B: Reachable>() {
    let fixture = B::start();
    let mut dispatcher = dispatcher(fixture.resolver());
    let blocked = BlockedRequests::new(b'w');
    let payload = blocked.payload().to_vec();
    let ticket = start(&mut dispatcher, &payload);
    assert!(dispatcher.wait(&[ticket], Some(Deadline::PASSED)).is_none());
    assert!(dispatcher.wait(&[ticket], soon(Duration::from_millis(20))).is_none());
    blocked.release();
    assert_eq!(ends(&mut dispatcher, &[ticket]), [(0, Ok(payload))]);
}

pub fn a_call_that_waits_works_among_calls_in_flight<B: Reachable>() {
    let fixture = B::start();
    let mut dispatcher = dispatcher(fixture.resolver());
    let blocked = BlockedRequests::new(b'w');
    let payload = blocked.payload().to_vec();
    let payloads = [&payload[..], b"e2", b"e3"];
    let tickets = payloads.map(|payload| start(&mut dispatcher, payload));
    for _ in 0..20 {
        let answer = dispatcher.call("callee", OutgoingPayload::Bytes(b"e-now"), soon(PATIENCE));
        assert_eq!(answer.unwrap().into_vec().unwrap(), b"e-now");
    }
    blocked.release();
    let mut all = ends(&mut dispatcher, &tickets);
    all.sort_by_key(|(place, _)| *place);
    let expected = payloads.map(|payload| Ok(payload.to_vec()));
    assert_eq!(all.into_iter().map(|(_, end)| end).collect::<Vec<_>>(), expected);
}

pub fn a_killed_callee_ends_each_call_once<B: Reachable>() {
    let mut fixture = B::start();
    let mut dispatcher = dispatcher(fixture.resolver());
    let first = start(&mut dispatcher, b"e");
    assert_eq!(ends(&mut dispatcher, &[first]), [(0, Ok(b"e".to_vec()))]);
    let blocked = BlockedRequests::new(b'n');
    let tickets: Vec<_> = (0..20).map(|_| start(&mut dispatcher, blocked.payload())).collect();
    // None has ended, and all are sent, whatever their caller could not send at once.
    assert!(dispatcher.wait(&tickets, soon(Duration::from_millis(20))).is_none());
    blocked.until_arrived(20);
    fixture.kill();
    let ends = ends(&mut dispatcher, &tickets);
    assert_eq!(ends.len(), 20);
    assert!(ends.iter().all(|(_, end)| matches!(end, Err(CallError::Broken { .. }))), "{ends:?}");
}

pub fn what_an_invocation_leaves_is_forgotten_and_the_next_one_is_served<B: Reachable>() {
    let fixture = B::start();
    let mut dispatcher = dispatcher(fixture.resolver());
    for _ in 0..3 {
        let blocked = BlockedRequests::new(b'w');
        for payload in [&b"n"[..], blocked.payload(), b"e"] {
            start(&mut dispatcher, payload);
        }
        dispatcher.end();
        blocked.release();
        let answer = dispatcher.call("callee", OutgoingPayload::Bytes(b"e-next"), soon(PATIENCE));
        assert_eq!(answer.unwrap().into_vec().unwrap(), b"e-next");
    }
}

pub fn forgotten_calls_count_until_they_end<B: Reachable>() {
    let fixture = B::start();
    let mut dispatcher = dispatcher(fixture.resolver());
    let short = soon(Duration::from_secs(2));
    for _ in 0..CALLS_IN_FLIGHT_MAX {
        let started = dispatcher.start("callee", OutgoingPayload::Bytes(b"n"), None, short);
        dispatcher.forget(started.unwrap());
    }
    let full = || OutgoingPayload::Bytes(b"e");
    // Unless starting them has taken that long.
    if short > soon(Duration::ZERO) {
        assert!(dispatcher.start("callee", full(), None, short).is_err());
    }
    while soon(Duration::ZERO) <= short {
        std::thread::sleep(Duration::from_millis(20));
    }
    // A callee on another node has them a little longer than their caller.
    let patience = soon(PATIENCE);
    let answered = std::iter::from_fn(|| {
        let last = dispatcher.start("callee", full(), None, patience).unwrap();
        ends(&mut dispatcher, &[last]).pop().map(|(_, end)| end)
    })
    .find(|end| !matches!(end, Err(CallError::Overloaded { .. })));
    assert_eq!(answered, Some(Ok(b"e".to_vec())));
}

/// Runs in a process of its own: other tests' descriptors would count.
pub fn nothing_leaks_from_calls_in_flight<B: Reachable>() {
    let fixture = B::start();
    let mut dispatcher = dispatcher(fixture.resolver());
    let mut big = vec![1; INLINE_MAX * 2];
    big[0] = b'e';
    let mut round = || {
        let payloads = [&b"e"[..], &big, b"f", b"t", &big, b"r123"];
        let tickets: Vec<_> = payloads.iter().map(|it| start(&mut dispatcher, it)).collect();
        dispatcher.forget(tickets[1]);
        assert_eq!(ends(&mut dispatcher, &tickets[2..]).len(), 4);
        dispatcher.end();
    };
    // So many that nearly every connection that is kept for later calls is there.
    for _ in 0..100 {
        round();
    }
    // What a broker's client opens now and then is no leak; one descriptor in a hundred rounds would be.
    let allowed = open_descriptors().len() + 3 + B::KEPT;
    for _ in 0..400 {
        round();
    }
    wait_for_closed(allowed);
}

/// One test per case for a callee, and the suite with each call started and waited for.
#[macro_export]
macro_rules! fan_conformance {
    ($fixture:ty) => {
        $crate::apart_conformance!($crate::dispatched::Started<$fixture>);
        $crate::fan_conformance!(@cases $fixture:
            answers_come_in_any_order,
            a_hundred_in_flight_end_each_with_its_own_answer,
            full_sockets_delay_no_call,
            one_segment_goes_to_many_calls,
            each_call_has_its_own_deadline,
            a_wait_that_ends_early_loses_nothing,
            a_call_that_waits_works_among_calls_in_flight,
            a_killed_callee_ends_each_call_once,
            what_an_invocation_leaves_is_forgotten_and_the_next_one_is_served,
            forgotten_calls_count_until_they_end,
        );
    };
    (@cases $fixture:ty: $($case:ident),* $(,)?) => {
        $(
            #[test]
            fn $case() {
                $crate::fan::$case::<$fixture>();
            }
        )*
    };
}
