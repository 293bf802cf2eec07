//! A memory, a dispatcher and a log for tests.

use std::cell::RefCell;
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::rc::Rc;

use cwasi_abi::Errno;

use crate::{
    CallFailure, Context, Deadline, Dispatch, GuestMemory, Host, Level, LogSink, Outgoing,
    PagedMemory, Pages, PagesError, Response, SharedBytes, SharedMemory,
};

/// Its bytes, and what was shown in them last.
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

impl SharedMemory for File {
    fn shared(&self) -> SharedBytes<'_> {
        SharedBytes { fd: self.as_fd(), token: None }
    }
}

/// Shared memory is a file that is written when it is sealed.
impl PagedMemory for FakeMemory {
    type Open = ();
    type Sealed = File;
    type Source = ();

    fn share(&mut self, (): &(), pages: Pages) -> Result<(), PagesError> {
        self.clear(pages)
    }

    fn seal(&mut self, pages: Pages, (): (), len: u32) -> Result<File, PagesError> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(self.slice(pages.start(), len).unwrap()).unwrap();
        if let Some(rest) = pages.behind(len) {
            self.clear(rest)?;
        }
        Ok(file)
    }

    fn show(&mut self, pages: Pages, sealed: BorrowedFd<'_>) -> Result<(), PagesError> {
        let bytes = read(sealed);
        let target = &mut self.0[range(pages)];
        target.fill(0);
        target[..bytes.len()].copy_from_slice(&bytes);
        let shown = target.to_vec();
        let start = pages.start().0;
        self.1.retain(|(at, _)| *at != start);
        self.1.push((start, shown));
        Ok(())
    }

    fn is_as_shown(&self, (): &(), pages: Pages) -> bool {
        let now = &self.0[range(pages)];
        self.1.iter().any(|(at, shown)| *at == pages.start().0 && shown == now)
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
pub(crate) fn read(fd: BorrowedFd<'_>) -> Vec<u8> {
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
        payload: Outgoing<'_>,
        _deadline: Deadline,
    ) -> Result<Box<dyn Response>, CallFailure> {
        let mut bytes = match payload {
            Outgoing::Bytes(bytes) => bytes.to_vec(),
            Outgoing::Sealed { fd, .. } => read(fd),
        };
        if target == "reverse" {
            bytes.reverse();
            return Ok(Box::new(bytes));
        }
        Err(CallFailure { errno: Errno::NoSuchFunction, message: format!("{target} is unknown") })
    }

    fn emit(
        &mut self,
        target: &str,
        payload: &[u8],
        deadline: Deadline,
    ) -> Result<(), CallFailure> {
        self.call(target, Outgoing::Bytes(payload), deadline).map(drop)
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
