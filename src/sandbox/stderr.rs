//! The runtime's own lines on this process's stderr. The `eprintln!` of std panics when stderr has no reader, and
//! blocks while the pipe is full. Processes of a function must do neither, and write to the function's log.

use std::cell::RefCell;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::rc::Rc;

use cwasi_vm::Context;

use super::function_log::{FunctionLog, LAST_LINE_WAIT_MS, host_line, wait_for_room};

thread_local! {
    /// Where lines go once this process is one of a function's, which have one thread each.
    static LOG: RefCell<Option<Rc<FunctionLog>>> = const { RefCell::new(None) };
}

/// From now on this process is one of a function's.
pub fn install(log: FunctionLog) {
    LOG.set(Some(Rc::new(log)));
}

/// The function's log, in one of its processes.
pub fn log() -> Option<Rc<FunctionLog>> {
    LOG.with_borrow(Clone::clone)
}

/// Writes a line, or counts it as dropped when there is no reader.
pub fn try_line(text: &str) {
    match log() {
        Some(log) => log.line(text),
        None => line(text),
    }
}

/// Writes a line with the ids of an invocation, or counts it as dropped when there is no reader.
pub fn try_line_of(context: &Context, text: &str) {
    match log() {
        Some(log) => log.line_of(context, text),
        None => line(text),
    }
}

/// Writes a line and waits a moment for a reader: for the last line of a process.
pub fn line(text: &str) {
    match log() {
        Some(log) => log.last_line(text),
        None if wait_for_room(io::stderr().as_fd(), LAST_LINE_WAIT_MS) => {
            // Without a reader, there is nothing to do.
            let _unread = io::stderr().write_all(host_line(text).as_bytes());
        }
        None => {}
    }
}
