//! A set of watched descriptors (epoll): a query costs as much as there are ready descriptors, however many are
//! watched.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::clock::{Deadline, poll_timeout};

/// Most ready descriptors that one query returns; the next one returns the others.
pub const READY_MAX: usize = 128;

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

    /// Watches `fd` beside other watchers (`EPOLLEXCLUSIVE`): input wakes one waiting process, its end wakes all.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub fn add_exclusive(&self, fd: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLEXCLUSIVE;
        Ok(self.0.add(fd, EpollEvent::new(flags, key))?)
    }

    /// From now on watches `fd` for its end only.
    ///
    /// # Errors
    /// When it was never added.
    pub fn only_end(&self, fd: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        Ok(self.0.modify(fd, &mut EpollEvent::new(EpollFlags::EPOLLRDHUP, key))?)
    }

    /// Waits until `until` for the next of them; those that stay ready take turns.
    #[must_use]
    pub fn wait_one(&self, until: Option<Deadline>) -> Option<u64> {
        let mut events = [EpollEvent::empty()];
        let found = self.0.wait(&mut events, poll_timeout(until)).unwrap_or(0);
        (found > 0).then(|| events[0].data())
    }

    /// Stops watching `fd`. Needed before it is closed, because another process may hold the same open file.
    pub fn remove(&self, fd: BorrowedFd<'_>) {
        // It fails only for a descriptor that was never added.
        let _unknown = self.0.delete(fd);
    }

    /// Readable when a watched descriptor is.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.0.as_fd()
    }

    /// Keys of the descriptors that are readable or have ended.
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
    use crate::seqpacket::{pair, send};

    #[test]
    fn only_ready_descriptors_are_returned() {
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
    fn hang_ups_are_returned() {
        let watch = Watch::new().unwrap();
        let (ours, theirs) = pair().unwrap();
        watch.add(ours.as_fd(), 7).unwrap();
        drop(theirs);
        assert_eq!(watch.ready(), [7]);
    }

    #[test]
    fn messages_wake_one_waiter_and_hang_ups_all() {
        let (ours, theirs) = pair().unwrap();
        let copy = ours.try_clone().unwrap();
        let watches = [Watch::new().unwrap(), Watch::new().unwrap()];
        watches[0].add_exclusive(ours.as_fd(), 1).unwrap();
        watches[1].add_exclusive(copy.as_fd(), 2).unwrap();
        let ended = Watch::new().unwrap();
        ended.add(ours.as_fd(), 3).unwrap();
        ended.only_end(ours.as_fd(), 3).unwrap();
        let (woken, found) = std::thread::scope(|scope| {
            let (say, said) = std::sync::mpsc::channel();
            let waiting = watches.each_ref().map(|watch| {
                let say = say.clone();
                scope.spawn(move || {
                    say.send(nix::unistd::gettid()).unwrap();
                    watch.wait_one(None)
                })
            });
            said.iter().take(2).for_each(until_it_sleeps);
            send(theirs.as_fd(), &[b"x"], &[], None).unwrap();
            while !waiting.iter().any(|thread| thread.is_finished()) {
                std::thread::sleep(POLL);
            }
            // The other, were it woken too, would end by now.
            std::thread::sleep(20 * POLL);
            let woken = waiting.iter().filter(|thread| thread.is_finished()).count();
            let found = ended.ready();
            drop(theirs);
            (woken, (found, waiting.map(|thread| thread.join().unwrap())))
        });
        assert_eq!((woken, found), (1, (vec![], [Some(1), Some(2)])));
        assert_eq!(ended.ready(), [3]);
        assert_eq!(
            watches.each_ref().map(|watch| watch.wait_one(Some(Deadline::PASSED))),
            [Some(1), Some(2)]
        );
    }

    /// Between two checks of another thread's progress.
    const POLL: std::time::Duration = std::time::Duration::from_millis(5);

    /// Waits until a thread of this process waits.
    fn until_it_sleeps(thread: nix::unistd::Pid) {
        let sleeps = || {
            let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
            stat.rsplit_once(") ").unwrap().1.starts_with('S')
        };
        while !sleeps() {
            std::thread::sleep(POLL);
        }
    }

    #[test]
    fn many_ready_descriptors_take_several_polls() {
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
