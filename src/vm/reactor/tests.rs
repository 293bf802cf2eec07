//! Tests of the protocol against a scripted guest that lies.

use cwasi_abi::{HUGE_PAGE, INLINE_MAX, PAYLOAD_ALIGN, REGION_PAGE};

use super::*;
use crate::engine::GuestStop;
use cwasi_host_functions::{Context, Dispatch, Level, LogSink};
use cwasi_modes::{CallResult, OutgoingPayload};
use cwasi_sys::clock::Deadline;
use cwasi_sys::segment::Segment;
use proptest::prelude::*;

/// A guest whose exports return what the test says.
struct Scripted {
    memory: Vec<u8>,
    allocs: Vec<u32>,
    /// Lengths and alignments of `cwasi_alloc`.
    asked: Vec<(u32, u32)>,
    huge: bool,
    response: ResponseRef,
    status: Result<i32, GuestStop>,
    handled: Option<(u32, u32)>,
    memory_max: Option<u64>,
}

impl Scripted {
    fn new() -> Self {
        Self {
            memory: vec![0; 1024],
            allocs: vec![8, 64],
            asked: Vec::new(),
            huge: false,
            response: ResponseRef { ptr: 64, len: 3 },
            status: Ok(0),
            handled: None,
            memory_max: None,
        }
    }
}

impl Instance for Scripted {
    fn memory_max(&self) -> Option<u64> {
        self.memory_max
    }

    fn call(
        &mut self,
        export: &str,
        params: &[i32],
        _: &mut Host,
    ) -> Result<Option<i32>, GuestStop> {
        if export == export::ALLOC {
            self.asked.push((params[0].cast_unsigned(), params[1].cast_unsigned()));
            return Ok(Some(self.allocs.remove(0).cast_signed()));
        }
        assert_eq!(export, export::HANDLE);
        self.handled = Some((params[0].cast_unsigned(), params[1].cast_unsigned()));
        let at = usize::try_from(params[2]).unwrap();
        self.memory[at..at + 4].copy_from_slice(&self.response.ptr.to_le_bytes());
        self.memory[at + 4..at + 8].copy_from_slice(&self.response.len.to_le_bytes());
        self.status.clone().map(Some)
    }

    fn aligns_huge_pages(&self) -> bool {
        self.huge
    }

    fn memory(&self) -> &[u8] {
        &self.memory
    }

    fn memory_mut(&mut self) -> &mut [u8] {
        &mut self.memory
    }
}

struct Nothing;

impl Dispatch for Nothing {
    fn call(&mut self, _: &str, _: OutgoingPayload<'_>, _: Option<Deadline>) -> CallResult {
        unreachable!("the scripted guest makes no calls")
    }
}

impl LogSink for Nothing {
    fn log(&mut self, _: Level, _: &Context, _: &str) {}
}

/// [`HandlerOutcome`] without the borrow.
#[derive(Debug, PartialEq)]
enum Ended {
    Answered(Vec<u8>),
    Failed(String),
    Exited(u32),
    Trapped(Trap),
}

fn run(guest: &mut Scripted, payload: &[u8]) -> Ended {
    run_with(guest, &Payload::Inline(payload.to_vec()))
}

fn run_with(guest: &mut Scripted, payload: &Payload) -> Ended {
    let mut host = Host::new(Context::default(), Box::new(Nothing), Box::new(Nothing));
    match handle(guest, payload, &mut host) {
        HandlerOutcome::Answered(bytes) => Ended::Answered(bytes.to_vec()),
        HandlerOutcome::InPlace(segment) => Ended::Answered(segment.to_vec().unwrap()),
        HandlerOutcome::Returned(payload) => Ended::Answered(payload.into_vec().unwrap()),
        HandlerOutcome::Failed(message) => Ended::Failed(message),
        HandlerOutcome::Exited(code) => Ended::Exited(code),
        HandlerOutcome::Trapped(trap) => Ended::Trapped(trap),
        HandlerOutcome::Undeliverable(reason) => panic!("{reason}"),
    }
}

fn trapped(ended: Ended) -> String {
    match ended {
        Ended::Trapped(trap) => trap.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn payload_in_response_out() {
    let mut guest = Scripted::new();
    assert_eq!(run(&mut guest, b"abc"), Ended::Answered(b"abc".to_vec()));
    assert_eq!(guest.handled, Some((64, 3)));
}

#[test]
fn an_empty_payload_needs_no_block() {
    let mut guest = Scripted { allocs: vec![8], ..Scripted::new() };
    guest.response = ResponseRef { ptr: 0, len: 0 };
    assert_eq!(run(&mut guest, b""), Ended::Answered(Vec::new()));
    assert_eq!(guest.handled, Some((0, 0)));
}

#[test]
fn a_status_is_the_handlers_error() {
    let mut guest = Scripted { status: Ok(1), ..Scripted::new() };
    assert_eq!(run(&mut guest, b"bad"), Ended::Failed("bad".into()));
    let mut guest = Scripted { status: Ok(-1), ..Scripted::new() };
    guest.response.len = 0;
    assert_eq!(
        run(&mut guest, b"bad"),
        Ended::Failed("the handler failed without a message".into())
    );
}

#[test]
fn no_memory_is_an_error_of_the_call() {
    let mut guest = Scripted { allocs: vec![8, 0], ..Scripted::new() };
    let Ended::Failed(message) = run(&mut guest, b"abc") else { panic!("not failed") };
    assert!(message.contains("no memory in the guest for 3 bytes"), "{message}");
    assert!(!message.contains("cwasi.memory"), "nothing limits it: {message}");
    let mut guest = Scripted { allocs: vec![8, 0], memory_max: Some(65_536), ..Scripted::new() };
    let Ended::Failed(message) = run(&mut guest, b"abc") else { panic!("not failed") };
    assert!(message.ends_with("cwasi.memory allows 65536"), "{message}");
}

#[test]
fn a_segment_is_copied_into_whatever_block_the_guest_has() {
    let bytes = vec![7; INLINE_MAX + 1];
    // The block that was asked for first; then one of a guest that has no pages.
    for (allocs, at) in [(vec![8, 64], 64), (vec![8, 0, 101], 101)] {
        let payload = Payload::Segment(Segment::copy_of(&bytes).unwrap());
        let mut guest = Scripted { allocs, memory: vec![0; 2 * INLINE_MAX], ..Scripted::new() };
        guest.response = ResponseRef { ptr: at, len: u32::try_from(bytes.len()).unwrap() };
        assert_eq!(run_with(&mut guest, &payload), Ended::Answered(bytes.clone()));
        assert_eq!(guest.handled, Some((at, guest.response.len)));
    }
}

#[test]
fn a_place_is_asked_for_where_huge_pages_can_be_then_anywhere() {
    let len = 2 * HUGE_PAGE + 1;
    let bytes = vec![7; len as usize];
    let wanted = |huge| {
        let payload = Payload::Segment(Segment::copy_of(&bytes).unwrap());
        let mut guest = Scripted { allocs: vec![8, 0, 0, 64], huge, ..Scripted::new() };
        if !huge {
            guest.allocs.pop();
            guest.allocs[2] = 64;
        }
        guest.memory = vec![0; bytes.len() + 64];
        guest.response.len = 1;
        assert_eq!(run_with(&mut guest, &payload), Ended::Answered(vec![7]));
        guest.asked.split_off(1)
    };
    let pages = 2 * HUGE_PAGE + REGION_PAGE;
    let anywhere = [(pages, REGION_PAGE), (len, PAYLOAD_ALIGN)];
    assert_eq!(wanted(true), [&[(pages, HUGE_PAGE)][..], &anywhere].concat());
    assert_eq!(wanted(false), anywhere);
}

/// Preallocates a block as long as `seen` needed, then runs `payload`.
fn run_ahead(guest: &mut Scripted, seen: u64, payload: &[u8]) -> (Ended, InstanceBlocks) {
    let mut host = Host::new(Context::default(), Box::new(Nothing), Box::new(Nothing));
    let (mut kept, mut ahead) = (InstanceBlocks::default(), Preallocation::within(None));
    ahead.learn(seen);
    prepare(guest, &mut kept, ahead, &mut host).unwrap();
    let payload = Payload::Inline(payload.to_vec());
    let ended = match handle_again(guest, &mut kept, &payload, &mut host) {
        HandlerOutcome::Answered(bytes) => Ended::Answered(bytes.to_vec()),
        HandlerOutcome::Failed(message) => Ended::Failed(message),
        other => panic!("{other:?}"),
    };
    (ended, kept)
}

#[test]
fn a_place_that_was_asked_for_ahead_takes_one_payload_that_fits() {
    let mut guest = Scripted::new();
    let (ended, mut kept) = run_ahead(&mut guest, 60, b"abc");
    assert_eq!(ended, Ended::Answered(b"abc".to_vec()));
    assert_eq!(guest.asked, [(8, 4), (64, 1)]);
    assert_eq!(
        (guest.handled, kept.needed(), kept.needs_fresh_instance()),
        (Some((64, 3)), 3, None)
    );
    // It is the guest's now.
    guest.allocs = vec![128];
    let mut host = Host::new(Context::default(), Box::new(Nothing), Box::new(Nothing));
    let payload = Payload::Inline(b"abc".to_vec());
    drop(handle_again(&mut guest, &mut kept, &payload, &mut host));
    assert_eq!((guest.asked.last(), guest.handled), (Some(&(3, 1)), Some((128, 3))));
}

#[test]
fn a_payload_that_does_not_fit_may_need_a_fresh_instance() {
    let long = [7; 65];
    let mut guest = Scripted { allocs: vec![8, 64, 128], ..Scripted::new() };
    let (_, kept) = run_ahead(&mut guest, 60, &long);
    assert_eq!(guest.asked, [(8, 4), (64, 1), (65, 1)]);
    assert_eq!(
        (guest.handled, kept.needed(), kept.needs_fresh_instance()),
        (Some((128, 65)), 65, None)
    );
    let mut guest = Scripted { allocs: vec![8, 64, 0], ..Scripted::new() };
    let (ended, kept) = run_ahead(&mut guest, 60, &long);
    assert!(matches!(ended, Ended::Failed(_)) && guest.handled.is_none());
    assert_eq!(kept.needs_fresh_instance(), Some(65));
    // There was no block for it.
    let mut guest = Scripted { allocs: vec![8, 0, 0], ..Scripted::new() };
    let (ended, kept) = run_ahead(&mut guest, 60, &long);
    assert!(matches!(ended, Ended::Failed(_)) && kept.needs_fresh_instance().is_none());
}

#[test]
fn lies_about_pointers_are_traps() {
    let mut guest = Scripted { allocs: vec![1020], ..Scripted::new() };
    assert!(trapped(run(&mut guest, b"abc")).contains("outside its linear memory"));
    let mut guest = Scripted { allocs: vec![8, u32::MAX], ..Scripted::new() };
    assert!(trapped(run(&mut guest, b"abc")).contains("trap in `cwasi_alloc`"));
    for (ptr, len) in [(1024, 1), (u32::MAX, u32::MAX), (1, u32::MAX), (0, 1025)] {
        let mut guest = Scripted { response: ResponseRef { ptr, len }, ..Scripted::new() };
        assert!(trapped(run(&mut guest, b"abc")).contains("trap in `cwasi_handle`"));
    }
}

#[test]
fn exits_and_traps_end_the_invocation() {
    let mut guest = Scripted { status: Err(GuestStop::Exited(3)), ..Scripted::new() };
    assert_eq!(run(&mut guest, b"abc"), Ended::Exited(3));
    let trap = Trap { export: "cwasi_handle".into(), reason: "unreachable".into() };
    let mut guest = Scripted { status: Err(GuestStop::Trapped(trap.clone())), ..Scripted::new() };
    assert_eq!(run(&mut guest, b"abc"), Ended::Trapped(trap));
}

proptest! {
    #[test]
    fn any_guest_gives_a_result(
        out: u32, block: u32, ptr: u32, len: u32, status in -2..3_i32, small: bool,
    ) {
        let [block, ptr, len] = [block, ptr, len].map(|n| if small { n % 1100 } else { n });
        let out = if small { out % 1017 } else { out };
        let mut guest = Scripted {
            allocs: vec![out, block],
            response: ResponseRef { ptr, len },
            status: Ok(status),
            ..Scripted::new()
        };
        let _result = run(&mut guest, b"payload");
    }
}
