//! Processes that stand still where the test wants it, because it traces them.
#![expect(unsafe_code, reason = "ptrace and pidfd_getfd")]

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::ptr::null;

use cwasi_sys::seqpacket;
use cwasi_wire::control::{Entry, FunctionLaunch, Role, encode};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use serde_json::json;

use crate::direct::{Stopped, until_init_sleeps};
use crate::fixture::{Fixture, alive, descriptors_of, eventually};
use crate::function::{Function, launch};
use crate::guests::guests;

/// A process that does not run. Unlike one that a signal stops, its parent does not notice.
pub struct Held(Pid);

impl Held {
    pub fn new(pid: Pid) -> Self {
        let held = Self(pid);
        held.trace(libc::PTRACE_SEIZE);
        held.trace(libc::PTRACE_INTERRUPT);
        held.until_stopped();
        held
    }

    /// Lets it go on until it begins or ends its next system call.
    fn to_next_call(&self) {
        self.trace(libc::PTRACE_SYSCALL);
    }

    fn until_stopped(&self) {
        // A stop for the tracer may have no name in nix.
        let _stopped = waitpid(self.0, Some(WaitPidFlag::__WALL));
    }

    fn trace(&self, request: libc::c_uint) {
        // SAFETY:
        // - takes numbers only.
        let done = unsafe { libc::ptrace(request, self.0.as_raw(), null::<u8>(), null::<u8>()) };
        assert_eq!(done, 0, "{}", io::Error::last_os_error());
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let (pid, none) = (self.0.as_raw(), null::<u8>());
        // SAFETY:
        // - takes numbers only.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, pid, none, none) };
    }
}

/// A copy of a worker's socket to init: the only one that `other` does not have too.
fn socket_to_init(worker: Pid, other: Pid) -> OwnedFd {
    let others: Vec<_> = descriptors_of(other).into_iter().map(|(_, name)| name).collect();
    let sockets = descriptors_of(worker).into_iter().filter(|(_, name)| {
        name.display().to_string().starts_with("socket:") && !others.contains(name)
    });
    let numbers: Vec<_> = sockets.map(|(number, _)| number).collect();
    let [number] = numbers[..] else { panic!("{numbers:?}") };
    // SAFETY:
    // - the calls take numbers; the second one makes a descriptor, or fails.
    unsafe {
        let process = libc::syscall(libc::SYS_pidfd_open, worker.as_raw(), 0);
        let process = OwnedFd::from_raw_fd(i32::try_from(process).unwrap());
        let copy = libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0);
        OwnedFd::from_raw_fd(i32::try_from(copy).unwrap())
    }
}

#[test]
fn why_a_worker_cannot_start_is_told_also_when_its_end_is_seen_first() {
    let fixture = Fixture::new();
    let reactor = launch(Role::Secondary, &guests().reactor, Entry::Reactor);
    let launch = FunctionLaunch { concurrency: 2, ..reactor };
    let mut function = Function::start(&fixture, "reason", launch);
    let [one, other] = function.workers()[..] else { panic!("two workers") };
    let [one, other] = [one, other].map(Pid::from_raw);
    function.until_idle(2);
    let to_init = socket_to_init(other, one);
    until_init_sleeps(&function);
    let init = Held::new(function.container.pid);
    // Into poll, and out of it: init receives what is ready now.
    init.to_next_call();
    init.until_stopped();
    init.to_next_call();
    let stopped = Stopped::new(one);
    init.until_stopped();
    let message = encode(&json!({ "start-failed": { "message": "no such thing" } }));
    seqpacket::send(to_init.as_fd(), &[&message], &[], None).unwrap();
    drop(to_init);
    kill(other, Signal::SIGKILL).unwrap();
    eventually("the end of a worker", || (!alive(other)).then_some(()));
    drop(init);
    eventually("another worker", || {
        let workers = function.workers();
        (workers.len() == 2 && !workers.contains(&other.as_raw())).then_some(())
    });
    drop(stopped);
    function.end();
    let errors = function.container.errors();
    assert!(errors.contains("a worker cannot start: no such thing"), "{errors}");
}
