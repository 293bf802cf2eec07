//! Wakes one of several processes that sleep, or the next one that goes to sleep (eventfd).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::eventfd::{EfdFlags, EventFd};

/// See the file's head.
#[derive(Debug)]
pub struct Wakeup(EventFd);

impl Wakeup {
    /// A wake-up without a pending signal.
    ///
    /// # Errors
    /// When descriptors run out.
    pub fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Self(EventFd::from_flags(flags)?))
    }

    /// Wakes one of the processes that sleep on it, or the next one that does.
    pub fn wake_one(&self) {
        // Fails only after 2^64 - 2 wake-ups that were not cleared.
        let _woken = self.0.write(1);
    }

    /// Clears it, so that processes can sleep on it until the next [`Self::wake_one`].
    pub fn clear(&self) {
        // It fails when another process cleared it first.
        let _cleared = self.0.read();
    }
}

impl AsFd for Wakeup {
    /// Readable until it is cleared.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Deadline;
    use crate::watch::Watch;

    #[test]
    fn one_wakeup_wakes_one_process() {
        let wakeup = Wakeup::new().unwrap();
        let watch = Watch::new().unwrap();
        watch.add(wakeup.as_fd(), 1).unwrap();
        assert_eq!(watch.wait_one(Some(Deadline::PASSED)), None);
        wakeup.wake_one();
        wakeup.wake_one();
        assert_eq!(watch.wait_one(Some(Deadline::PASSED)), Some(1));
        wakeup.clear();
        wakeup.clear();
        assert_eq!(watch.wait_one(Some(Deadline::PASSED)), None);
    }
}
