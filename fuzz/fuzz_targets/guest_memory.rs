//! Host functions and the pointers, lengths, handles and regions that a guest passes to them (`host-functions`).
//!
//! A guest of a few pages calls them in any order, with arguments that point near each other, near the memory's end, or
//! anywhere. The memory checks what `PagedMemory` promises: pages that a host function replaces lie inside of it, and
//! no region overlaps another.
#![no_main]

use std::cell::RefCell;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use arbitrary::Arbitrary;
use cwasi_abi::{Errno, LOG_MESSAGE_MAX, REGION_PAGE, TARGET_MAX, TRAP_MESSAGE_MAX};
use cwasi_fuzz::memory::within;
use cwasi_host_functions::{
    self as functions, Context, Dispatch, GuestMemory, GuestPtr, Host, Level, LinkEnded,
    LinkedCalls, LogSink, OtherMemory, PagedMemory, Pages, PagesError, Regions, StartParameters,
    StartedCall,
};
use cwasi_modes::{CallError, CallResult, CallTicket, OutgoingPayload, Payload, TooManyCalls};
use cwasi_sys::clock::Deadline;
use cwasi_sys::segment::Segment;
use cwasi_wire::envelope::Join;
use libfuzzer_sys::fuzz_target;

/// Pages of the guest's memory.
const PAGES: u32 = 40;
const MEMORY_LEN: u32 = PAGES * REGION_PAGE;
/// Calls of host functions by one guest.
const CALLS_MAX: usize = 48;
/// Memory that the host may take for one guest: unread responses and calls in flight, each as long as a payload.
const ROOM: usize = 16 << 20;

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Number {
    Near(u8),
    Page(u8),
    End(u8),
    Any(u32),
}

impl Number {
    fn value(self) -> u32 {
        match self {
            Self::Near(number) => u32::from(number),
            Self::Page(number) => u32::from(number % (PAGES as u8 + 2)) * REGION_PAGE,
            Self::End(number) => MEMORY_LEN - u32::from(number) + 4,
            Self::Any(number) => number,
        }
    }

    fn ptr(self) -> GuestPtr {
        GuestPtr(self.value())
    }
}

type Range = (Number, Number);

fn range((ptr, len): Range) -> (GuestPtr, u32) {
    (ptr.ptr(), len.value())
}

#[derive(Arbitrary, Debug)]
enum Act<'a> {
    Write(Number, &'a [u8]),
    Call(Range, Range, Number),
    Start([Number; 6]),
    Wait(Range, Number),
    Forget(Number),
    Read(Number, Range),
    Emit(Range, Range, Number),
    Context(Range, Range, Number),
    Log(u8, Range),
    Trap(Range),
    Share(Range),
    Seal(Range),
    Release(Range),
    Info(Number),
    Offer(Range),
    Enter(u8),
    Leave,
    Argument(u8, Range, Number),
    Return(Range),
    Result(Range, Number),
    SetContext(Range, Range),
}

struct Memory {
    bytes: Vec<u8>,
    backed: Vec<Pages>,
}

impl Memory {
    fn check(&self, pages: Pages) {
        let end = u64::from(pages.start().0) + u64::from(pages.byte_len());
        assert!(end <= u64::from(MEMORY_LEN), "{pages:?} lie outside");
        let other = self.backed.iter().find(|other| **other != pages && other.overlap(pages));
        assert!(other.is_none(), "{pages:?} overlap {other:?}");
    }

    fn fill(&mut self, pages: Pages, value: u8) {
        self.check(pages);
        let start = pages.start().0 as usize;
        self.bytes[start..start + pages.byte_len() as usize].fill(value);
    }

    fn back(&mut self, pages: Pages) {
        self.check(pages);
        if !self.backed.contains(&pages) {
            self.backed.push(pages);
        }
    }
}

impl GuestMemory for Memory {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl PagedMemory for Memory {
    type Open = ();
    type Source = ();

    fn share(&mut self, (): &(), pages: Pages) -> Result<(), PagesError> {
        self.back(pages);
        self.fill(pages, 0);
        Ok(())
    }

    fn seal(&mut self, pages: Pages, (): (), len: u32) -> Result<Segment, PagesError> {
        assert!((1..=pages.byte_len()).contains(&len));
        let sealed = Segment::copy_of(self.slice(pages.start(), len).expect("inside the memory"));
        if let Some(rest) = pages.behind(len) {
            let start = rest.start().0 as usize;
            self.bytes[start..start + rest.byte_len() as usize].fill(0);
        }
        sealed.map_err(|error| PagesError::Failed { reason: error.to_string() })
    }

    fn map(&mut self, pages: Pages, _sealed: BorrowedFd<'_>) -> Result<(), PagesError> {
        self.back(pages);
        self.fill(pages, 0xee);
        Ok(())
    }

    fn is_unchanged(&self, (): &(), pages: Pages) -> bool {
        self.check(pages);
        false
    }

    fn clear(&mut self, pages: Pages) -> Result<(), PagesError> {
        self.fill(pages, 0);
        self.backed.retain(|other| *other != pages);
        Ok(())
    }

    fn phase(&self, modulus: u32) -> Option<u32> {
        Some(modulus / 2)
    }
}

/// Memory of another module of the same VM.
#[derive(Clone, PartialEq)]
struct Other(u8);

impl OtherMemory for Other {
    fn copy_to(&self, ptr: GuestPtr, target: &mut [u8]) -> Result<(), Errno> {
        let end = u64::from(ptr.0) + target.len() as u64;
        assert!(target.is_empty() || end <= u64::from(MEMORY_LEN), "an offer outside its memory");
        target.fill(self.0);
        Ok(())
    }
}

/// Answers with the payload, at once or when it is waited for.
struct Echoes(Vec<(CallTicket, usize)>);

impl Dispatch for Echoes {
    fn call(
        &mut self,
        target: &str,
        payload: OutgoingPayload<'_>,
        _: Option<Deadline>,
    ) -> CallResult {
        assert!((1..=TARGET_MAX).contains(&target.len()));
        assert!(payload.len() <= u64::from(MEMORY_LEN), "a region outside the memory");
        // A segment when it is large.
        payload.keep(None).map_err(|error| CallError::Internal { message: error.to_string() })
    }

    fn start(
        &mut self,
        target: &str,
        payload: OutgoingPayload<'_>,
        join: Option<Join>,
        deadline: Option<Deadline>,
    ) -> Result<StartedCall, TooManyCalls> {
        if let Some(join) = join {
            assert!(!join.key.is_empty() && (join.parts == 0 || join.part < join.parts));
        }
        if self.0.len() % 3 == 2 {
            return Ok(StartedCall::Ended(self.call(target, payload, deadline)));
        }
        let ticket = CallTicket(self.0.len() as u32);
        self.0.push((ticket, payload.len() as usize));
        Ok(StartedCall::Pending(ticket))
    }

    fn wait(&mut self, calls: &[CallTicket], _: Option<Deadline>) -> Option<(usize, CallResult)> {
        let (_, len) = self.0.iter().find(|(ticket, _)| Some(ticket) == calls.last())?;
        Some((calls.len() - 1, Ok(Payload::Inline(vec![2; *len]))))
    }
}

#[derive(Clone, Default)]
struct Lines(Rc<RefCell<usize>>);

impl LogSink for Lines {
    fn log(&mut self, _: Level, _: &Context, message: &str) {
        // Bytes that are no text become three each.
        assert!(message.len() <= 3 * LOG_MESSAGE_MAX);
        *self.0.borrow_mut() += 1;
    }
}

fuzz_target!(|acts: Vec<Act<'_>>| {
    let mut host =
        Host::new(Context::default(), Box::new(Echoes(Vec::new())), Box::<Lines>::default());
    host.begin(Context { function: "f".to_owned(), ..Context::default() });
    let mut memory = Memory { bytes: vec![b'f'; MEMORY_LEN as usize], backed: Vec::new() };
    let (mut regions, mut links) = (Regions::default(), LinkedCalls::default());
    within(ROOM, || {
        for act in acts.iter().take(CALLS_MAX) {
            // Whatever a guest does, it gets an errno or none.
            let _errno = run(act, &mut host, &mut memory, &mut regions, &mut links);
            assert_eq!(memory.bytes.len(), MEMORY_LEN as usize);
        }
    });
    if let Some(message) = host.take_trap_message() {
        assert!(message.len() <= 3 * TRAP_MESSAGE_MAX);
    }
    host.end();
});

fn run(
    act: &Act<'_>,
    host: &mut Host,
    memory: &mut Memory,
    regions: &mut Regions<Memory>,
    links: &mut LinkedCalls<Other>,
) -> Result<(), Errno> {
    let own = Other(0);
    match *act {
        Act::Write(at, bytes) => memory.write(at.ptr(), bytes),
        Act::Call(target, payload, out) => functions::request_dispatcher(
            host,
            memory,
            Some(regions),
            range(target),
            range(payload),
            out.ptr(),
        ),
        Act::Start(numbers) => {
            let parameters = StartParameters::from(numbers.map(Number::value));
            functions::dispatch_start(host, memory, Some(regions), parameters)
        }
        Act::Wait(handles, out) => {
            functions::dispatch_wait(host, memory, range(handles), 0, out.ptr())
        }
        Act::Forget(handle) => functions::dispatch_forget(host, handle.value()),
        Act::Read(handle, to) => {
            functions::response_read(host, memory, Some(regions), handle.value(), range(to))
        }
        Act::Emit(target, payload, out) => {
            functions::emit(host, memory, range(target), range(payload), out.ptr())
        }
        Act::Context(key, value, out) => {
            functions::context_get(host, memory, range(key), range(value), out.ptr())
        }
        Act::SetContext(key, value) => {
            functions::context_set(host, memory, range(key), range(value))
        }
        Act::Log(level, text) => {
            let (ptr, len) = range(text);
            functions::log(host, memory, u32::from(level), ptr, len)
        }
        Act::Trap(text) => functions::trap_message(host, memory, text.0.ptr(), text.1.value()),
        Act::Share((ptr, len)) => {
            functions::region_share(host, memory, Some(regions), ptr.ptr(), len.value())
        }
        Act::Seal((ptr, len)) => {
            functions::region_seal(host, memory, Some(regions), ptr.ptr(), len.value())
        }
        Act::Release((ptr, len)) => {
            functions::region_release(host, memory, Some(regions), ptr.ptr(), len.value())
        }
        Act::Info(out) => functions::region_info(memory, Some(regions), out.ptr()),
        Act::Offer((ptr, len)) => {
            functions::link_offer(links, memory, Other(1), ptr.ptr(), len.value())
        }
        Act::Enter(function) => links.enter(u32::from(function)),
        Act::Leave => {
            let ended: Option<LinkEnded> = links.leave();
            ended.map(drop).ok_or(Errno::NotAvailable)
        }
        Act::Argument(index, to, out) => {
            functions::link_read(links, memory, &own, u32::from(index), range(to), out.ptr())
        }
        Act::Return((ptr, len)) => {
            functions::link_return(links, memory, Other(1), ptr.ptr(), len.value())
        }
        Act::Result(to, out) => functions::link_result(links, memory, &own, range(to), out.ptr()),
    }
}
