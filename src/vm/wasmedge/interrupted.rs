//! Repeats the system calls of the engine that a pause interrupts.
//!
//! Runs in every process of `cwasi-sandbox-wasmedge`. When a process is stopped and continued (`SIGSTOP`, the cgroup freezer),
//! the kernel ends some waiting system calls with `EINTR`, although no handler has run: `epoll_wait`, and calls on
//! sockets with a time limit (signal(7)). The engine passes that errno to the guest, whose C library takes it for a
//! fault: a `sleep` ends in a trap. As [`super::stderr_tail`] does with `writev`, `cwasi-sandbox-wasmedge` exports these
//! functions, and the engine calls them in place of libc's.
//!
//! `epoll_wait` goes on with the time that is left. The engine itself waits without end, and its timers are descriptors
//! that run on while it is paused. A socket's time limit begins anew.
#![expect(unsafe_code, reason = "functions of libc")]

use std::time::Duration;

use libc::{c_int, c_long, ssize_t};
use nix::errno::Errno;

use cwasi_sys::clock::{Deadline, poll_timeout};

/// Makes a system call until no signal has interrupted it.
pub fn repeat<T: From<i8> + PartialEq>(mut call: impl FnMut() -> T) -> T {
    loop {
        let result = call();
        if result != T::from(-1) || Errno::last() != Errno::EINTR {
            return result;
        }
    }
}

/// epoll_wait(2).
///
/// # Safety
/// As libc's.
pub unsafe fn epoll_wait(
    epoll: c_int,
    events: *mut libc::epoll_event,
    max: c_int,
    timeout: c_int,
) -> c_int {
    let wait = u64::try_from(timeout).ok().filter(|wait| *wait > 0);
    let until = wait.map(|wait| Deadline::after(Duration::from_millis(wait)));
    let mut timeout = timeout;
    int(repeat(|| {
        // SAFETY:
        // - says the caller; the kernel checks the descriptor and the pointer.
        let result = unsafe { wait_once(epoll, events, max, timeout) };
        if let Some(until) = until {
            timeout = poll_timeout(Some(until)).as_millis().map_or(timeout, clamp);
        }
        result
    }))
}

/// The system call as libc makes it, so that a container's seccomp profile need not allow another one.
///
/// # Safety
/// As libc's `epoll_wait`.
unsafe fn wait_once(
    epoll: c_int,
    events: *mut libc::epoll_event,
    max: c_int,
    timeout: c_int,
) -> c_long {
    // SAFETY:
    // - says the caller; `syscall` sets errno as libc's function does.
    #[cfg(target_arch = "x86_64")]
    let result = unsafe { libc::syscall(libc::SYS_epoll_wait, epoll, events, max, timeout) };
    // SAFETY:
    // - as above; without a signal mask, whose length is not read.
    #[cfg(not(target_arch = "x86_64"))]
    let result = unsafe {
        let mask = std::ptr::null::<libc::sigset_t>();
        libc::syscall(libc::SYS_epoll_pwait, epoll, events, max, timeout, mask, 0_usize)
    };
    result
}

/// readv(2).
///
/// # Safety
/// As libc's.
pub unsafe fn readv(fd: c_int, parts: *const libc::iovec, count: c_int) -> ssize_t {
    // SAFETY:
    // - says the caller; the kernel checks everything.
    size(repeat(|| unsafe { libc::syscall(libc::SYS_readv, fd, parts, count) }))
}

/// recvmsg(2).
///
/// # Safety
/// As libc's.
pub unsafe fn recvmsg(socket: c_int, message: *mut libc::msghdr, flags: c_int) -> ssize_t {
    // SAFETY:
    // - says the caller; the kernel checks everything, and an interrupted call has changed nothing.
    size(repeat(|| unsafe { libc::syscall(libc::SYS_recvmsg, socket, message, flags) }))
}

/// sendmsg(2).
///
/// # Safety
/// As libc's.
pub unsafe fn sendmsg(socket: c_int, message: *const libc::msghdr, flags: c_int) -> ssize_t {
    // SAFETY:
    // - says the caller; the kernel checks everything, and an interrupted call has sent nothing.
    size(repeat(|| unsafe { libc::syscall(libc::SYS_sendmsg, socket, message, flags) }))
}

/// connect(2). The kernel goes on connecting meanwhile, and a repeated call waits for that.
///
/// # Safety
/// As libc's.
pub unsafe fn connect(
    socket: c_int,
    address: *const libc::sockaddr,
    len: libc::socklen_t,
) -> c_int {
    // SAFETY:
    // - says the caller; the kernel checks everything.
    int(repeat(|| unsafe { libc::syscall(libc::SYS_connect, socket, address, len) }))
}

fn clamp(millis: u32) -> c_int {
    c_int::try_from(millis).unwrap_or(c_int::MAX)
}

/// A result of the system call as the function's.
fn int(result: c_long) -> c_int {
    c_int::try_from(result).unwrap_or(-1)
}

fn size(result: c_long) -> ssize_t {
    ssize_t::try_from(result).unwrap_or(-1)
}
