//! Waiting: the events of a secondary's sandbox init, and when it wakes without one.

use nix::poll::{PollFd, PollFlags, poll};

use crate::modes::local::ConnectionId;
use crate::sandbox::init::barrier::Barrier;
use crate::sandbox::init::poll_timeout;
use crate::sandbox::stderr;
use crate::sys::clock::{Deadline, monotonic_ns};
use crate::vm::Module;

use super::Secondary;

/// The sources that one poll found ready.
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
    /// Waits for the next event. Workers and connections are many, so an epoll descriptor stands for all of them.
    pub(super) fn wait(&mut self) -> ReadyEvents {
        let now = monotonic_ns();
        let listener = self.receiver.listener().filter(|_| self.accept_after <= now);
        let unfed: Vec<_> = self.pool.unfed().collect();
        let input = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let room = |fd| PollFd::new(fd, PollFlags::POLLOUT);
        let mut fds = vec![
            input(self.signals.as_fd()),
            input(self.pool.as_fd()),
            input(self.receiver.as_fd()),
        ];
        let reads_shared = self.reads_shared();
        let sleep = self.sleep();
        // A waiting request wakes init, because the worker that should read it may be stopped or slow.
        let asleep = self.watchdog.is_some() && sleep.is_none();
        fds.extend(listener.map(input));
        fds.extend((reads_shared || asleep).then(|| input(self.receiver.shared_fd())));
        // A new reader of the log learns how many lines were dropped.
        let untold = stderr::log().filter(|log| log.wants_room());
        fds.extend(untold.iter().map(|log| room(log.as_fd())));
        fds.extend(unfed.iter().map(|(_, fd)| room(*fd)));
        let callers: Vec<_> = self.send_queue.sockets().collect();
        fds.extend(callers.iter().map(|(_, fd)| room(*fd)));
        let wakeup =
            [self.next_wakeup(now), sleep.map(Deadline::at_ns)].into_iter().flatten().min();
        let _interrupted = poll(&mut fds, poll_timeout(wakeup));
        self.pool.table().control().set_asleep(false);
        let mut hits = fds.iter().map(|fd| fd.any().unwrap_or(false));
        let mut hit = || hits.next().unwrap_or(false);
        let (signals, workers, connections) = (hit(), hit(), hit());
        let listener = listener.is_some() && hit();
        let waiting = (reads_shared || asleep) && hit();
        if let Some(log) = untold.as_ref().filter(|_| hit()) {
            log.tell_dropped();
        }
        let fed: Vec<_> = unfed.iter().filter(|_| hit()).map(|(index, _)| *index).collect();
        let room = callers.iter().filter(|_| hit()).map(|(index, _)| *index).collect();
        let said = workers.then(|| self.pool.ready()).into_iter().flatten();
        let mut connections: Vec<_> =
            connections.then(|| self.receiver.ready()).into_iter().flatten().collect();
        if reads_shared && waiting {
            connections.extend(self.receiver.shared_ready());
        }
        let readiness = ReadyEvents {
            signals,
            workers: said.chain(fed).collect(),
            room,
            connections,
            listener,
        };
        if let Some(watchdog) = self.watchdog.as_mut().filter(|_| asleep && waiting) {
            watchdog.reset();
        }
        readiness
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
