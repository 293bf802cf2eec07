//! Groups of parts in a handler of the SDK's: whole, in order, mapped, and nothing of them left behind.

use cwasi_modes::Payload;
use cwasi_sys::segment::Segment;
use cwasi_vm::reactor::{HandlerInput, InstanceBlocks};

use crate::harness::Case;
use crate::regions::counted;
use crate::worker::{Ended, Worker};

/// More than the table of regions holds.
const PARTS: u32 = 500;
/// Groups whose leftovers are counted.
const GROUPS: u32 = 40;
/// Above what is copied.
const LARGE: usize = 70_000;

pub const CASES: &[Case] = &[
    ("parts_are_whole_and_in_order", whole),
    ("five_hundred_mapped_parts_leave_nothing", nothing_accumulates),
    ("nor_do_they_in_a_kept_instance", nothing_accumulates_in_one_instance),
    ("without_parts_the_handler_says_what_it_needs", no_parts),
];

/// A part of its own bytes.
fn part(number: u32, len: usize, segment: bool) -> (u32, Payload) {
    let bytes = bytes(number, len);
    let payload = match segment {
        true => Payload::Segment(Segment::copy_of(&bytes).unwrap()),
        false => Payload::Inline(bytes),
    };
    (number, payload)
}

fn bytes(number: u32, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(31) ^ number as usize).to_le_bytes()[0]).collect()
}

/// The line that the guest writes about a part.
fn line(number: u32, len: usize) -> String {
    let hash = bytes(number, len).iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{number} {len} {hash:016x}\n")
}

fn whole() {
    let mut worker = Worker::new("merger", &[]);
    let sizes =
        [(0, 0, false), (1, LARGE, true), (3, 1, true), (4, 65_536, false), (7, 65_537, true)];
    let parts: Vec<_> =
        sizes.iter().map(|(number, len, segment)| part(*number, *len, *segment)).collect();
    let expected: String = sizes.iter().map(|(number, len, _)| line(*number, *len)).collect();
    let ended = worker.request_parts(9, &parts);
    assert_eq!(ended.text(), format!("{expected}missing 2 5 6 8\n"));
    assert_eq!(worker.request_parts(0, &[]).text(), "missing \n");
    let asks = [(0, Payload::Inline(b"large 3000000".to_vec()))];
    assert!(
        matches!(worker.request_parts(1, &asks), Ended::InPlace(bytes) if bytes.len() == 3_000_000)
    );
    let mapped: Vec<_> = (0..PARTS).map(|number| part(number, LARGE, true)).collect();
    let expected: String = (0..PARTS).map(|number| line(number, LARGE)).collect();
    let answer = worker.request_parts(PARTS, &mapped);
    assert!(answer.bytes() == format!("{expected}missing \n").as_bytes());
}

/// Asks for a small answer: hashing 500 parts in every group would be the test's time.
fn group() -> Vec<(u32, Payload)> {
    let mut parts: Vec<_> = (1..PARTS).map(|number| part(number, LARGE, true)).collect();
    parts.insert(0, (0, Payload::Inline(b"large 10".to_vec())));
    parts
}

fn nothing_accumulates() {
    let mut worker = Worker::new("merger", &[]);
    let parts = group();
    assert_eq!(worker.request_parts(PARTS, &parts).bytes(), b"mmmmmmmmmm");
    let before = counted();
    assert_eq!(before[2], 0, "nothing stays mapped");
    for _ in 0..GROUPS {
        worker.request_parts(PARTS, &parts);
    }
    let after = counted();
    assert_eq!((before[0], before[2]), (after[0], after[2]));
    assert!(after[1] < before[1] + 50, "{before:?} {after:?}");
}

fn nothing_accumulates_in_one_instance() {
    let mut worker = Worker::new("merger", &[]);
    let mut kept = InstanceBlocks::default();
    let parts = group();
    let parts: Vec<_> = parts.iter().map(|(number, payload)| (*number, payload)).collect();
    let mut round = || {
        let input = HandlerInput::Parts { expected: PARTS, parts: &parts };
        assert_eq!(worker.request_kept(&mut kept, input).bytes(), b"mmmmmmmmmm");
    };
    round();
    let before = counted();
    assert_eq!(before[2], 0, "the handler let go of its parts");
    (0..GROUPS).for_each(|_| round());
    let after = counted();
    assert_eq!((before[0], before[2]), (after[0], after[2]));
    assert!(after[1] < before[1] + 50, "{before:?} {after:?}");
}

fn no_parts() {
    let ended = Worker::new("merger", &[]).request(b"a payload");
    let Ended::Failed(message) = ended else { panic!("{ended:?}") };
    assert!(message.contains("needs the annotation cwasi.fan-in"), "{message}");
}
