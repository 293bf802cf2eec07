//! Waiting: the events of a secondary's sandbox init, and when it wakes without one.

use nix::poll::{PollFd, PollFlags, poll};

use crate::modes::local::ConnectionId;
use crate::sandbox::function_log::FunctionLog;
use crate::sandbox::init::barrier::Barrier;
use crate::sandbox::init::poll_timeout;
use crate::sandbox::stderr;
use crate::sys::clock::{Deadline, monotonic_ns};
use crate::vm::Module;

use super::Secondary;

/// What a polled descriptor stands for. Workers and connections are many, so an epoll descriptor stands for all of them.
#[derive(Clone, Copy)]
enum Source {
    Signals,
    Workers,
    /// Connections that only init reads, and the ends of others.
    Connections,
    /// Connections that workers read, too.
    Shared,
    Listener,
    /// A new reader of the log learns how many lines were dropped.
    Log,
    /// A worker that has not got all of its group.
    Unfed(usize),
    /// A caller with waiting answers.
    Caller(usize),
}

/// The sources that one poll found ready.
#[derive(Default)]
pub(super) struct ReadyEvents {
    pub(super) workers: Vec<usize>,
    /// Connections that init reads, or that have ended.
    pub(super) connections: Vec<ConnectionId>,
    /// Callers that have room for answers, by their numbers in the send queue.
    pub(super) room: Vec<usize>,
    pub(super) listener: bool,
    pub(super) signals: bool,
}

impl<M: Module> Secondary<'_, M> {
    /// Waits for the next event.
    pub(super) fn wait(&mut self) -> ReadyEvents {
        let now = monotonic_ns();
        let (reads_shared, sleep) = (self.reads_shared(), self.sleep());
        // A waiting request wakes init, because the worker that should read it may be stopped or slow.
        let asleep = self.watchdog.is_some() && sleep.is_none();
        let log = stderr::log().filter(|log| log.wants_room());
        let (sources, mut fds) = self.sources(now, log.as_deref(), reads_shared || asleep);
        let wakeup =
            [self.next_wakeup(now), sleep.map(Deadline::at_ns)].into_iter().flatten().min();
        let _interrupted = poll(&mut fds, poll_timeout(wakeup));
        self.pool.table().control().set_asleep(false);
        let hit: Vec<_> = fds.iter().map(|fd| fd.any().unwrap_or(false)).collect();
        let mut ready = ReadyEvents::default();
        for (source, _) in sources.into_iter().zip(hit).filter(|(_, hit)| *hit) {
            match source {
                Source::Signals => ready.signals = true,
                Source::Listener => ready.listener = true,
                Source::Workers => ready.workers.extend(self.pool.ready()),
                Source::Unfed(index) => ready.workers.push(index),
                Source::Connections => ready.connections.extend(self.receiver.ready()),
                Source::Caller(index) => ready.room.push(index),
                Source::Log => log.iter().for_each(|log| log.tell_dropped()),
                Source::Shared => {
                    if reads_shared {
                        ready.connections.extend(self.receiver.shared_ready());
                    }
                    if let Some(watchdog) = self.watchdog.as_mut().filter(|_| asleep) {
                        watchdog.reset();
                    }
                }
            }
        }
        ready
    }

    /// The descriptors to poll; with the shared connections if `shared`.
    fn sources<'s>(
        &'s self,
        now: u64,
        log: Option<&'s FunctionLog>,
        shared: bool,
    ) -> (Vec<Source>, Vec<PollFd<'s>>) {
        let input = |source, fd| (source, PollFd::new(fd, PollFlags::POLLIN));
        let room = |source, fd| (source, PollFd::new(fd, PollFlags::POLLOUT));
        let listener = self.receiver.listener().filter(|_| self.accept_after <= now);
        let unfed = self.pool.unfed().map(|(index, fd)| room(Source::Unfed(index), fd));
        let callers = self.send_queue.sockets().map(|(index, fd)| room(Source::Caller(index), fd));
        let sources = [
            input(Source::Signals, self.signals.as_fd()),
            input(Source::Workers, self.pool.as_fd()),
            input(Source::Connections, self.receiver.as_fd()),
        ];
        let sources = sources
            .into_iter()
            .chain(shared.then(|| input(Source::Shared, self.receiver.shared_fd())))
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
            [self.idle_at(), accept, stop, self.reports.due()].map(|at| at.map(Deadline::at_ns));
        waiting.into_iter().chain(own).chain([self.pool.next_wakeup()]).flatten().min()
    }
}
