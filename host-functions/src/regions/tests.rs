//! Tests of regions over a fake memory: refusals, sent bytes, mapped pages.

use proptest::prelude::*;

use cwasi_abi::REGION_PAGE;

use super::*;
use crate::fake::{FakeMemory, host};
use crate::region_calls::{region_info, region_release, region_seal, region_share};
use crate::{Context, GuestMemory, Host};

const PAGE: u32 = REGION_PAGE;
/// Pages of the memory.
const PAGES: u32 = 64;
/// Fewest pages whose bytes are not copied.
const LARGE: u32 = 17;

struct Fixture {
    host: Host,
    memory: FakeMemory,
    regions: Regions<FakeMemory>,
}

impl Fixture {
    fn new() -> Self {
        let memory = FakeMemory::of((PAGES * PAGE) as usize);
        Self { host: host(), memory, regions: Regions::default() }
    }

    fn share(&mut self, ptr: u32, len: u32) -> Result<(), Errno> {
        let regions = Some(&mut self.regions);
        region_share(&mut self.host, &mut self.memory, regions, GuestPtr(ptr), len)
    }

    fn release(&mut self, ptr: u32, len: u32) -> Result<(), Errno> {
        let regions = Some(&mut self.regions);
        region_release(&mut self.host, &mut self.memory, regions, GuestPtr(ptr), len)
    }

    fn fill(&mut self, page: u32, pages: u32, byte: u8) {
        self.memory.slice_mut(GuestPtr(page * PAGE), pages * PAGE).unwrap().fill(byte);
    }

    fn seal(&mut self, ptr: u32, len: u32) -> Result<(), Errno> {
        let regions = Some(&mut self.regions);
        region_seal(&mut self.host, &mut self.memory, regions, GuestPtr(ptr), len)
    }

    /// The bytes that are sent instead of a copy.
    fn send(&self, ptr: u32, len: u32) -> Option<Vec<u8>> {
        self.regions.sealed(GuestPtr(ptr), u64::from(len)).map(|segment| segment.to_vec().unwrap())
    }
}

#[test]
fn other_pages_are_an_errno() {
    let mut fixture = Fixture::new();
    let end = PAGES * PAGE;
    for (ptr, len, expected) in [
        (0, 0, Errno::InvalidArgument),
        (1, PAGE, Errno::InvalidArgument),
        (PAGE, PAGE - 1, Errno::InvalidArgument),
        (end, PAGE, Errno::BadPointer),
        (end - PAGE, 2 * PAGE, Errno::BadPointer),
        (u32::MAX - PAGE + 1, PAGE, Errno::BadPointer),
    ] {
        assert_eq!(fixture.share(ptr, len), Err(expected), "{ptr} {len}");
        assert_eq!(fixture.release(ptr, len), Err(expected), "{ptr} {len}");
    }
    assert_eq!(fixture.share(4 * PAGE, 4 * PAGE), Ok(()));
    for (page, pages) in [(3, 2), (7, 1), (4, 3), (3, 6), (5, 1)] {
        assert_eq!(fixture.share(page * PAGE, pages * PAGE), Err(Errno::InvalidArgument), "{page}");
        assert_eq!(
            fixture.release(page * PAGE, pages * PAGE),
            Err(Errno::InvalidArgument),
            "{page}"
        );
    }
    assert_eq!(fixture.share(3 * PAGE, PAGE), Ok(()));
    assert_eq!(fixture.share(8 * PAGE, PAGE), Ok(()));
    assert_eq!(fixture.release(4 * PAGE, 4 * PAGE), Ok(()));
    assert_eq!(fixture.share(5 * PAGE, 3 * PAGE), Ok(()));
}

#[test]
fn regions_are_bounded() {
    let mut fixture = Fixture::new();
    fixture.memory = FakeMemory::of((REGIONS_MAX + 1) * PAGE as usize);
    let last = u32::try_from(REGIONS_MAX).unwrap() * PAGE;
    for at in (0..last).step_by(PAGE as usize) {
        assert_eq!(fixture.share(at, PAGE), Ok(()));
    }
    assert_eq!(fixture.share(last, PAGE), Err(Errno::TooManyHandles));
    assert_eq!(fixture.share(0, PAGE), Ok(()), "one that there is already");
    assert_eq!(fixture.release(0, PAGE), Ok(()));
    assert_eq!(fixture.share(last, PAGE), Ok(()));
}

#[test]
fn a_module_without_regions_is_told_so() {
    let mut memory = FakeMemory::of(2 * PAGE as usize);
    let mut host = host();
    let shared = region_share(&mut host, &mut memory, None, GuestPtr(0), PAGE);
    assert_eq!(shared, Err(Errno::NotAvailable));
    let released = region_release(&mut host, &mut memory, None, GuestPtr(0), PAGE);
    assert_eq!(released, Err(Errno::NotAvailable));
    memory.bytes_mut().fill(9);
    region_info(&mut memory, None, GuestPtr(0)).unwrap();
    assert_eq!(memory.bytes()[..17], [&[0; 16][..], &[9]].concat());
    let out = GuestPtr(2 * PAGE - 15);
    assert_eq!(region_info(&mut memory, None, out), Err(Errno::BadPointer));
    region_info(&mut memory, Some(&mut Regions::default()), GuestPtr(0)).unwrap();
    let field = |at: usize| u32::from_le_bytes(memory.bytes()[at..at + 4].try_into().unwrap());
    assert_eq!([field(0), field(4), field(8), field(12)], [PAGE, 2 << 20, 1 << 20, 0]);
}

#[test]
fn the_bytes_as_sealed_are_sent() {
    let mut fixture = Fixture::new();
    let len = LARGE * PAGE - 7;
    fixture.share(0, 20 * PAGE).unwrap();
    fixture.fill(0, 20, 1);
    assert_eq!(fixture.send(0, len), None, "an open region is copied");
    for wrong in [0, 20 * PAGE + 1] {
        assert_eq!(fixture.seal(0, wrong), Err(Errno::InvalidArgument));
    }
    assert_eq!(fixture.seal(PAGE, PAGE), Err(Errno::InvalidArgument), "not a region's start");
    assert_eq!(fixture.seal(0, u32::MAX), Err(Errno::BadPointer));
    assert_eq!(fixture.seal(0, len), Ok(()));
    assert_eq!(fixture.seal(0, len), Err(Errno::InvalidArgument), "sealed already");
    fixture.fill(0, LARGE, 2);
    assert_eq!(fixture.send(0, len), Some(vec![1; len as usize]));
    for (ptr, other) in [(0, len + 1), (0, len - 1), (PAGE, len), (0, 1)] {
        assert_eq!(fixture.send(ptr, other), None, "{other} bytes at {ptr} are copied");
    }
    assert!(
        fixture.memory.slice(GuestPtr(LARGE * PAGE), 3 * PAGE).unwrap().iter().all(|b| *b == 0)
    );
    fixture.share(0, 20 * PAGE).unwrap();
    assert_eq!(fixture.send(0, len), None, "open again");
    fixture.release(0, 20 * PAGE).unwrap();
    assert_eq!(fixture.seal(0, len), Err(Errno::InvalidArgument));
}

#[test]
fn an_answer_is_sealed_when_its_guest_has_not_done_it() {
    let len = LARGE * PAGE;
    for sealed_before in [true, false] {
        let mut fixture = Fixture::new();
        fixture.share(0, len).unwrap();
        fixture.fill(0, LARGE, 3);
        if sealed_before {
            fixture.seal(0, len).unwrap();
        }
        let mut take = |ptr, len| {
            let answer = fixture.regions.answer(&mut fixture.memory, GuestPtr(ptr), len).unwrap();
            answer.map(|segment| segment.to_vec().unwrap())
        };
        assert!(take(0, len + 1).is_none());
        assert!(take(PAGE, len - PAGE).is_none());
        assert!(take(0, len) == Some(vec![3; len as usize]));
        assert!(take(0, len - 1).is_none(), "sealed with another length");
        assert!(take(0, len).is_some());
    }
}

#[test]
fn small_payloads_are_copied_wherever_they_lie() {
    let mut fixture = Fixture::new();
    let small = u32::try_from(INLINE_MAX).unwrap();
    fixture.share(0, LARGE * PAGE).unwrap();
    fixture.seal(0, small).unwrap();
    assert_eq!(fixture.send(0, small), None);
    fixture.share(0, LARGE * PAGE).unwrap();
    fixture.seal(0, small + 1).unwrap();
    assert!(fixture.send(0, small + 1).is_some());
}

#[test]
fn segments_are_mapped_only_where_there_is_room() {
    let mut fixture = Fixture::new();
    fixture.share(20 * PAGE, PAGE).unwrap();
    fixture.host.begin(Context::default());
    let mut source = FakeMemory::of((LARGE * PAGE) as usize);
    let len = LARGE * PAGE - 1;
    source.bytes_mut().fill(5);
    let sealed = source.seal(Pages::new(GuestPtr(0), LARGE * PAGE).unwrap(), (), len).unwrap();
    let map = |fixture: &mut Fixture, ptr: u32, room: u32| {
        let at = (GuestPtr(ptr), room);
        fixture.regions.map(&mut fixture.memory, at, &sealed, MapTarget::Own)
    };
    assert!(!map(&mut fixture, 0, len), "room ends before the page does");
    assert!(!map(&mut fixture, 8, LARGE * PAGE), "not at the start of a page");
    assert!(!map(&mut fixture, PAGE * 4, LARGE * PAGE), "a region is there");
    assert!(!map(&mut fixture, PAGE * 50, LARGE * PAGE), "outside");
    assert!(map(&mut fixture, PAGE, 19 * PAGE));
    assert!(fixture.memory.slice(GuestPtr(PAGE), len).unwrap().iter().all(|byte| *byte == 5));
    assert!(map(&mut fixture, PAGE, 19 * PAGE), "the same pages again");
    assert!(!map(&mut fixture, 2 * PAGE, LARGE * PAGE), "some of them are in use");
    assert_eq!(fixture.memory.slice(GuestPtr(PAGE + len), 1), Ok(&[0][..]));
    assert_eq!(fixture.seal(PAGE, len - 1), Err(Errno::InvalidArgument), "not the guest's");
    assert_eq!(fixture.send(PAGE, len), None, "the guest may have changed it");
    let answer = fixture.regions.answer(&mut fixture.memory, GuestPtr(PAGE), len).unwrap();
    assert!(answer.is_none(), "the guest may have changed it");
    fixture.fill(1, 1, 9);
    assert_eq!(fixture.seal(PAGE, len), Err(Errno::InvalidArgument), "the guest has changed it");
    assert_eq!(fixture.send(PAGE, len), None, "and so it is copied");
    fixture.fill(1, 1, 5);
    assert_eq!(fixture.seal(PAGE, len), Ok(()));
    fixture.fill(1, 1, 9);
    assert!(fixture.send(PAGE, len) == Some(vec![5; len as usize]), "as it was sealed");
    assert!(fixture.regions.answer(&mut fixture.memory, GuestPtr(PAGE), len).unwrap().is_some());
    assert_eq!(
        fixture.seal(PAGE, len),
        Err(Errno::InvalidArgument),
        "changed before it was sealed again"
    );
    assert_eq!(fixture.send(PAGE, len), None);
    assert_eq!(fixture.release(PAGE, LARGE * PAGE), Ok(()));
    assert_eq!(fixture.memory.slice(GuestPtr(PAGE), 1), Ok(&[0][..]));
    assert_eq!(fixture.release(PAGE, LARGE * PAGE), Err(Errno::InvalidArgument));
}

#[test]
fn parts_are_mapped_into_one_block_and_released_with_it() {
    let mut fixture = Fixture::new();
    fixture.share(50 * PAGE, PAGE).unwrap();
    let mut source = FakeMemory::of((LARGE * PAGE) as usize);
    source.bytes_mut().fill(5);
    let len = LARGE * PAGE - 1;
    let sealed = source.seal(Pages::new(GuestPtr(0), LARGE * PAGE).unwrap(), (), len).unwrap();
    let map = |fixture: &mut Fixture, (page, pages): (u32, u32), offsets: &[u32]| {
        let parts = offsets.iter().map(|at| (*at, &sealed));
        let block = (GuestPtr(page * PAGE), pages * PAGE);
        fixture.regions.map_parts(&mut fixture.memory, block, parts)
    };
    let second = (1 + LARGE) * PAGE;
    assert_eq!(map(&mut fixture, (40, 20), &[0]), 0, "a region is there");
    assert_eq!(map(&mut fixture, (60, 40), &[0]), 0, "outside");
    assert_eq!(map(&mut fixture, (2, 40), &[]), 0);
    assert_eq!(map(&mut fixture, (2, 1 + LARGE), &[PAGE, second]), 1, "no room for the second");
    assert_eq!(map(&mut fixture, (2, 1 + LARGE), &[7]), 0, "not at the start of a page");
    assert_eq!(fixture.release(2 * PAGE, (1 + LARGE) * PAGE), Ok(()));
    assert_eq!(map(&mut fixture, (2, 40), &[PAGE, second]), 2);
    for start in [3 * PAGE, 2 * PAGE + second] {
        let bytes = fixture.memory.slice(GuestPtr(start), len + 1).unwrap();
        assert!(bytes[..len as usize].iter().all(|byte| *byte == 5) && bytes[len as usize] == 0);
    }
    assert_eq!(fixture.share(3 * PAGE, PAGE), Err(Errno::InvalidArgument), "the block is in use");
    assert_eq!(fixture.release(3 * PAGE, LARGE * PAGE), Err(Errno::InvalidArgument));
    assert_eq!(fixture.release(2 * PAGE, 40 * PAGE), Ok(()), "as a whole");
    assert!(fixture.memory.slice(GuestPtr(2 * PAGE), 40 * PAGE).unwrap().iter().all(|b| *b == 0));
}

/// One thing that a guest does.
#[derive(Clone, Debug)]
enum Step {
    Share(u32, u32),
    Release(u32, u32),
    Fill(u32, u32, u8),
    Seal(u32, u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Few places, so that steps meet.
    let place = || (0..4_u32).prop_map(|quarter| quarter * PAGES / 4);
    let pages = move || (place(), 1_u32..40).prop_map(|(at, len)| (at, len.min(PAGES - at)));
    let step = prop_oneof![
        pages().prop_map(|(at, len)| Step::Share(at, len)),
        pages().prop_map(|(at, len)| Step::Release(at, len)),
        (pages(), 1_u8..).prop_map(|((at, len), byte)| Step::Fill(at, len, byte)),
        (place(), 0_u32..40 * PAGE).prop_map(|(at, len)| Step::Seal(at, len)),
    ];
    proptest::collection::vec(step, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever a guest does, what is sent is what lay there when it was sealed.
    #[test]
    fn sent_bytes_are_the_sealed_ones(steps in steps()) {
        let mut fixture = Fixture::new();
        let mut sealed: Vec<(u32, Vec<u8>)> = Vec::new();
        for step in steps {
            match step {
                Step::Share(at, len) => {
                    if fixture.share(at * PAGE, len * PAGE).is_ok() {
                        sealed.retain(|(start, _)| *start != at);
                    }
                }
                Step::Release(at, len) => {
                    if fixture.release(at * PAGE, len * PAGE).is_ok() {
                        sealed.retain(|(start, _)| *start != at);
                    }
                }
                Step::Fill(at, len, byte) => fixture.fill(at, len, byte),
                Step::Seal(at, len) => {
                    let now = fixture.memory.slice(GuestPtr(at * PAGE), len).map(<[u8]>::to_vec);
                    if fixture.seal(at * PAGE, len).is_ok() {
                        sealed.push((at, now.unwrap()));
                    }
                }
            }
            for (at, bytes) in &sealed {
                let large = (bytes.len() > INLINE_MAX).then_some(bytes);
                let len = u32::try_from(bytes.len()).unwrap();
                let sent = fixture.send(at * PAGE, len);
                prop_assert!(sent.as_ref() == large, "{} bytes at {}", len, at);
            }
            let known: Vec<Pages> = fixture.regions.known.iter().map(|region| region.pages).collect();
            for (index, pages) in known.iter().enumerate() {
                prop_assert!(known[index + 1..].iter().all(|other| !other.overlap(*pages)));
            }
        }
    }
}
