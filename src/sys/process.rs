//! Processes of the data plane: forking while single-threaded, closing descriptors in children, exits.
#![expect(unsafe_code, reason = "clone, fork and descriptor tables have no safe interface")]

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::signal::{SigHandler, SigSet, Signal};
use nix::unistd::{Pid, getppid};

/// First descriptor after stdin, stdout and stderr.
pub const FIRST_DESCRIPTOR: RawFd = 3;
/// Most descriptors that are closed one by one where `close_range` is not available.
const CLOSE_ONE_BY_ONE_MAX: RawFd = 1 << 20;

/// Nice value of work in the background: a tenth of the weight of a process with 0.
const BACKGROUND_NICE: libc::c_int = 10;
/// ioprio_set(2): one process, the best-effort class, its lowest level.
const IOPRIO_WHO_PROCESS: libc::c_long = 1;
const IOPRIO_CLASS_BE: libc::c_long = 2;
const IOPRIO_CLASS_SHIFT: u32 = 13;
const IOPRIO_LOWEST: libc::c_long = 7;

/// Which side of a fork this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fork {
    Child,
    /// The old one; the child's pid.
    Parent(Pid),
}

/// Proof that this process had one thread; needed to fork. In the child of a process with more, the allocator's locks
/// may belong to threads that do not exist there. The holder of a proof starts no thread.
#[derive(Clone, Copy, Debug)]
pub struct SingleThreaded(());

impl SingleThreaded {
    /// Counts the threads of this process.
    ///
    /// # Errors
    /// When there is more than one, or `/proc` cannot be read.
    pub fn prove() -> io::Result<Self> {
        let threads = std::fs::read_dir("/proc/self/task")?.count();
        if threads == 1 {
            Ok(Self(()))
        } else {
            Err(io::Error::other(format!("this process has {threads} threads and may not fork")))
        }
    }

    /// Forks; the child is a child of this process. No library's fork handler runs in it.
    ///
    /// # Errors
    /// When the kernel refuses (memory, pids limit).
    pub fn fork(self) -> io::Result<Fork> {
        Self::clone_process(libc::SIGCHLD)
    }

    /// Forks; the child is a child of this process's *parent* and ends with the signal that this process
    /// would end with (`SIGCHLD`).
    ///
    /// # Errors
    /// When the kernel refuses (memory, pids limit).
    pub fn fork_sibling(self) -> io::Result<Fork> {
        Self::clone_process(libc::CLONE_PARENT | libc::SIGCHLD)
    }

    fn clone_process(flags: libc::c_int) -> io::Result<Fork> {
        let flags = libc::c_long::from(flags);
        let zero: libc::c_long = 0;
        // SAFETY:
        // - without CLONE_VM and with a null stack this is fork(): the child runs on a copy of our stack.
        // - this process has one thread (only its proof calls this), so the child finds every lock free; what glibc's own
        //   fork adds (thread id in its control block) is read by no call that the child makes.
        let result = unsafe { libc::syscall(libc::SYS_clone, flags, zero, zero, zero, zero) };
        match Errno::result(result) {
            Ok(0) => Ok(Fork::Child),
            Ok(pid) => Ok(Fork::Parent(Pid::from_raw(i32::try_from(pid).unwrap_or(i32::MAX)))),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Ends this process at once: no destructors, no exit handlers of libraries.
pub fn exit_now(code: i32) -> ! {
    // SAFETY:
    // - _exit has no preconditions.
    unsafe { libc::_exit(code) }
}

/// Takes a descriptor that this process inherited under a number it knows, and marks it close-on-exec.
///
/// # Errors
/// When nothing is open there.
///
/// # Safety
/// Called at most once per number, and it has no other owner in this process.
pub unsafe fn take_inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY:
    // - only borrowed for the call; an unused number is answered with EBADF.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    fcntl(borrowed, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    // SAFETY:
    // - it is open (fcntl succeeded) and the caller promises that it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Closes every descriptor except stdin, stdout, stderr and `keep`.
///
/// # Errors
/// When the kernel refuses; some are closed then.
///
/// # Safety
/// No value of this process that owns or borrows another descriptor is used or dropped afterwards.
pub unsafe fn close_others(keep: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut kept: Vec<_> = keep.iter().map(AsRawFd::as_raw_fd).collect();
    kept.sort_unstable();
    let mut first = FIRST_DESCRIPTOR;
    for number in kept {
        close_range(first..number)?;
        first = first.max(number + 1);
    }
    close_range(first..RawFd::MAX)
}

fn close_range(numbers: Range<RawFd>) -> io::Result<()> {
    if numbers.is_empty() || on_range(&numbers, 0) {
        return Ok(());
    }
    for number in numbers.start..numbers.end.min(end_of_table()?) {
        // SAFETY:
        // - the caller of close_others promised that no owner of it is used again; EBADF is harmless.
        unsafe { libc::close(number) };
    }
    Ok(())
}

/// Marks every descriptor from 3 on close-on-exec.
///
/// # Errors
/// When the kernel refuses.
pub fn close_all_on_exec() -> io::Result<()> {
    if on_range(&(FIRST_DESCRIPTOR..RawFd::MAX), libc::CLOSE_RANGE_CLOEXEC) {
        return Ok(());
    }
    for number in FIRST_DESCRIPTOR..end_of_table()? {
        // SAFETY:
        // - nothing is closed now, and EBADF is harmless.
        unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    Ok(())
}

/// Descriptors have smaller numbers, where the kernel or a seccomp profile lets nobody ask for all at once.
fn end_of_table() -> io::Result<RawFd> {
    let (soft, _hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(RawFd::try_from(soft).unwrap_or(RawFd::MAX).min(CLOSE_ONE_BY_ONE_MAX))
}

/// `close_range`; false where the kernel, or a seccomp profile, refuses. `numbers` are not empty.
fn on_range(numbers: &Range<RawFd>, flags: libc::c_uint) -> bool {
    let [first, last, flags] =
        [i64::from(numbers.start), i64::from(numbers.end - 1), i64::from(flags)];
    // SAFETY:
    // - with CLOEXEC nothing is closed now; without, the caller of close_others made the promise.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) == 0 }
}

/// Lets the kernel kill this process when its parent ends. Ends at once when `parent` is gone already.
///
/// # Errors
/// When the kernel refuses.
pub fn die_with_parent(parent: Pid) -> io::Result<()> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    if getppid() != parent {
        exit_now(128 + libc::SIGKILL);
    }
    Ok(())
}

/// Gives this process the lowest priority for processors and disks: for long work in the
/// background. Threads that it starts later have it too.
///
/// # Errors
/// When the kernel refuses.
pub fn yield_to_others() -> io::Result<()> {
    // The kernel's `struct sched_param`. musl's function of this name refuses, and its structure has more fields.
    let priority: libc::c_int = 0;
    // SAFETY:
    // - `priority` lives for the call; 0 means this process.
    Errno::result(unsafe {
        libc::syscall(libc::SYS_sched_setscheduler, 0, libc::SCHED_BATCH, &raw const priority)
    })?;
    // SAFETY:
    // - plain integers; 0 means this process, which always has a priority.
    let own = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    // Only root may raise it again.
    let nice = BACKGROUND_NICE.max(own);
    // SAFETY:
    // - plain integers; 0 means this process.
    Errno::result(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) })?;
    let (target, priority) =
        (IOPRIO_WHO_PROCESS, IOPRIO_CLASS_BE << IOPRIO_CLASS_SHIFT | IOPRIO_LOWEST);
    // SAFETY:
    // - plain integers; 0 means this process.
    Errno::result(unsafe { libc::syscall(libc::SYS_ioprio_set, target, 0, priority) })?;
    Ok(())
}

/// Gives the next program the signal set-up that programs expect: nothing blocked, `SIGPIPE` deadly (Rust
/// ignores it, and ignored signals survive exec).
///
/// # Errors
/// When the kernel refuses.
pub fn reset_signals() -> io::Result<()> {
    // SAFETY:
    // - SIG_DFL is no handler that could run code of ours.
    unsafe { nix::sys::signal::signal(Signal::SIGPIPE, SigHandler::SigDfl) }?;
    SigSet::empty().thread_set_mask()?;
    Ok(())
}

/// Makes `target` (0, 1 or 2) another name of `source`.
///
/// # Errors
/// When the kernel refuses.
pub fn redirect(source: &impl AsRawFd, target: RawFd) -> io::Result<()> {
    debug_assert!((0..FIRST_DESCRIPTOR).contains(&target), "only stdio has no owner in Rust");
    // SAFETY:
    // - stdin, stdout and stderr have no owner: std only borrows them.
    Errno::result(unsafe { libc::dup2(source.as_raw_fd(), target) })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_forbid_forking() {
        // The test harness runs tests on threads of their own.
        assert!(SingleThreaded::prove().is_err());
    }
}
