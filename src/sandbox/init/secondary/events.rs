//! Waiting: the events of a secondary's sandbox init, and when it wakes without one.

use std::os::fd::RawFd;

use nix::poll::{PollFd, PollFlags, poll};

use crate::function_log::FunctionLog;
use crate::init::barrier::Barrier;
use crate::stderr;
use cwasi_sys::clock::{Deadline, monotonic_ns, poll_timeout};
use cwasi_vm::Module;

use super::Secondary;

/// What a polled descriptor stands for. Workers and connections are many, so an epoll descriptor stands for all of them.
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
    Unfed(usize),
    /// A caller with waiting answers.
    Caller(RawFd),
}

impl<M: Module> Secondary<'_, M> {
    /// Waits for the next event. Returns the sources that have something, in the order of [`Self::sources`].
    pub(super) fn wait(&mut self) -> Vec<Source> {
        let now = monotonic_ns();
        let sleep = self.sleep();
        let shared = match self.watchdog {
            _ if self.reads_shared() => Some(Source::Shared),
            Some(_) if sleep.is_none() => Some(Source::Asleep),
            _ => None,
        };
        let log = stderr::log().filter(|log| log.wants_room());
        let (sources, mut fds) = self.sources(now, log.as_deref(), shared);
        let wakeup =
            [self.next_wakeup(now), sleep.map(Deadline::at_ns)].into_iter().flatten().min();
        let _interrupted = poll(&mut fds, poll_timeout(wakeup));
        self.pool.table.control().set_asleep(false);
        let hit = fds.iter().map(|fd| fd.any().unwrap_or(false));
        sources.into_iter().zip(hit).filter_map(|(source, hit)| hit.then_some(source)).collect()
    }

    /// The descriptors to poll. A worker's last messages are read before its exit is noticed.
    fn sources<'s>(
        &'s self,
        now: u64,
        log: Option<&'s FunctionLog>,
        shared: Option<Source>,
    ) -> (Vec<Source>, Vec<PollFd<'s>>) {
        let input = |source, fd| (source, PollFd::new(fd, PollFlags::POLLIN));
        let room = |source, fd| (source, PollFd::new(fd, PollFlags::POLLOUT));
        let listener = self.receiver.listener().filter(|_| self.accept_after <= now);
        let unfed = self.pool.unfed().map(|(index, fd)| room(Source::Unfed(index), fd));
        let callers =
            self.send_queue.sockets().map(|(number, fd)| room(Source::Caller(number), fd));
        let sources = [
            input(Source::Workers, self.pool.as_fd()),
            input(Source::Signals, self.signals.as_fd()),
            input(Source::Connections, self.receiver.as_fd()),
        ];
        let sources = sources
            .into_iter()
            .chain(shared.map(|source| input(source, self.receiver.shared_fd())))
            .chain(listener.map(|fd| input(Source::Listener, fd)))
            .chain(log.map(|log| room(Source::Log, log.as_fd())));
        sources.chain(unfed).chain(callers).unzip()
    }

    fn next_wakeup(&self, now: u64) -> Option<Deadline> {
        let accept = (self.accept_after > now).then_some(self.accept_after);
        let stop = self.stop.map(|stop| stop.until);
        let parts = self.barrier.as_ref().and_then(Barrier::next_deadline);
        let waiting = [self.queue.next_deadline(), parts, self.send_queue.next_deadline()];
        let own =
            [self.idle_at(), accept, stop, self.reports.next].map(|at| at.map(Deadline::at_ns));
        waiting.into_iter().chain(own).chain([self.pool.next_wakeup()]).flatten().min()
    }
}
