//! Ends, stops and continuations of this process' children.
//!
//! Signals are numbers here: real-time signals (32 to 64) end processes as others do, and have no name in nix, whose
//! `waitpid` reaps such a child and returns an error without its number.

use std::io;

use rustix::io::Errno;
use rustix::process::{WaitOptions, wait};

/// What happened to a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It ended with this exit code, and was reaped.
    Exited(i32),
    /// The signal with this number ended it, and it was reaped.
    Killed(i32),
    /// A signal stopped it (`SIGSTOP`).
    Stopped,
    /// It runs again (`SIGCONT`).
    Continued,
}

/// The next change of any child, and the child's process id; `None` when there is none now. Does not wait.
///
/// # Errors
/// When the kernel does not say.
pub fn next_change() -> io::Result<Option<(i32, Change)>> {
    let options = WaitOptions::NOHANG | WaitOptions::UNTRACED | WaitOptions::CONTINUED;
    loop {
        let (pid, status) = match wait(options) {
            Ok(Some(changed)) => changed,
            Ok(None) | Err(Errno::CHILD) => return Ok(None),
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        };
        let change = if let Some(code) = status.exit_status() {
            Change::Exited(code)
        } else if let Some(signal) = status.terminating_signal() {
            Change::Killed(signal)
        } else if status.continued() {
            Change::Continued
        } else {
            Change::Stopped
        };
        return Ok(Some((pid.as_raw_nonzero().get(), change)));
    }
}
