//! A bell that several processes share: whoever rings it wakes one of those that listen (eventfd).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::unistd::{read, write};

/// See the file's head.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    /// One that nobody has rung.
    ///
    /// # Errors
    /// When descriptors run out.
    pub fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Self(EventFd::from_flags(flags)?.into()))
    }

    /// The same bell, for another process.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn share(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }

    /// Wakes one of those that listen, or the next who does.
    pub fn ring(&self) {
        // It fails for one that was rung 2^64 - 2 times and never heard.
        let _rung = write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Has it be silent until it is rung again.
    pub fn hear(&self) {
        // It fails when somebody else heard it first.
        let _heard = read(&self.0, &mut [0; 8]);
    }
}

impl From<OwnedFd> for Bell {
    /// What [`Self::share`] gave.
    fn from(shared: OwnedFd) -> Self {
        Self(shared)
    }
}

impl AsFd for Bell {
    /// Readable until it is heard.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::watch::Watch;

    #[test]
    fn it_is_heard_once_by_one() {
        let bell = Bell::new().unwrap();
        let same = Bell::from(bell.share().unwrap());
        let watch = Watch::new().unwrap();
        watch.add(same.as_fd(), 1).unwrap();
        assert_eq!(watch.wait_one(Some(0)), None);
        bell.ring();
        bell.ring();
        assert_eq!(watch.wait_one(Some(0)), Some(1));
        same.hear();
        bell.hear();
        assert_eq!(watch.wait_one(Some(0)), None);
    }
}
