//! Signals of sandbox init as a descriptor, and the changes of its children.
//!
//! The signals are blocked, not handled: a pid 1 without handlers does not get signals with a default action, but
//! blocked ones are kept for the descriptor.

use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
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
    Killed(Signal),
}

impl Ending {
    /// As a shell reports it: the code, or 128 + signal.
    #[must_use]
    pub const fn code(self) -> i32 {
        match self {
            Self::Exited(code) => code,
            Self::Killed(signal) => 128 + signal as i32,
        }
    }

    /// True when the process' own code raised the signal that ended it.
    #[must_use]
    pub const fn is_crash(self) -> bool {
        use Signal::{SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV};
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
            Signal::SIGSEGV | Signal::SIGBUS => ", often a stack overflow",
            Signal::SIGKILL => ", often for memory",
            Signal::SIGSYS => ", a system call that the seccomp profile forbids",
            Signal::SIGABRT => ", the engine gave up",
            _ => "",
        };
        format!("{verb} signal {} ({signal}{hint})", signal as i32)
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
    let flags = WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED | WaitPidFlag::WCONTINUED;
    loop {
        let change = match waitpid(None::<Pid>, Some(flags)) {
            Ok(WaitStatus::Exited(pid, code)) => (pid, Change::Ended(Ending::Exited(code))),
            Ok(WaitStatus::Signaled(pid, by, _core)) => (pid, Change::Ended(Ending::Killed(by))),
            Ok(WaitStatus::Stopped(pid, _signal)) => (pid, Change::Stopped),
            Ok(WaitStatus::Continued(pid)) => (pid, Change::Continued),
            Ok(WaitStatus::StillAlive) => return None,
            // Real-time signals have no name in nix; such a child is still reaped and unknown to everyone.
            Ok(_) | Err(Errno::EINTR | Errno::EINVAL) => continue,
            Err(_no_children) => return None,
        };
        return Some(change);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_a_shell() {
        assert_eq!(Ending::Exited(7).code(), 7);
        assert_eq!(Ending::Killed(Signal::SIGSEGV).code(), 139);
    }

    #[test]
    fn only_what_the_code_did_itself_is_a_crash() {
        let crash = Ending::Killed(Signal::SIGSEGV);
        assert!(crash.is_crash());
        assert!(crash.describe().starts_with("crashed with signal 11"));
        assert!(crash.describe().contains("stack overflow"));
        for killed in [Signal::SIGKILL, Signal::SIGSYS, Signal::SIGTERM].map(Ending::Killed) {
            assert!(!killed.is_crash());
            assert!(killed.describe().starts_with("was killed by"));
        }
        assert!(!Ending::Exited(134).is_crash());
    }
}
