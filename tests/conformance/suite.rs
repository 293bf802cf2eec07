//! The cases. `conformance!(Fixture)` makes a test of each that holds in every mode, `apart_conformance!(Fixture)` one
//! of each that needs a callee with a process of its own.

use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{fs, io};

use cwasi_modes::{CallError, OutgoingPayload};
use cwasi_sys::clock::Deadline;
use cwasi_sys::segment::Segment;
use cwasi_wire::frame::INLINE_MAX;

use crate::blocked::BlockedRequests;
use crate::{Apart, Caller, Fixture, MAX_PAYLOAD};

const PATIENCE: Duration = Duration::from_secs(30);

fn call<C: Caller>(caller: &mut C, payload: &[u8], wait: Duration) -> Result<Vec<u8>, CallError> {
    send(caller, OutgoingPayload::Bytes(payload), wait)
}

fn send<C: Caller>(
    caller: &mut C,
    payload: OutgoingPayload<'_>,
    wait: Duration,
) -> Result<Vec<u8>, CallError> {
    let deadline = Deadline::after(wait);
    caller.call(payload, Some(deadline))
}

fn pattern(len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|i| u8::try_from(i % 251).unwrap()).collect();
    if let Some(first) = bytes.first_mut() {
        *first = b'e';
    }
    bytes
}

pub fn payloads_of_every_size_arrive_unchanged<B: Fixture>() {
    let fixture = B::start();
    let mut caller = fixture.caller();
    assert_eq!(call(&mut caller, b"", PATIENCE), Ok(Vec::new()));
    let max = usize::try_from(MAX_PAYLOAD).unwrap();
    for len in [1, 2, 4096, INLINE_MAX - 1, INLINE_MAX, INLINE_MAX + 1, 1 << 20, max] {
        let payload = pattern(len);
        assert_eq!(call(&mut caller, &payload, PATIENCE).as_ref(), Ok(&payload), "{len} bytes");
    }
}

pub fn a_segment_of_the_callers_goes_to_every_call_unchanged<B: Fixture>() {
    let fixture = B::start();
    let (mut caller, mut another) = (fixture.caller(), fixture.caller());
    for len in [1, INLINE_MAX + 1, 3 * INLINE_MAX + 17] {
        let payload = pattern(len);
        let segment = Segment::copy_of(&payload).unwrap();
        for _ in 0..3 {
            for caller in [&mut caller, &mut another] {
                let sent = send(caller, OutgoingPayload::Segment(&segment), PATIENCE);
                assert!(sent.as_ref() == Ok(&payload), "{len} bytes");
            }
        }
    }
    let large = Segment::copy_of(&pattern(usize::try_from(MAX_PAYLOAD).unwrap() + 1)).unwrap();
    let refused = send(&mut caller, OutgoingPayload::Segment(&large), PATIENCE);
    assert!(matches!(refused, Err(CallError::TooLarge { .. })), "{refused:?}");
}

pub fn payloads_above_the_limit_are_refused_and_the_next_is_served<B: Fixture>() {
    let fixture = B::start();
    let mut caller = fixture.caller();
    let payload = pattern(usize::try_from(MAX_PAYLOAD).unwrap() + 1);
    assert!(matches!(call(&mut caller, &payload, PATIENCE), Err(CallError::TooLarge { .. })));
    assert!(matches!(call(&mut caller, b"b", PATIENCE), Err(CallError::TooLarge { .. })));
    assert_eq!(call(&mut caller, b"e", PATIENCE), Ok(b"e".to_vec()));
}

pub fn bytes_of_every_value_survive<B: Fixture>() {
    let fixture = B::start();
    let mut caller = fixture.caller();
    let mut payload: Vec<u8> = vec![b'r'];
    payload.extend((0..=255).chain((0..=255).rev()));
    let reversed: Vec<u8> = payload.iter().rev().copied().collect();
    assert_eq!(call(&mut caller, &payload, PATIENCE), Ok(reversed));
}

pub fn one_callers_calls_stay_in_order<B: Fixture>() {
    let fixture = B::start();
    let mut caller = fixture.caller();
    for i in 0..500_u32 {
        let payload = format!("e{i}").into_bytes();
        assert_eq!(call(&mut caller, &payload, PATIENCE), Ok(payload));
    }
}

pub fn concurrent_callers_get_their_own_answers<B: Fixture>() {
    let fixture = B::start();
    let callers: Vec<_> = (0..8).map(|i| (i, fixture.caller())).collect();
    std::thread::scope(|scope| {
        for (number, mut caller) in callers {
            scope.spawn(move || {
                for i in 0..50 {
                    let mut payload = format!("e{number}:{i}").into_bytes();
                    if i % 10 == 0 {
                        payload.resize(INLINE_MAX + 10, u8::try_from(number).unwrap());
                    }
                    assert_eq!(call(&mut caller, &payload, PATIENCE), Ok(payload));
                }
            });
        }
    });
}

pub fn an_error_of_the_callee_keeps_its_kind_and_message<B: Fixture>() {
    let fixture = B::start();
    let mut caller = fixture.caller();
    assert_eq!(
        call(&mut caller, b"f", PATIENCE),
        Err(CallError::Failed { message: "no such plate".to_owned() })
    );
    assert_eq!(call(&mut caller, b"e", PATIENCE), Ok(b"e".to_vec()));
}

pub fn a_trap_and_an_overload_are_the_callees_alone<B: Apart>() {
    let fixture = B::start();
    let mut caller = fixture.caller();
    assert_eq!(
        call(&mut caller, b"t", PATIENCE),
        Err(CallError::Trapped { message: "unreachable".to_owned() })
    );
    assert!(matches!(call(&mut caller, b"o", PATIENCE), Err(CallError::Overloaded { .. })));
    assert_eq!(call(&mut caller, b"e", PATIENCE), Ok(b"e".to_vec()));
}

pub fn a_deadline_ends_the_call_and_drops_a_late_answer<B: Apart>() {
    let fixture = B::start();
    let mut caller = fixture.caller();
    let late = BlockedRequests::new(b'w');
    times_out(&mut caller, late.payload());
    times_out(&mut caller, b"n");
    late.release();
    // The late answer comes before one of these.
    for number in 0..20 {
        let payload = format!("e-{number}").into_bytes();
        assert_eq!(call(&mut caller, &payload, PATIENCE), Ok(payload));
    }
}

/// A call that is not answered within its deadline, which is longer where its callee has not accepted it in time.
fn times_out<C: Caller>(caller: &mut C, payload: &[u8]) {
    let mut short = Duration::from_millis(30);
    loop {
        match call(caller, payload, short) {
            Err(CallError::Timeout { .. }) => return,
            Err(CallError::Unreachable { .. }) if short < PATIENCE => short *= 4,
            other => panic!("{other:?} after {short:?}"),
        }
    }
}

pub fn a_killed_callee_is_an_error_at_once_and_then_unreachable<B: Apart>() {
    let mut fixture = B::start();
    let mut caller = fixture.caller();
    assert!(call(&mut caller, b"e", PATIENCE).is_ok());
    let blocked = BlockedRequests::new(b'n');
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| call(&mut caller, blocked.payload(), PATIENCE));
        blocked.until_arrived(1);
        fixture.kill();
        let ended = waiting.join().unwrap();
        assert!(matches!(ended, Err(CallError::Broken { .. })), "{ended:?}");
    });
    let ended = call(&mut caller, b"e", PATIENCE);
    assert!(matches!(ended, Err(CallError::Unreachable { .. })), "{ended:?}");
}

/// Runs in a process of its own: other tests' descriptors would count.
pub fn nothing_leaks<B: Fixture>() {
    let fixture = B::start();
    let mut caller = fixture.caller();
    let big = pattern(INLINE_MAX * 3);
    let round = |caller: &mut B::Caller| {
        for payload in [&b"e"[..], &big, b"f", b"t"] {
            drop(call(caller, payload, PATIENCE));
        }
    };
    for _ in 0..10 {
        round(&mut caller);
    }
    // What a broker's client opens now and then is no leak; one descriptor in thirty rounds would be.
    let allowed = open_descriptors().len() + 3;
    for _ in 0..100 {
        round(&mut caller);
    }
    for _ in 0..50 {
        let mut another = fixture.caller();
        round(&mut another);
    }
    wait_for_closed(allowed);
}

/// Open descriptors of this process.
pub fn open_descriptors() -> Vec<io::Result<PathBuf>> {
    let entries = fs::read_dir("/proc/self/fd").unwrap();
    // One of them is the folder's, which is closed by then.
    entries.map(|entry| fs::read_link(entry.unwrap().path())).collect()
}

/// Waits until at most `allowed` descriptors are open: the callee notices closed connections a moment later.
pub fn wait_for_closed(allowed: usize) {
    let start = Instant::now();
    while open_descriptors().len() > allowed {
        assert!(start.elapsed() < PATIENCE, "{allowed} are allowed: {:?}", open_descriptors());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// One test per case that holds in every mode.
#[macro_export]
macro_rules! conformance {
    ($fixture:ty) => {
        $crate::conformance!(@cases $fixture:
            payloads_of_every_size_arrive_unchanged,
            a_segment_of_the_callers_goes_to_every_call_unchanged,
            payloads_above_the_limit_are_refused_and_the_next_is_served,
            bytes_of_every_value_survive,
            one_callers_calls_stay_in_order,
            concurrent_callers_get_their_own_answers,
            an_error_of_the_callee_keeps_its_kind_and_message,
        );
    };
    (@cases $fixture:ty: $($case:ident),* $(,)?) => {
        $(
            #[test]
            fn $case() {
                $crate::suite::$case::<$fixture>();
            }
        )*
    };
}

/// One test per case of the whole suite, for a callee with a process of its own.
#[macro_export]
macro_rules! apart_conformance {
    ($fixture:ty) => {
        $crate::conformance!($fixture);
        $crate::conformance!(@cases $fixture:
            a_trap_and_an_overload_are_the_callees_alone,
            a_deadline_ends_the_call_and_drops_a_late_answer,
            a_killed_callee_is_an_error_at_once_and_then_unreachable,
        );
    };
}
