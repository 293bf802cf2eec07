//! A memory, a dispatcher and a log for tests.

use std::cell::RefCell;
use std::rc::Rc;

use cwasi_abi::Errno;

use crate::{
    CallFailure, Context, Deadline, Dispatch, GuestMemory, Host, Level, LogSink, Response,
};

pub(crate) struct FakeMemory(Vec<u8>);

impl FakeMemory {
    pub(crate) fn of(len: usize) -> Self {
        Self(vec![0; len])
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

/// Knows one function, `reverse`.
struct Reverse;

impl Dispatch for Reverse {
    fn call(
        &mut self,
        target: &str,
        payload: &[u8],
        _deadline: Deadline,
    ) -> Result<Box<dyn Response>, CallFailure> {
        if target == "reverse" {
            let reversed: Vec<u8> = payload.iter().rev().copied().collect();
            return Ok(Box::new(reversed));
        }
        Err(CallFailure { errno: Errno::NoSuchFunction, message: format!("{target} is unknown") })
    }

    fn emit(
        &mut self,
        target: &str,
        payload: &[u8],
        deadline: Deadline,
    ) -> Result<(), CallFailure> {
        self.call(target, payload, deadline).map(drop)
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
