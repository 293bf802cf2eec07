//! Many descriptors of which few are ready: a look costs what is ready, not what is watched (epoll).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

/// Most descriptors that one look finds; the others are found by the next.
const READY_MAX: usize = 128;

/// Descriptors that are watched for input, each under a number of its owner's choice.
#[derive(Debug)]
pub struct Watch(Epoll);

impl Watch {
    /// Watches nothing yet.
    ///
    /// # Errors
    /// When descriptors run out.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?))
    }

    /// Watches `fd` until [`Self::remove`].
    ///
    /// # Errors
    /// When the kernel cannot watch it, or watches as many as this user may.
    pub fn add(&self, fd: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        Ok(self.0.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, key))?)
    }

    /// Ends the watching, before `fd` is closed: another process may hold what is behind it.
    pub fn remove(&self, fd: BorrowedFd<'_>) {
        // It fails for what was never added only.
        let _unknown = self.0.delete(fd);
    }

    /// Readable when something watched is.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.0.as_fd()
    }

    /// Numbers of what can be read now, or has ended.
    #[must_use]
    pub fn ready(&self) -> Vec<u64> {
        let mut events = [EpollEvent::empty(); READY_MAX];
        let found = self.0.wait(&mut events, EpollTimeout::ZERO).unwrap_or(0);
        events.iter().take(found).map(EpollEvent::data).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::seqpacket::{pair, send};

    #[test]
    fn only_what_is_ready_and_still_watched_is_found() {
        let watch = Watch::new().unwrap();
        let pairs: Vec<_> = (0..3).map(|_| pair().unwrap()).collect();
        for (key, (ours, _)) in (10..).zip(&pairs) {
            watch.add(ours.as_fd(), key).unwrap();
        }
        assert!(watch.ready().is_empty());
        send(pairs[1].1.as_fd(), &[b"x"], &[], None).unwrap();
        assert_eq!(watch.ready(), [11]);
        assert_eq!(watch.ready(), [11], "until it is read");
        // A copy of the descriptor keeps the socket alive.
        let _copy = pairs[1].0.try_clone().unwrap();
        watch.remove(pairs[1].0.as_fd());
        assert!(watch.ready().is_empty());
    }

    #[test]
    fn an_end_is_found() {
        let watch = Watch::new().unwrap();
        let (ours, theirs) = pair().unwrap();
        watch.add(ours.as_fd(), 7).unwrap();
        drop(theirs);
        assert_eq!(watch.ready(), [7]);
    }

    #[test]
    fn more_than_one_look_finds_are_found_by_several() {
        let watch = Watch::new().unwrap();
        let pairs: Vec<_> = (0..READY_MAX + 1).map(|_| pair().unwrap()).collect();
        let mut left: Vec<u64> = (0..).take(pairs.len()).collect();
        for (key, (ours, theirs)) in (0..).zip(&pairs) {
            watch.add(ours.as_fd(), key).unwrap();
            send(theirs.as_fd(), &[b"x"], &[], None).unwrap();
        }
        for key in watch.ready().into_iter().chain(watch.ready()) {
            left.retain(|other| *other != key);
        }
        assert!(left.is_empty(), "the ready ones take turns: {left:?}");
    }
}
