//! A memory, a dispatcher and a log for tests.

use std::cell::RefCell;
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use crate::{Context, Dispatch, GuestMemory, Host, Level, LogSink, PagedMemory, Pages, PagesError};
use cwasi_modes::{CallError, CallResult, OutgoingPayload, Payload};
use cwasi_sys::clock::Deadline;
use cwasi_sys::segment::Segment;

/// Its bytes, and what was mapped in them last.
pub(crate) struct FakeMemory(Vec<u8>, Vec<(u32, Vec<u8>)>);

impl FakeMemory {
    pub(crate) fn of(len: usize) -> Self {
        Self(vec![0; len], Vec::new())
    }
}

impl GuestMemory for FakeMemory {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

/// A region is a copy that is made when it is sealed.
impl PagedMemory for FakeMemory {
    type Open = ();
    type Source = ();

    fn share(&mut self, (): &(), pages: Pages) -> Result<(), PagesError> {
        self.clear(pages)
    }

    fn seal(&mut self, pages: Pages, (): (), len: u32) -> Result<Segment, PagesError> {
        let segment = Segment::copy_of(self.slice(pages.start(), len).unwrap()).unwrap();
        if let Some(rest) = pages.behind(len) {
            self.clear(rest)?;
        }
        Ok(segment)
    }

    fn map(&mut self, pages: Pages, sealed: BorrowedFd<'_>) -> Result<(), PagesError> {
        let bytes = read(sealed);
        let target = &mut self.0[range(pages)];
        target.fill(0);
        target[..bytes.len()].copy_from_slice(&bytes);
        let mapped = target.to_vec();
        let start = pages.start().0;
        self.1.retain(|(at, _)| *at != start);
        self.1.push((start, mapped));
        Ok(())
    }

    fn is_unchanged(&self, (): &(), pages: Pages) -> bool {
        let now = &self.0[range(pages)];
        self.1.iter().any(|(at, mapped)| *at == pages.start().0 && mapped == now)
    }

    fn clear(&mut self, pages: Pages) -> Result<(), PagesError> {
        self.0[range(pages)].fill(0);
        Ok(())
    }

    fn phase(&self, modulus: u32) -> Option<u32> {
        Some(modulus / 2)
    }
}

fn range(pages: Pages) -> Range<usize> {
    let start = pages.start().0 as usize;
    start..start + pages.byte_len() as usize
}

/// All of a file.
fn read(fd: BorrowedFd<'_>) -> Vec<u8> {
    let mut file = File::from(fd.try_clone_to_owned().unwrap());
    let mut bytes = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

/// Knows one function, `reverse`.
struct Reverse;

impl Dispatch for Reverse {
    fn call(
        &mut self,
        target: &str,
        payload: OutgoingPayload<'_>,
        _deadline: Option<Deadline>,
    ) -> CallResult {
        let mut bytes = match payload {
            OutgoingPayload::Bytes(bytes) => bytes.to_vec(),
            OutgoingPayload::Segment(segment) => segment.to_vec().unwrap(),
        };
        if target == "reverse" {
            bytes.reverse();
            return Ok(Payload::Inline(bytes));
        }
        Err(CallError::NoSuchFunction { message: format!("{target} is unknown") })
    }

    fn emit(
        &mut self,
        target: &str,
        payload: &[u8],
        deadline: Option<Deadline>,
    ) -> Result<(), CallError> {
        self.call(target, OutgoingPayload::Bytes(payload), deadline).map(drop)
    }
}

#[derive(Clone, Default)]
struct Lines(Rc<RefCell<Vec<String>>>);

impl LogSink for Lines {
    fn log(&mut self, level: Level, _context: &Context, message: &str) {
        self.0.borrow_mut().push(format!("{} {message}", level.name()));
    }
}

pub(crate) fn host() -> Host {
    host_with_log().0
}

pub(crate) fn host_with_log() -> (Host, Rc<RefCell<Vec<String>>>) {
    let lines = Lines::default();
    let shared = Rc::clone(&lines.0);
    (Host::new(Context::default(), Box::new(Reverse), Box::new(lines)), shared)
}
