//! Pidfds: a signal reaches the intended process, and never a later one with the same number.
#![expect(
    unsafe_code,
    reason = "pidfd_open(2) and pidfd_send_signal(2) have no safe wrapper in our libraries"
)]

use std::io;
use std::os::fd::{AsFd as _, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// A reference to one process.
#[derive(Debug)]
pub struct PidFd(OwnedFd);

impl PidFd {
    /// Opens the process that has this number now.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn open(pid: i32) -> io::Result<Self> {
        // SAFETY:
        // - pidfd_open takes two integers and touches no memory of ours.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        let fd = RawFd::try_from(fd).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY:
        // - the kernel just returned this descriptor; it has no other owner. It is close-on-exec.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Sends a signal to it.
    ///
    /// # Errors
    /// `ESRCH` when it has ended, `EINVAL` when there is no such signal.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        let info: *const libc::siginfo_t = std::ptr::null();
        // SAFETY:
        // - `info` may be null: the kernel then fills in what kill(2) would.
        // - the descriptor is open for the duration of the call.
        let result = unsafe {
            libc::syscall(libc::SYS_pidfd_send_signal, self.0.as_raw_fd(), signal, info, 0)
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Waits until it has ended; false when it has not after `longest`. Blocks the thread.
    #[must_use]
    pub fn wait(&self, longest: Duration) -> bool {
        let deadline = Instant::now() + longest;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            match poll(&mut [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)], left) {
                Ok(1..) => return true,
                Err(Errno::EINTR) => {}
                Ok(_) if Instant::now() < deadline => {}
                Ok(_) | Err(_) => return false,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signal_zero_succeeds_and_nonsense_is_refused() {
        let own = PidFd::open(i32::try_from(std::process::id()).unwrap()).unwrap();
        own.signal(0).unwrap();
        assert_eq!(own.signal(-1).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        assert!(PidFd::open(i32::MAX).is_err());
    }
}
