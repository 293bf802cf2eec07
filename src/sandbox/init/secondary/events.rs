//! Waiting for the events of a secondary's sandbox init.

use std::os::fd::{BorrowedFd, RawFd};

use nix::poll::{PollFd, PollFlags, poll};

use cwasi_sys::clock::{Deadline, poll_timeout};

/// What a polled descriptor stands for. Workers and connections are many, so an epoll descriptor stands for all of
/// them.
#[derive(Clone, Copy)]
pub(super) enum Source {
    Workers,
    Signals,
    Listener,
    /// Connections that only init reads, and the ends of others.
    Connections,
    /// Connections that workers read, too, while init reads them.
    Shared,
    /// The same connections, while init sleeps: a waiting request wakes init, because the worker that should read it
    /// may be stopped or slow.
    Asleep,
    /// A new reader of the log learns how many lines were dropped.
    Log,
    /// A worker that has not got all of its group.
    PartialGroup(usize),
    /// A caller with waiting answers.
    Caller(RawFd),
}

/// The descriptors of one wait.
#[derive(Default)]
pub(super) struct PollSet<'s> {
    sources: Vec<Source>,
    fds: Vec<PollFd<'s>>,
}

impl<'s> PollSet<'s> {
    /// Waits for input of a source.
    pub fn input(&mut self, source: Source, fd: BorrowedFd<'s>) {
        self.add(source, fd, PollFlags::POLLIN);
    }

    /// Waits for room to write to a source.
    pub fn room(&mut self, source: Source, fd: BorrowedFd<'s>) {
        self.add(source, fd, PollFlags::POLLOUT);
    }

    fn add(&mut self, source: Source, fd: BorrowedFd<'s>, flags: PollFlags) {
        self.sources.push(source);
        self.fds.push(PollFd::new(fd, flags));
    }

    /// Waits until `wakeup`. Returns the sources that are ready, in the order in which they were added.
    pub fn wait(mut self, wakeup: Option<Deadline>) -> Vec<Source> {
        let _interrupted = poll(&mut self.fds, poll_timeout(wakeup));
        let ready = self.fds.iter().map(|fd| fd.any().unwrap_or(false));
        self.sources
            .into_iter()
            .zip(ready)
            .filter_map(|(source, is)| is.then_some(source))
            .collect()
    }
}
