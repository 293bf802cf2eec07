//! What thousands of requests with large payloads and answers leave in a worker: nothing.

use std::fs;

use cwasi_modes::Payload;
use cwasi_modes::pool::SegmentPool;
use cwasi_sys::segment::Segment;
use cwasi_vm::reactor::InstanceBlocks;

use crate::harness::Case;
use crate::worker::{Ended, Worker};

/// Requests whose leftovers are counted.
const REQUESTS: usize = 3000;
/// Above what is copied.
const LARGE: usize = 200_000;

pub const CASES: &[Case] = &[
    ("large_payloads_and_answers_leave_nothing", nothing_accumulates),
    ("nor_do_they_in_an_instance_that_is_kept", nothing_accumulates_in_one_instance),
    ("nor_do_leases", no_lease_accumulates),
    ("a_handler_of_vectors_gets_its_segment_as_one", vectors),
    ("an_answer_in_a_region_is_whole", answers),
    ("nor_does_it_need_huge_pages", without_huge_pages),
];

/// Descriptors, mappings, and mappings of memfds.
pub fn counted() -> [usize; 3] {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    // wasmtime maps a module's data from one.
    let is_ours = |line: &&str| line.contains("memfd:") && !line.contains("wasm-memory-image");
    let memfds = maps.lines().filter(is_ours).count();
    [fs::read_dir("/proc/self/fd").unwrap().count(), maps.lines().count(), memfds]
}

fn nothing_accumulates() {
    let mut worker = Worker::new("reader", &[]);
    let payload = Payload::Segment(Segment::copy_of(&vec![7; LARGE]).unwrap());
    let mut round = || {
        assert!(worker.request_with(&payload).bytes().starts_with(LARGE.to_string().as_bytes()));
        assert_eq!(worker.request(LARGE.to_string().as_bytes()).bytes().len(), LARGE);
    };
    // Instances are renewed from the third of a kind on, with a descriptor for that.
    (0..3).for_each(|_| round());
    let before = counted();
    assert_eq!(before[2], 0, "nothing stays mapped between requests");
    for _ in 0..REQUESTS / 2 {
        round();
    }
    let after = counted();
    assert_eq!((before[0], before[2]), (after[0], after[2]));
    // The heap of this process may take a mapping or two more; a leak would be thousands.
    assert!(after[1] < before[1] + 50, "{before:?} {after:?}");
}

/// A request's memory must not stay in an instance that goes on.
fn nothing_accumulates_in_one_instance() {
    let mut worker = Worker::new("reader", &[]);
    let mut kept = InstanceBlocks::default();
    let mut round = |len: usize| {
        let payload = Payload::Segment(Segment::copy_of(&vec![7; len]).unwrap());
        let ended = worker.request_kept(&mut kept, &payload);
        assert!(ended.bytes().starts_with(len.to_string().as_bytes()));
        let wanted = Payload::Inline(len.to_string().into_bytes());
        assert_eq!(worker.request_kept(&mut kept, &wanted).bytes().len(), len);
        // Replaces the answer, which stays where it is until then.
        assert!(
            worker.request_kept(&mut kept, &Payload::Inline(b"?".repeat(20))).bytes().len() > 2
        );
    };
    round(LARGE);
    let before = counted();
    assert_eq!(before[2], 0, "nothing stays mapped between requests");
    for number in 0..REQUESTS / 3 {
        round(LARGE + number * 1000);
    }
    let after = counted();
    assert_eq!((before[0], before[2]), (after[0], after[2]));
    assert!(after[1] < before[1] + 50, "{before:?} {after:?}");
}

/// As [`nothing_accumulates`], with a pool: that is all that is left, and it can be given back.
fn no_lease_accumulates() {
    let pool = SegmentPool::new(64 << 20);
    let mut worker = Worker::new("reader", &[]);
    worker.spec_mut().pool = Some(pool.clone());
    let bytes = vec![7; 3_000_000];
    let mut round = |number: usize| {
        let len = LARGE + number * 900;
        let payload = Payload::Segment(pool.copy_of(&bytes[..len]).unwrap());
        let expected = format!("{len} ");
        assert!(worker.request_with(&payload).bytes().starts_with(expected.as_bytes()));
        assert_eq!(worker.request(len.to_string().as_bytes()).bytes().len(), len);
    };
    (0..3).for_each(&mut round);
    assert!(pool.trim());
    let (before, memory) = (counted(), shared_memory());
    for number in 0..REQUESTS / 2 {
        round(number);
        assert!(pool.bytes() <= 64 << 20);
    }
    assert!(pool.trim(), "something stays lent");
    let after = counted();
    assert_eq!((before[0], before[2], memory), (after[0], after[2], shared_memory()));
    assert!(after[1] < before[1] + 50, "{before:?} {after:?}");
}

/// What this process maps of memfds, as the kernel counts it.
fn shared_memory() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    status.lines().find(|line| line.starts_with("RssShmem:")).unwrap().to_owned()
}

fn vectors() {
    let bytes: Vec<u8> = (0..LARGE).map(|n| u8::try_from(n % 251).unwrap()).collect();
    let payload = Payload::Segment(Segment::copy_of(&bytes).unwrap());
    let ended = Worker::new("actor", &["reverse"]).request_with(&payload);
    assert!(ended.bytes().iter().rev().eq(bytes.iter()));
    let ended = Worker::new("actor", &["chain", "reverse"]).request_with(&payload);
    assert!(ended.bytes().iter().rev().eq(bytes.iter()));
}

/// As on a kernel that gives memfds no huge pages.
fn without_huge_pages() {
    let of_this_process = nix::sys::prctl::set_thp_disable(true);
    of_this_process.expect("transparent huge pages can be turned off");
    answers();
    let taken = || {
        let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
        smaps.lines().filter(|line| line.contains("PmdMapped:") && !line.contains(" 0 kB")).count()
    };
    let mut worker = Worker::new("reader", &[]);
    let payload = Payload::Segment(Segment::copy_of(&vec![7; 5_000_000]).unwrap());
    assert!(worker.request_with(&payload).bytes().starts_with(b"5000000 "));
    assert_eq!(taken(), 0);
}

fn answers() {
    let mut worker = Worker::new("reader", &[]);
    for (len, in_place) in
        [(0, false), (1, false), (65_536, false), (65_537, true), (5_000_000, true)]
    {
        let ended = worker.request(len.to_string().as_bytes());
        assert_eq!(matches!(ended, Ended::InPlace(_)), in_place, "{len}");
        let expected = |at: usize| (at.wrapping_mul(31) ^ (at >> 8) ^ (at >> 17)).to_le_bytes()[0];
        assert_eq!(ended.bytes().len(), len);
        assert!(ended.bytes().iter().enumerate().all(|(at, byte)| *byte == expected(at)));
    }
}
