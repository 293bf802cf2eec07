//! Signals of sandbox init as a descriptor, and the changes of its children.
//!
//! The signals are blocked, not handled: a pid 1 without handlers does not get signals with a default action, but
//! blocked ones are kept for the descriptor.

use std::os::fd::{AsFd, BorrowedFd};

use cwasi_sys::children;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;

/// Signals that end a function: what `ctr`, Kubernetes and images use as stop signals.
const STOP: [Signal; 4] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGHUP];

/// Signals and exits of one init.
#[derive(Debug)]
pub struct Signals {
    fd: SignalFd,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With an exit code.
    Exited(i32),
    /// By the signal with this number.
    Killed(i32),
}

impl Ending {
    /// As a shell reports it: the code, or 128 + signal.
    #[must_use]
    pub const fn code(self) -> i32 {
        match self {
            Self::Exited(code) => code,
            Self::Killed(signal) => 128 + signal,
        }
    }

    /// True when the process' own code raised the signal that ended it.
    #[must_use]
    pub const fn is_crash(self) -> bool {
        use libc::{SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV};
        matches!(self, Self::Killed(SIGSEGV | SIGBUS | SIGILL | SIGFPE | SIGABRT))
    }

    /// For people, as the end of a sentence; says what usually causes it.
    #[must_use]
    pub fn describe(self) -> String {
        let signal = match self {
            Self::Exited(code) => return format!("ended with exit code {code}"),
            Self::Killed(signal) => signal,
        };
        let verb = if self.is_crash() { "crashed with" } else { "was killed by" };
        let hint = match signal {
            libc::SIGSEGV | libc::SIGBUS => ", often a stack overflow",
            libc::SIGKILL => ", often for memory",
            libc::SIGSYS => ", a system call that the seccomp profile forbids",
            libc::SIGABRT => ", the engine gave up",
            _ => "",
        };
        let name = Signal::try_from(signal).map_or("a real-time signal", Signal::as_str);
        format!("{verb} signal {signal} ({name}{hint})")
    }
}

impl Signals {
    /// Blocks the signals of this process and opens them for reading.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn new() -> nix::Result<Self> {
        let mut set: SigSet = STOP.into_iter().collect();
        set.add(Signal::SIGCHLD);
        set.thread_block()?;
        let fd = SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        Ok(Self { fd })
    }

    /// To be polled for input.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Takes what came: the stop signal, if one is among it. Children are found by [`next_change`].
    pub fn take(&mut self) -> Option<Signal> {
        let mut stop = None;
        while let Ok(Some(info)) = self.fd.read_signal() {
            let is_it = |signal: &Signal| u32::try_from(*signal as i32) == Ok(info.ssi_signo);
            stop = STOP.into_iter().find(is_it).or(stop);
        }
        stop
    }
}

/// What happened to a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It ended, and was reaped.
    Ended(Ending),
    /// A signal stopped it (`SIGSTOP`).
    Stopped,
    /// It runs again (`SIGCONT`).
    Continued,
}

/// The next change of a child, orphans of the container included; `None` when there is none now.
#[must_use]
pub fn next_change() -> Option<(Pid, Change)> {
    // An error says that there are no children.
    let (pid, change) = children::next_change().ok().flatten()?;
    let change = match change {
        children::Change::Exited(code) => Change::Ended(Ending::Exited(code)),
        children::Change::Killed(signal) => Change::Ended(Ending::Killed(signal)),
        children::Change::Stopped => Change::Stopped,
        children::Change::Continued => Change::Continued,
    };
    Some((Pid::from_raw(pid), change))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_a_shell() {
        assert_eq!(Ending::Exited(7).code(), 7);
        assert_eq!(Ending::Killed(libc::SIGSEGV).code(), 139);
        assert_eq!(Ending::Killed(libc::SIGRTMAX()).code(), 192);
    }

    #[test]
    fn only_what_the_code_did_itself_is_a_crash() {
        let crash = Ending::Killed(libc::SIGSEGV);
        assert!(crash.is_crash());
        assert!(crash.describe().starts_with("crashed with signal 11"));
        assert!(crash.describe().contains("stack overflow"));
        for killed in [libc::SIGKILL, libc::SIGSYS, libc::SIGTERM, 34].map(Ending::Killed) {
            assert!(!killed.is_crash());
            assert!(killed.describe().starts_with("was killed by"));
        }
        assert!(!Ending::Exited(134).is_crash());
    }
}
