//! Tests of received segments: whose they are, what is in them, and when they are free.

use std::fs::File;
use std::os::unix::fs::FileExt;

use nix::sys::stat::fstat;
use proptest::prelude::*;

use super::*;

const MAX: u64 = 8 << 20;
const READERS: [&str; 3] = ["one", "two", "three"];

fn fill(taken: &mut TakenSegment, byte: u8, most: usize) {
    let room = taken.unfilled(most);
    room.fill(byte);
    let count = room.len();
    taken.advance(count);
}

fn receive(pools: &ReceivePools, reader: &str, byte: u8, len: usize) -> Option<Segment> {
    let mut taken = pools.take(reader, len as u64)?;
    while !taken.is_full() {
        fill(&mut taken, byte, 300_000);
    }
    let segment = taken.lend().unwrap();
    assert_eq!(segment.len(), len as u64);
    Some(segment)
}

fn inode(segment: &Segment) -> u64 {
    fstat(segment.as_fd()).unwrap().st_ino
}

fn descriptor(segment: &Segment) -> File {
    File::from(segment.as_fd().try_clone_to_owned().unwrap())
}

/// All bytes of a memfd, whatever was lent of it.
fn all(file: &File) -> Vec<u8> {
    let mut bytes = vec![1; usize::try_from(file.metadata().unwrap().len()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// The values in `bytes`, some of them often. Long runs of one are compared at once, which is fast without optimization.
fn values(bytes: &[u8]) -> Vec<u8> {
    let is_one = |part: &[u8]| part[1..] == part[..part.len() - 1];
    let of_part = |part: &[u8]| if is_one(part) { part[..1].to_vec() } else { part.to_vec() };
    bytes.chunks(4096).flat_map(of_part).collect()
}

#[test]
fn a_segment_stays_with_its_reader() {
    let pools = ReceivePools::new(MAX);
    let first = receive(&pools, "one", 1, 100_000).unwrap();
    let (number, kept) = (inode(&first), descriptor(&first));
    drop(first);
    let of_other = receive(&pools, "two", 2, 100_000).unwrap();
    assert_ne!(inode(&of_other), number);
    assert!(all(&kept)[..100_000] == [1; 100_000], "another's payload");
    assert_eq!(inode(&receive(&pools, "one", 3, 90_000).unwrap()), number);
}

#[test]
fn the_reader_of_a_kept_descriptor_cannot_change_what_comes() {
    let pools = ReceivePools::new(MAX);
    let first = receive(&pools, "one", 1, 100_000).unwrap();
    let kept = descriptor(&first);
    drop(first);
    let second = receive(&pools, "one", 2, 100_000).unwrap();
    assert_eq!(inode(&second), fstat(&kept).unwrap().st_ino);
    assert!(kept.write_at(b"x", 0).is_err() && kept.set_len(1).is_err());
    assert!(second.to_vec().unwrap() == [2; 100_000]);
}

#[test]
fn free_segments_of_others_make_room() {
    let pools = ReceivePools::new(MAX);
    let whole = usize::try_from(MAX).unwrap();
    let lent = receive(&pools, "one", 1, whole).unwrap();
    assert!(pools.take("two", 70_000).is_none() && pools.take("one", 70_000).is_none());
    assert!(pools.take("two", 0).is_none() && pools.take("two", u64::MAX).is_none());
    drop(lent);
    assert!(receive(&pools, "two", 2, 70_000).is_some());
    assert_eq!(pools.bytes(), 128 << 10);
    let broken_off = pools.take("two", MAX - (128 << 10)).unwrap();
    assert_eq!(pools.bytes(), MAX, "one that is filled counts");
    drop(broken_off);
    assert!(receive(&pools, "three", 3, whole).is_some());
}

#[test]
fn what_is_passed_on_is_not_received_into_again() {
    let pools = ReceivePools::new(MAX);
    let first = receive(&pools, "one", 1, 100_000).unwrap();
    let kept = descriptor(&first);
    drop(first.pass_on().unwrap());
    drop(first);
    let second = receive(&pools, "one", 2, 100_000).unwrap();
    assert!(all(&kept)[..100_000] == [1; 100_000]);
    assert_eq!(pools.bytes(), 128 << 10, "the first does not count");
    drop(second);
}

#[test]
fn idle_segments_are_freed() {
    let pools = ReceivePools::new(MAX);
    let lent = receive(&pools, "one", 1, 100_000).unwrap();
    drop(receive(&pools, "one", 2, 100_000).unwrap());
    assert!(pools.begin_maintenance() && !pools.begin_maintenance());
    let now = monotonic_ns();
    assert!(pools.maintain(now) && pools.bytes() == 256 << 10);
    assert!(pools.maintain(now + 2 * IDLE_NS) && pools.bytes() == 128 << 10, "one is lent");
    drop(lent);
    assert!(!pools.maintain(now + 2 * IDLE_NS) && pools.bytes() == 0);
    assert!(pools.begin_maintenance());
}

/// One thing that happens in a shim or to a reader.
#[derive(Clone, Debug)]
enum Step {
    /// A payload arrives for this reader.
    Receive(usize, usize),
    /// One of this length breaks off after so many bytes.
    BreakOff(usize, usize, usize),
    /// The reader of a payload has done with it; it keeps the descriptor.
    Drop(usize),
    PassOn(usize),
    Idle,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (len, reader) = (
        || prop_oneof![9 => 1_usize..300_000, 1 => (2_usize << 20)..(3 << 20)],
        || 0..READERS.len(),
    );
    let step = prop_oneof![
        4 => (reader(), len()).prop_map(|(reader, len)| Step::Receive(reader, len)),
        1 => (reader(), len(), any::<prop::sample::Index>())
            .prop_map(|(reader, len, part)| Step::BreakOff(reader, len, part.index(len))),
        3 => (0_usize..8).prop_map(Step::Drop),
        1 => (0_usize..8).prop_map(Step::PassOn),
        1 => Just(Step::Idle),
    ];
    prop::collection::vec(step, 1..32)
}

/// A payload that has readers.
struct Held {
    reader: usize,
    segment: Segment,
    byte: u8,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Who once had a segment sees in it what was received for the same reader, and what was passed on stays as it is.
    /// A payload that has readers is its own bytes and zeros. Bounds hold.
    #[test]
    fn no_reader_sees_what_is_another_readers(steps in steps()) {
        let pools = ReceivePools::new(MAX);
        let mut held: Vec<Held> = Vec::new();
        let mut kept: Vec<(usize, File)> = Vec::new();
        let mut passed_on: Vec<(File, Vec<u8>)> = Vec::new();
        // Whom each byte was received for.
        let mut owners = [None; 256];
        for (byte, step) in (1_u8..).zip(steps) {
            match step {
                Step::Receive(reader, len) => {
                    owners[usize::from(byte)] = Some(reader);
                    if let Some(segment) = receive(&pools, READERS[reader], byte, len) {
                        kept.push((reader, descriptor(&segment)));
                        held.push(Held { reader, segment, byte });
                    }
                }
                Step::BreakOff(reader, len, part) => {
                    owners[usize::from(byte)] = Some(reader);
                    if let Some(mut taken) = pools.take(READERS[reader], len as u64) {
                        fill(&mut taken, byte, part);
                    }
                }
                Step::Drop(index) if index < held.len() => drop(held.swap_remove(index)),
                Step::PassOn(index) if index < held.len() => {
                    let Held { segment, .. } = &held[index];
                    let file = descriptor(&segment.pass_on().unwrap());
                    let bytes = all(&file);
                    passed_on.push((file, bytes));
                }
                Step::Drop(_) | Step::PassOn(_) => {}
                Step::Idle => drop(pools.maintain(monotonic_ns() + 2 * IDLE_NS)),
            }
            for Held { reader, segment, byte } in &held {
                prop_assert_eq!(owners[usize::from(*byte)], Some(*reader));
                let (all, len) = (all(&descriptor(segment)), usize::try_from(segment.len()).unwrap());
                prop_assert!(all[..len] == vec![*byte; len], "another payload's bytes");
                prop_assert!(all[len..] == vec![0; all.len() - len], "old bytes");
            }
            for (reader, file) in &kept {
                let foreign = |byte: &u8| *byte != 0 && owners[usize::from(*byte)] != Some(*reader);
                prop_assert!(!values(&all(file)).iter().any(foreign), "another reader's payload");
            }
            for (file, bytes) in &passed_on {
                prop_assert!(all(file) == *bytes, "a later payload");
            }
            let state = pools.state();
            let sum: usize = state.readers.values().map(|reader| {
                reader.free.iter().map(|it| it.len()).sum::<usize>()
                    + reader.lent.iter().map(|it| it.len()).sum::<usize>()
            }).sum();
            prop_assert_eq!(sum, state.bytes);
            prop_assert!(state.bytes as u64 <= MAX && state.segments <= SEGMENTS_MAX);
        }
        held.clear();
        prop_assert!(!pools.maintain(monotonic_ns() + 2 * IDLE_NS));
        prop_assert_eq!((pools.bytes(), pools.state().readers.len()), (0, 0));
    }
}
