//! Regions in the engine's real memory: what a guest sees, what is sent, what remains.

use std::cell::RefCell;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use cwasi_abi::{INLINE_MAX, REGION_PAGE};
use nix::sys::stat::fstat;

use super::embedding::{embed, load_embedding};
use super::*;
use cwasi_modes::pool::SegmentPool;
use cwasi_sys::huge;

const PAGE: i32 = REGION_PAGE.cast_signed();
/// A region of the tests: above what is copied anyway.
const PAGES: i32 = 20;
const AT: i32 = 65_536;
const LEN: i32 = PAGES * PAGE - 100;

/// Hands the host functions through, and reads and writes as a guest does.
const GUEST: &str = include_str!("regions.wat");

/// What a call received: the memfd, when it was not copied, and the bytes.
type Call = (Option<Segment>, Vec<u8>);

/// Answers every call with a segment of the same bytes, and keeps what came.
#[derive(Clone, Default)]
struct Keeps(Rc<RefCell<Vec<Call>>>);

impl Dispatch for Keeps {
    fn call(&mut self, _: &str, payload: OutgoingPayload<'_>, _: Option<Deadline>) -> CallResult {
        let bytes = copied(payload);
        let segment = match payload {
            OutgoingPayload::Bytes(_) => None,
            OutgoingPayload::Segment(segment) => Some(accept(segment)),
        };
        let answer = Segment::copy_of(&bytes).unwrap();
        self.0.borrow_mut().push((segment, bytes));
        Ok(Payload::Segment(answer))
    }
}

/// As a callee takes it.
fn accept(segment: &Segment) -> Segment {
    let fd = segment.as_fd().try_clone_to_owned().unwrap();
    match segment.token() {
        Some(token) => {
            Segment::accept_leased(fd, segment.len(), token.try_clone().unwrap()).unwrap()
        }
        None => Segment::accept(fd, segment.len()).unwrap(),
    }
}

fn inode(of: &Segment) -> u64 {
    fstat(of.as_fd()).unwrap().st_ino
}

/// How many of this process' mappings map the memfd.
fn mappings(of: &Segment) -> usize {
    let inode = fstat(of.as_fd()).unwrap().st_ino.to_string();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .filter(|line| {
            line.contains("memfd:") && line.split_whitespace().nth(4) == Some(inode.as_str())
        })
        .count()
}

struct Vm {
    instance: AnyInstance,
    host: Host,
    kept: Keeps,
    _built: Built,
}

impl Vm {
    fn new() -> Self {
        Self::with(GUEST, None)
    }

    /// One whose regions come from `pool`.
    fn with(guest: &str, pool: Option<&SegmentPool>) -> Self {
        let built = build(guest);
        let module = load(&built).unwrap();
        let kept = Keeps::default();
        let mut host = Host::new(Context::default(), Box::new(kept.clone()), Box::new(Echo));
        host.begin(Context::default());
        let spec = InstanceSpec { pool: pool.cloned(), ..InstanceSpec::default() };
        let instance = module.instantiate(&spec, &mut host).unwrap();
        Self { instance, host, kept, _built: built }
    }

    fn run(&mut self, export: &str, params: &[i32]) -> i32 {
        self.instance.call(export, params, &mut self.host).unwrap().unwrap_or(0)
    }

    /// Calls `echo`; what it got.
    fn send(&mut self, ptr: i32, len: i32) -> Call {
        assert_eq!(self.run("call", &[ptr, len]), 0);
        self.kept.0.borrow_mut().pop().unwrap()
    }
}

fn sevens(len: i32) -> Vec<u8> {
    vec![7; usize::try_from(len).unwrap()]
}

#[test]
fn a_sealed_region_is_sent_to_each_callee_as_it_was() {
    let _turn = one_at_a_time();
    let mut vm = Vm::new();
    vm.run("fill", &[AT, PAGES * PAGE, 5]);
    assert_eq!(vm.run("share", &[AT, PAGES * PAGE]), 0);
    assert_eq!(vm.run("sum", &[AT, PAGES * PAGE]), 0, "shared memory is fresh");
    vm.run("fill", &[AT, PAGES * PAGE, 7]);
    let (segment, bytes) = vm.send(AT, LEN);
    assert!(segment.is_none() && bytes == sevens(LEN), "an open region is copied");
    assert_eq!(vm.run("seal", &[AT, LEN]), 0);
    let first = vm.send(AT, LEN).0.unwrap();
    assert!(first.to_vec().unwrap() == sevens(LEN) && mappings(&first) == 1);
    vm.run("fill", &[AT, LEN, 9]);
    let second = vm.send(AT, LEN).0.unwrap();
    assert_eq!(inode(&first), inode(&second));
    assert!(second.to_vec().unwrap() == sevens(LEN));
    assert_eq!(vm.run("sum", &[AT, PAGES * PAGE]), 9 * LEN, "its own copy, zero behind the end");
    let (segment, bytes) = vm.send(AT, LEN - 1);
    assert!(segment.is_none() && bytes[0] == 9, "another length is copied as it is now");
    // Memory grows behind shared pages, and they stay.
    assert_eq!(vm.run("grow", &[16]), 32);
    vm.run("fill", &[40 * 65_536, 65_536, 1]);
    assert_eq!(vm.run("sum", &[40 * 65_536, 65_536]), 65_536);
    assert!(vm.send(AT, LEN).0.unwrap().to_vec().unwrap() == sevens(LEN));
    assert_eq!(vm.run("release", &[AT, PAGES * PAGE]), 0);
    assert_eq!((vm.run("sum", &[AT, PAGES * PAGE]), mappings(&first)), (0, 0));
    assert_eq!(vm.run("share", &[AT, PAGES * PAGE]), 0);
    vm.run("fill", &[AT, PAGES * PAGE, 3]);
    assert_eq!(vm.run("seal", &[AT, LEN]), 0);
    let third = vm.send(AT, LEN).0.unwrap();
    assert_eq!(mappings(&third), 1);
    drop(vm);
    assert_eq!(mappings(&third), 0, "mappings go with the instance");
    assert!(first.to_vec().unwrap() == sevens(LEN), "what was sent stays");
}

#[test]
fn a_response_is_mapped_where_the_guest_wants_it() {
    let _turn = one_at_a_time();
    let mut vm = Vm::new();
    // Page-aligned with room for whole pages; one byte off; room that ends before the page does.
    for (at, room, errno) in
        [(AT, PAGES * PAGE, 0), (AT + 1, LEN, 0), (AT, LEN, 0), (AT, LEN - 1, 14)]
    {
        let source = 16 * 65_536;
        vm.run("fill", &[source, LEN, 7]);
        vm.send(source, LEN);
        vm.run("fill", &[AT, PAGES * PAGE, 5]);
        assert_eq!(vm.run("read", &[at, room]), errno, "{at} {room}");
        if errno == 0 {
            assert_eq!(vm.run("sum", &[at, LEN]), 7 * LEN);
            vm.run("fill", &[at, LEN, 1]);
            assert_eq!(vm.run("sum", &[at, LEN]), LEN, "the guest's own from here on");
        }
    }
    // A region is never covered: it would be sealed with another's bytes.
    assert_eq!(vm.run("share", &[AT, PAGES * PAGE]), 0);
    vm.send(16 * 65_536, LEN);
    assert_eq!(vm.run("read", &[AT, PAGES * PAGE]), 0);
    assert_eq!(vm.run("seal", &[AT, LEN]), 0);
    assert!(vm.send(AT, LEN).0.unwrap().to_vec().unwrap() == sevens(LEN));
}

#[test]
fn a_payload_is_mapped_and_an_answer_taken_in_place() {
    let _turn = one_at_a_time();
    let built = build(GUEST);
    let module = load(&built).unwrap();
    let mut host = host();
    let segment = Segment::copy_of(&sevens(LEN)).unwrap();
    let payload = Payload::Segment(segment.clone());
    for _ in 0..3 {
        let mut instance = module.instantiate(&InstanceSpec::default(), &mut host).unwrap();
        let HandlerOutcome::Answered(sum) = reactor::handle(&mut instance, &payload, &mut host)
        else {
            panic!("no answer")
        };
        assert_eq!((sum, mappings(&segment)), (&(7 * LEN).to_le_bytes()[..], 1));
    }
    assert!(segment.to_vec().unwrap() == sevens(LEN) && mappings(&segment) == 0);
    let mut instance = module.instantiate(&InstanceSpec::default(), &mut host).unwrap();
    let empty = Payload::Inline(Vec::new());
    let HandlerOutcome::InPlace(answer) = reactor::handle(&mut instance, &empty, &mut host) else {
        panic!("copied")
    };
    let answer = Segment::accept(answer.as_fd().try_clone_to_owned().unwrap(), 81_820).unwrap();
    assert!(answer.to_vec().unwrap() == sevens(81_820));
}

#[test]
fn the_pages_that_a_guest_is_told_of_are_the_hosts() {
    let _turn = one_at_a_time();
    let mut vm = Vm::new();
    assert_eq!(vm.run("info", &[128]), 0);
    let memory = vm.instance.memory();
    let field = |at: usize| u32::from_le_bytes(memory[at..at + 4].try_into().unwrap());
    let phase = u32::try_from(memory.as_ptr().addr() % (2 << 20)).unwrap();
    assert_eq!([field(128), field(132), field(136), field(140)], [4096, 2 << 20, phase, 0]);
}

#[test]
fn bad_regions_are_errnos() {
    let _turn = one_at_a_time();
    let mut vm = Vm::new();
    let end = 32 * 65_536;
    for (export, ptr, len, errno) in [
        ("share", 1, PAGE, Errno::InvalidArgument),
        ("share", 0, 0, Errno::InvalidArgument),
        ("share", 0, PAGE + 1, Errno::InvalidArgument),
        ("share", end, PAGE, Errno::BadPointer),
        ("share", end - PAGE, 2 * PAGE, Errno::BadPointer),
        ("share", -PAGE, PAGE, Errno::BadPointer),
        ("seal", AT, PAGE, Errno::InvalidArgument),
        ("seal", end, 1, Errno::BadPointer),
        ("release", AT, PAGE, Errno::InvalidArgument),
    ] {
        assert_eq!(vm.run(export, &[ptr, len]), errno.code(), "{export} {ptr} {len}");
    }
    assert_eq!(vm.run("info", &[end - 15]), Errno::BadPointer.code());
    // Where the module initializes memory, wasmtime gives the next instance what is there now.
    let first = if TESTED == Kind::Wasmtime { PAGE } else { 0 };
    let on_data = if first == 0 { Errno::Ok } else { Errno::NotAvailable };
    assert_eq!(vm.run("share", &[0, PAGE]), on_data.code());
    let released = if first == 0 { Errno::Ok } else { Errno::InvalidArgument };
    assert_eq!(vm.run("release", &[0, PAGE]), released.code());
    // All of it can be one region; nothing fits beside it.
    assert_eq!(vm.run("share", &[first, end - first]), 0);
    assert_eq!(vm.run("share", &[AT, PAGE]), Errno::InvalidArgument.code());
    assert_eq!(vm.run("grow", &[1]), 32);
    assert_eq!(vm.run("share", &[end, 65_536]), 0);
}

/// Then `cwasi` is a trampoline, which hands most functions through and asks the host about the rest.
#[test]
fn a_function_that_embeds_others_has_regions_too() {
    let _turn = one_at_a_time();
    let (callee, root) = (
        build(GUEST),
        build(&GUEST.replacen("(memory", r#"(func (export "cwasi.home")) (memory"#, 1)),
    );
    let module = load_embedding(&root, &[embed("callee", &callee, true)]).unwrap();
    let kept = Keeps::default();
    let mut host = Host::new(Context::default(), Box::new(kept.clone()), Box::new(Echo));
    host.begin(Context::default());
    let instance = module.instantiate(&InstanceSpec::default(), &mut host).unwrap();
    let mut vm = Vm { instance, host, kept, _built: root };
    assert_eq!(vm.run("share", &[AT, PAGES * PAGE]), 0);
    vm.run("fill", &[AT, LEN, 7]);
    assert_eq!(vm.run("seal", &[AT, LEN]), 0);
    assert!(vm.send(AT, LEN).0.unwrap().to_vec().unwrap() == sevens(LEN));
    assert_eq!(vm.run("read", &[AT + PAGES * PAGE, PAGES * PAGE]), 0);
    assert_eq!(vm.run("sum", &[AT + PAGES * PAGE, LEN]), 7 * LEN);
}

#[test]
fn small_regions_are_copied() {
    let _turn = one_at_a_time();
    let mut vm = Vm::new();
    let small = i32::try_from(INLINE_MAX).unwrap();
    assert_eq!(vm.run("share", &[AT, PAGES * PAGE]), 0);
    assert_eq!(vm.run("seal", &[AT, small]), 0);
    assert!(vm.send(AT, small).0.is_none());
}

/// Bytes that fill huge pages go in such from the guest that makes them to the guest that gets them.
#[test]
fn large_regions_travel_in_huge_pages() {
    let _turn = one_at_a_time();
    for pool in [None, Some(&SegmentPool::new(64 << 20))] {
        travels_in_huge_pages(pool);
    }
}

/// Bytes of `file` that this process maps by huge pages now.
fn mapped_huge(file: &impl AsFd) -> usize {
    let inode = fstat(file).unwrap().st_ino.to_string();
    let mut ours = false;
    let mut found = 0;
    for line in std::fs::read_to_string("/proc/self/smaps").unwrap().lines() {
        let mut words = line.split_whitespace();
        match words.next().unwrap_or_default() {
            "ShmemPmdMapped:" if ours => {
                found += words.next().unwrap().parse::<usize>().unwrap() << 10;
            }
            name if name.ends_with(':') => {}
            _range => ours = line.contains("memfd:") && words.nth(3) == Some(inode.as_str()),
        }
    }
    found
}

fn travels_in_huge_pages(pool: Option<&SegmentPool>) {
    let size = i32::try_from(huge::HUGE_PAGE).unwrap();
    let (small, large) = ("(memory (export \"memory\") 32)", "(memory (export \"memory\") 256)");
    let mut vm = Vm::with(&GUEST.replacen(small, large, 1), pool);
    assert!(vm.instance.aligns_huge_pages());
    let (at, len) = (2 * size, 3 * size);
    // The pool keeps a mapping of its own. A kernel without huge pages for memfds maps small ones.
    let kept = pool.map_or(0, |_| 3);
    let available = huge::are_available();
    let huge_pages = |pages: usize| if available { (pages + kept) * huge::HUGE_PAGE } else { 0 };
    let mapped = |sent: &Segment| mapped_huge(&sent.as_fd());
    assert_eq!(vm.run("share", &[at, len]), 0);
    vm.run("fill", &[at, len, 1]);
    assert_eq!(vm.run("seal", &[at, len]), 0);
    let sent = vm.send(at, len).0.unwrap();
    assert_eq!(vm.run("sum", &[at, len]), len);
    assert_eq!(mapped(&sent), huge_pages(3));
    // A write takes one small page of its own, and what was sent stays.
    vm.run("fill", &[at, 1, 9]);
    assert_eq!(vm.run("sum", &[at, len]), len + 8);
    assert_eq!(mapped(&sent), huge_pages(2));
    // The guest's allocator is asked for a block where a huge page begins.
    let module = load(&vm._built).unwrap();
    let mut callee = module.instantiate(&InstanceSpec::default(), &mut vm.host).unwrap();
    let payload = Payload::Segment(sent.clone());
    let HandlerOutcome::Answered(sum) = reactor::handle(&mut callee, &payload, &mut vm.host) else {
        panic!("no answer")
    };
    assert_eq!(sum, &len.to_le_bytes()[..]);
    // It has written to its first byte since.
    assert_eq!(mapped(&sent), huge_pages(4));
}

/// A lease ends with its last mapping: a region, a payload, a response. Then its segment is used again, and zero.
#[test]
fn leases_end_with_what_shows_them() {
    let _turn = one_at_a_time();
    let pool = SegmentPool::new(1 << 20);
    let room = pool.bytes();
    let mut vm = Vm::with(GUEST, Some(&pool));
    assert_eq!(vm.run("share", &[AT, PAGES * PAGE]), 0);
    vm.run("fill", &[AT, PAGES * PAGE, 7]);
    assert_eq!(vm.run("seal", &[AT, LEN]), 0);
    let sent = vm.send(AT, LEN).0.unwrap();
    assert!(sent.token().is_some() && sent.to_vec().unwrap() == sevens(LEN));
    // The caller's own view, and the callee's, are both private.
    vm.run("fill", &[AT, LEN, 9]);
    assert_eq!(vm.run("grow", &[16]), 32);
    let one = pool.bytes();
    assert!(one > room);
    // A callee maps it; the caller lets go of it first.
    let built = build(GUEST);
    let module = load(&built).unwrap();
    let mut host = host();
    let mut callee = module.instantiate(&InstanceSpec::default(), &mut host).unwrap();
    let payload = Payload::Segment(sent);
    let HandlerOutcome::Answered(sum) = reactor::handle(&mut callee, &payload, &mut host) else {
        panic!("no answer")
    };
    assert_eq!(sum, &(7 * LEN).to_le_bytes()[..]);
    drop(payload);
    assert_eq!(vm.run("release", &[AT, PAGES * PAGE]), 0);
    assert_eq!(vm.run("share", &[AT, PAGES * PAGE]), 0);
    assert_eq!(pool.bytes(), 2 * one, "the callee still maps the first");
    assert_eq!(vm.run("release", &[AT, PAGES * PAGE]), 0);
    drop(callee);
    assert_eq!(vm.run("share", &[AT, PAGES * PAGE]), 0);
    let again = vm.run("sum", &[AT, PAGES * PAGE]);
    assert_eq!((again, pool.bytes()), (0, 2 * one));
    vm.run("fill", &[AT, PAGES * PAGE, 5]);
    assert_eq!(vm.run("seal", &[AT, LEN]), 0);
    let other = vm.send(AT, LEN).0.unwrap();
    // A response that is mapped keeps its token too.
    assert!(other.to_vec().unwrap().iter().all(|byte| *byte == 5));
    drop((vm, other));
    for _ in 0..2 {
        drop(pool.copy_of(&sevens(LEN)).unwrap());
    }
    assert_eq!(pool.bytes(), 2 * one, "everything is free");
    // A compiler that another test forks has the tokens until it calls exec.
    let until = Instant::now() + Duration::from_secs(10);
    while !pool.trim() {
        assert!(Instant::now() < until, "a token is open");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What came goes on as the memory that it is, when the guest says so.
#[test]
fn a_response_goes_on_as_it_came() {
    let _turn = one_at_a_time();
    for pool in [None, Some(SegmentPool::new(1 << 20))] {
        let mut vm = Vm::with(GUEST, pool.as_ref());
        vm.run("fill", &[16 * 65_536, LEN, 7]);
        vm.send(16 * 65_536, LEN);
        assert_eq!(vm.run("read", &[AT, PAGES * PAGE]), 0);
        assert!(vm.send(AT, LEN).0.is_none(), "it may have been changed");
        assert_eq!(vm.run("seal", &[AT, LEN]), 0);
        let first = vm.send(AT, LEN).0.unwrap();
        vm.run("fill", &[AT, LEN, 9]);
        let second = vm.send(AT, LEN).0.unwrap();
        assert_eq!(inode(&first), inode(&second));
        assert!(second.to_vec().unwrap() == sevens(LEN), "what the guest wrote is its own");
        assert_eq!(vm.run("sum", &[AT, LEN]), 9 * LEN);
        assert_eq!(vm.run("release", &[AT, PAGES * PAGE]), 0);
        assert!(vm.send(AT, LEN).0.is_none());
    }
}

/// Above what is copied, one changed byte anywhere is enough: the bytes that are sent are those that the guest sees.
#[test]
fn a_changed_payload_is_copied_when_it_is_sent() {
    let _turn = one_at_a_time();
    let source = 16 * 65_536;
    for pool in [None, Some(SegmentPool::new(1 << 20))] {
        for at in [0, LEN / 2, LEN - 1] {
            let mut vm = Vm::with(GUEST, pool.as_ref());
            vm.run("fill", &[source, LEN, 7]);
            vm.send(source, LEN);
            assert_eq!(vm.run("read", &[AT, PAGES * PAGE]), 0);
            assert_eq!(vm.run("sum", &[AT, LEN]), 7 * LEN);
            vm.run("fill", &[AT + at, 1, 9]);
            assert_eq!(vm.run("seal", &[AT, LEN]), Errno::InvalidArgument.code(), "{at}");
            let (segment, bytes) = vm.send(AT, LEN);
            let mut expected = sevens(LEN);
            expected[usize::try_from(at).unwrap()] = 9;
            assert!(segment.is_none() && bytes == expected, "{at}");
            // Neither do others see it that were sealed before.
            assert_eq!(vm.run("read", &[AT, PAGES * PAGE]), 0);
            assert_eq!(vm.run("seal", &[AT, LEN]), 0);
            assert!(vm.send(AT, LEN).0.unwrap().to_vec().unwrap() == expected);
        }
    }
}

/// The handler of an open region ends; what it wrote is lost.
#[test]
fn an_open_region_goes_back_with_its_instance() {
    let _turn = one_at_a_time();
    let pool = SegmentPool::new(1 << 20);
    for _ in 0..20 {
        let mut vm = Vm::with(GUEST, Some(&pool));
        assert_eq!(vm.run("share", &[AT, PAGES * PAGE]), 0);
        assert_eq!(vm.run("sum", &[AT, PAGES * PAGE]), 0);
        vm.run("fill", &[AT, PAGES * PAGE, 7]);
    }
    assert_eq!(pool.bytes(), 128 << 10, "one after the other had the same");
    assert!(pool.trim());
}

/// Beyond the pool's bound regions are as without one.
#[test]
fn a_pool_that_is_used_up_leaves_sealed_segments() {
    let _turn = one_at_a_time();
    let pool = SegmentPool::new(100_000);
    let mut vm = Vm::with(GUEST, Some(&pool));
    for at in [AT, AT + PAGES * PAGE] {
        assert_eq!(vm.run("share", &[at, PAGES * PAGE]), 0);
        vm.run("fill", &[at, LEN, 7]);
        assert_eq!(vm.run("seal", &[at, LEN]), 0);
        let sent = vm.send(at, LEN).0.unwrap();
        assert!(sent.token().is_none() && sent.to_vec().unwrap() == sevens(LEN));
    }
}

/// An instance can end with regions: after a trap, or because its guest releases nothing. wasmtime's pool would hand
/// them to the next one (FACTS of the engine: `docs/engines.md`).
#[test]
fn nothing_that_was_mapped_is_there_for_the_next_instance() {
    let _turn = one_at_a_time();
    let built = build(GUEST);
    let module = load(&built).unwrap();
    let segment = Segment::copy_of(&sevens(LEN)).unwrap();
    let mut host = host();
    for round in 0..4 {
        let mut instance = module.instantiate(&InstanceSpec::default(), &mut host).unwrap();
        let at = usize::try_from(AT).unwrap();
        let beyond = at + 2 * usize::try_from(PAGES * PAGE).unwrap();
        assert!(instance.memory()[at..beyond].iter().all(|byte| *byte == 0), "round {round}");
        let mut call = |export: &str, params: &[i32]| {
            instance.call(export, params, &mut host).unwrap().unwrap_or(0)
        };
        assert_eq!(call("share", &[AT, PAGES * PAGE]), 0);
        call("fill", &[AT, PAGES * PAGE, 7]);
        if round % 2 == 0 {
            assert_eq!(call("seal", &[AT, LEN]), 0);
        }
        let room = u32::try_from(PAGES * PAGE).unwrap();
        let next = u32::try_from(AT).unwrap() + room;
        assert!(instance.map((next, room), &segment));
        instance.memory_mut()[next as usize] = 9;
    }
}
