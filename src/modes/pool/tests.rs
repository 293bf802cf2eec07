//! Tests of the pool: leases, their return, and the contents of segments.
#![expect(unsafe_code, reason = "writes as a guest does")]

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use nix::sys::stat::fstat;
use proptest::prelude::*;

use super::*;

const MAX: u64 = 16 << 20;

fn pool() -> SegmentPool {
    SegmentPool::new(MAX)
}

fn inode(segment: &Segment) -> u64 {
    fstat(segment.as_fd()).unwrap().st_ino
}

fn fd(segment: &Segment) -> OwnedFd {
    segment.as_fd().try_clone_to_owned().unwrap()
}

/// All bytes of a memfd, whatever was lent of it.
fn all(memfd: OwnedFd) -> Vec<u8> {
    let file = File::from(memfd);
    let mut bytes = vec![1; usize::try_from(file.metadata().unwrap().len()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// As a guest does it through pages of its own.
fn write(taken: &PooledSegment, at: usize, bytes: &[u8]) {
    assert!(at + bytes.len() <= taken.len);
    let start = taken.segment().unwrap().start();
    // SAFETY:
    // - inside the mapping, and no other code uses it.
    unsafe { start.byte_add(at).as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
}

fn taken(pool: &SegmentPool, len: usize) -> PooledSegment {
    pool.take(NonZeroUsize::new(len).unwrap()).unwrap()
}

#[test]
fn segments_return_with_their_last_token() {
    let pool = pool();
    let first = pool.copy_of(&[7; 100_000]).unwrap();
    let number = inode(&first);
    let holder =
        Segment::accept_leased(fd(&first), 100_000, first.token().unwrap().try_clone().unwrap())
            .unwrap();
    drop(first);
    let second = pool.copy_of(&[8; 100_000]).unwrap();
    assert_ne!(inode(&second), number, "the first is still read");
    assert!(holder.to_vec().unwrap() == [7; 100_000]);
    drop(holder);
    let third = pool.copy_of(&[9; 90_000]).unwrap();
    assert_eq!(inode(&third), number);
    assert_eq!(pool.bytes(), 2 * (128 << 10));
    assert!(third.to_vec().unwrap() == [9; 90_000]);
    assert!(
        all(fd(&third))[90_000..].iter().all(|byte| *byte == 0),
        "the first one's bytes are left"
    );
}

#[test]
fn free_segments_are_evicted_for_room() {
    let pool = pool();
    let whole = usize::try_from(MAX).unwrap();
    assert!(pool.copy_of(&vec![1; whole + 1]).is_none());
    assert!(pool.copy_of(b"").is_none());
    let lent = pool.copy_of(&vec![1; whole]).unwrap();
    assert!(pool.copy_of(&[1; 70_000]).is_none(), "all of it is lent");
    assert!(pool.take(NonZeroUsize::MAX).is_none());
    drop(lent);
    let many: Vec<Segment> = (0..).map_while(|_| pool.copy_of(&[1; 70_000])).collect();
    assert_eq!(many.len(), SEGMENTS_MAX);
    assert!(pool.bytes() <= MAX);
    drop(many);
    assert!(pool.trim() && pool.bytes() == 0);
}

#[test]
fn take_needs_lending() {
    let pool = pool();
    pool.set_lending(false);
    assert!(pool.take(NonZeroUsize::MIN).is_none());
    pool.set_lending(true);
    assert!(pool.take(NonZeroUsize::MIN).is_some());
}

#[test]
fn forfeited_segments_leave_the_pool() {
    let pool = pool();
    let taken = taken(&pool, 1 << 20);
    write(&taken, 5, b"x");
    taken.forfeit();
    assert_eq!(pool.bytes(), 0);
}

#[test]
fn maintenance_clears_returned_segments_until_interrupted() {
    let pool = pool();
    assert_eq!(pool.maintenance_due(), None, "it is empty");
    let segment = pool.copy_of(&vec![7; 8 << 20]).unwrap();
    let memfd = fd(&segment);
    let bytes = || all(memfd.try_clone().unwrap());
    let used = monotonic_ns();
    let due = || pool.maintenance_due().unwrap();
    assert!(due() <= used + RECYCLE_NS);
    pool.maintain(due() - 1, || panic!("nothing is due"));
    pool.maintain(due(), || panic!("it is lent"));
    let waits: Vec<u64> = (0..3)
        .map(|_| {
            let before = due();
            pool.maintain(before, || panic!("it is lent"));
            due() - before
        })
        .collect();
    assert!(waits.is_sorted_by(|a, b| a < b), "polled less and less often: {waits:?}");
    drop(segment);
    let before = due();
    pool.maintain(before, || true);
    assert!(bytes().iter().all(|byte| *byte == 7), "work comes first");
    assert_eq!(due(), before, "and then it is still due");
    pool.maintain(before, || false);
    assert!(bytes().iter().all(|byte| *byte == 0));
    assert!(due() > before);
}

#[test]
fn idle_pools_are_freed() {
    let pool = pool();
    let lent = pool.copy_of(&[7; 100_000]).unwrap();
    drop(pool.copy_of(&[7; 100_000]).unwrap());
    let used = pool.state().used;
    // A busy worker does the maintenance whenever it waits.
    let mut now = used;
    while now < used + IDLE_NS {
        pool.maintain(now, || false);
        assert_eq!(pool.bytes(), 2 * (128 << 10));
        assert!(pool.maintenance_due().unwrap() <= used + IDLE_NS);
        now += IDLE_NS / 100;
    }
    pool.maintain(now, || false);
    assert_eq!(pool.bytes(), 128 << 10, "one is lent");
    drop(lent);
    let due = pool.maintenance_due().unwrap();
    assert!(due <= now + IDLE_NS);
    pool.maintain(due, || false);
    assert_eq!((pool.bytes(), pool.maintenance_due()), (0, None));
}

/// As many as a busy function makes in an hour.
#[test]
fn many_leases_leave_nothing() {
    let pool = pool();
    let bytes = vec![7; 70_000];
    drop(pool.copy_of(&bytes).unwrap());
    let before = descriptors();
    let rounds = if cfg!(debug_assertions) { 20_000 } else { 1_000_000 };
    for round in 0..rounds {
        let len = 65_537 + round % 4_000;
        let segment = pool.copy_of(&bytes[..len]).unwrap();
        let token = segment.token().unwrap().try_clone().unwrap();
        // Every other peer lies about the length.
        let announced = len as u64 + (round % 2) as u64 * MAX;
        assert_eq!(Segment::accept_leased(fd(&segment), announced, token).is_ok(), round % 2 == 0);
    }
    assert_eq!(pool.bytes(), 128 << 10, "one segment does for all");
    // Other tests run beside this one.
    assert!(descriptors() < before + 1000);
}

/// One thing that a worker does.
#[derive(Clone, Debug)]
enum Step {
    /// Takes a segment of this length, writes to all of it, and lends the first part.
    Make(usize, usize),
    /// Copies this many bytes.
    Copy(usize),
    /// Lets go of a lease.
    Drop(usize),
    Recycle,
    Trim,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let len = || prop_oneof![1_usize..300_000, (2_usize << 20)..(3 << 20)];
    let step = prop_oneof![
        (len(), any::<proptest::sample::Index>())
            .prop_map(|(len, part)| Step::Make(len, part.index(len) + 1)),
        len().prop_map(Step::Copy),
        (0_usize..8).prop_map(Step::Drop),
        Just(Step::Recycle),
        Just(Step::Trim),
    ];
    proptest::collection::vec(step, 1..24)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Segments are zero when taken; a lease contains its own bytes and no others; bounds hold.
    #[test]
    fn leases_contain_their_own_bytes_only(steps in steps()) {
        let pool = pool();
        let mut held: Vec<(Segment, Vec<u8>)> = Vec::new();
        for (number, step) in (1_u8..).zip(steps) {
            match step {
                Step::Make(len, part) => {
                    if let Some(taken) = pool.take(NonZeroUsize::new(len).unwrap()) {
                        let memfd = taken.segment().unwrap().as_fd().try_clone_to_owned().unwrap();
                        prop_assert!(all(memfd).iter().all(|byte| *byte == 0), "taken with old bytes");
                        write(&taken, 0, &vec![number; len]);
                        held.push((taken.lend(part).unwrap(), vec![number; part]));
                    }
                }
                Step::Copy(len) => {
                    if let Some(segment) = pool.copy_of(&vec![number; len]) {
                        held.push((segment, vec![number; len]));
                    }
                }
                Step::Drop(index) if index < held.len() => drop(held.swap_remove(index)),
                Step::Drop(_) => {}
                Step::Recycle => assert!(pool.recycle(|| false)),
                Step::Trim => drop(pool.trim()),
            }
            for (segment, bytes) in &held {
                let all = all(fd(segment));
                prop_assert!(all[..bytes.len()] == *bytes);
                prop_assert!(all[bytes.len()..].iter().all(|byte| *byte == 0));
            }
            let state = pool.state();
            let sum: usize = state.free.iter().map(|segment| segment.len()).sum::<usize>()
                + state.lent.iter().map(|lent| lent.len()).sum::<usize>();
            prop_assert_eq!(sum, state.bytes);
            prop_assert_eq!(state.free.len() + state.lent.len(), state.segments);
            prop_assert!(state.bytes as u64 <= MAX && state.segments <= SEGMENTS_MAX);
        }
        held.clear();
        prop_assert!(pool.trim() && pool.bytes() == 0);
    }
}
