//! The worker pool of sandbox init: forks workers ahead of requests, supervises and replaces them.
#![expect(unsafe_code, reason = "a forked child has only a part of the shared pages")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::unistd::Pid;

use crate::modes::local::{CallerConnection, LocalError, forward_frame};
use crate::sandbox::worker::WorkerSetup;
use crate::sandbox::worker_table::{Phase, SlotState, WorkerSlot, WorkerTable};
use crate::sys::clock::Deadline;
use crate::sys::page_buffer::PageBuffer;
use crate::sys::seqpacket::SocketError;
use crate::sys::wakeup::Wakeup;
use crate::sys::watch::Watch;
use crate::wire::frame::FRAME_MAX;

use super::handover;
use super::in_flight::{AssignedWork, LostWorker, WorkerActivity};
use super::signals::Ending;
use super::work::Work;

use self::process::{WorkerProcess, WorkerReport};

mod process;
mod readers;
mod suspension;
#[cfg(test)]
mod tests;

/// Wait before a worker that died without having served anything is replaced, in nanoseconds; doubles
/// with each such death in a row.
const BACKOFF_MIN_NS: u64 = 10_000_000;
/// Longest such wait in nanoseconds.
const BACKOFF_MAX_NS: u64 = 5_000_000_000;

/// Makes a worker: its pid and init's end of the socketpair. In the child it does not return.
pub trait ForkWorker {
    /// Forks one worker. The child accesses only its own slot and the common page of the worker table.
    ///
    /// # Errors
    /// When the kernel refuses; it is tried again later.
    fn fork(&self, setup: WorkerSetup<'_>) -> io::Result<(Pid, OwnedFd)>;
}

#[derive(Debug)]
enum PoolEntry {
    Occupied(WorkerProcess),
    /// To be forked at this time, not before.
    Vacant {
        not_before: u64,
    },
    /// To be forked when requests wait for it: the function was idle.
    Suspended,
}

/// All workers of one sandbox.
#[derive(Debug)]
pub struct WorkerPool<F> {
    fork: F,
    entries: Vec<PoolEntry>,
    /// A slot for each entry.
    table: WorkerTable,
    /// Wakes a follower.
    wakeup: Wakeup,
    /// Their sockets, keyed by worker number.
    watch: Watch,
    buffer: PageBuffer,
    early_deaths: u32,
    /// The log says already that workers make new instances for each request.
    not_renewed_told: bool,
}

impl<F: ForkWorker> WorkerPool<F> {
    /// `count` workers, to be forked by [`Self::fork_due`].
    ///
    /// # Errors
    /// When descriptors or memory run out.
    pub fn new(fork: F, count: usize) -> io::Result<Self> {
        let entries: Vec<_> =
            (0..count.max(1)).map(|_| PoolEntry::Vacant { not_before: 0 }).collect();
        let table = WorkerTable::new(entries.len())?;
        let (wakeup, watch) = (Wakeup::new()?, Watch::new()?);
        let (buffer, not_renewed_told) = (PageBuffer::new(FRAME_MAX), false);
        Ok(Self { fork, entries, table, wakeup, watch, buffer, early_deaths: 0, not_renewed_told })
    }

    /// The table that all workers share.
    pub const fn table(&self) -> &WorkerTable {
        &self.table
    }

    /// Forks the workers that are due. Readers get `connections`.
    ///
    /// # Errors
    /// The first refusal of the kernel; the worker is tried again after the backoff.
    pub fn fork_due(
        &mut self,
        now: u64,
        connections: impl Fn() -> Vec<CallerConnection>,
    ) -> io::Result<()> {
        for index in 0..self.entries.len() {
            if !matches!(self.entries[index], PoolEntry::Vacant { not_before } if not_before <= now)
            {
                continue;
            }
            let connections = if index < self.table.readers() { connections() } else { Vec::new() };
            match self.fork_at(index, connections) {
                Ok((pid, socket)) => {
                    self.entries[index] = PoolEntry::Occupied(WorkerProcess::new(pid, socket));
                }
                Err(error) => {
                    self.early_deaths = self.early_deaths.saturating_add(1);
                    let not_before = now.saturating_add(backoff_ns(self.early_deaths));
                    self.entries[index] = PoolEntry::Vacant { not_before };
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn fork_at(
        &self,
        index: usize,
        connections: Vec<CallerConnection>,
    ) -> io::Result<(Pid, OwnedFd)> {
        let slot = self.table.slot(index).ok_or(io::ErrorKind::NotFound)?;
        slot.reset();
        let setup = WorkerSetup { slot, connections, wakeup: self.wakeup.share()?.into() };
        // SAFETY:
        // - the child has a setup with this slot and never gets to the table or another slot (`ForkWorker::fork`).
        let forked = unsafe { self.table.pages().pass_on(index, || self.fork.fork(setup)) };
        let (pid, socket) = forked??;
        // Unwatched it would never be given work; it ends with its socket.
        self.watch.add(socket.as_fd(), u64::try_from(index).unwrap_or(u64::MAX))?;
        Ok((pid, socket))
    }

    fn workers(&self) -> impl Iterator<Item = (usize, &WorkerProcess, WorkerSlot<'_>)> {
        self.entries.iter().enumerate().filter_map(|(index, entry)| match entry {
            PoolEntry::Occupied(worker) => Some((index, worker, self.table.slot(index)?)),
            PoolEntry::Vacant { .. } | PoolEntry::Suspended => None,
        })
    }

    /// To be polled for input: a worker says something.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    /// Numbers of the workers that sent a message.
    pub fn ready(&self) -> impl Iterator<Item = usize> {
        self.watch.ready().into_iter().filter_map(|key| usize::try_from(key).ok())
    }

    /// Numbers and sockets of the workers that have not got all of their group, to be polled for room.
    pub fn unfed(&self) -> impl Iterator<Item = (usize, BorrowedFd<'_>)> {
        self.workers()
            .filter(|(_, worker, _)| {
                worker.running.as_ref().is_some_and(|it| !it.unsent.is_empty())
            })
            .map(|(index, worker, _)| (index, worker.socket.as_fd()))
    }

    /// Sends a worker the remaining parts of its group, as far as its socket has room.
    ///
    /// # Errors
    /// Gives the group back when a part cannot be sent at all; the worker, which waits for that part, is killed.
    pub fn feed(&mut self, index: usize) -> Result<(), (Work, LocalError)> {
        let Some(PoolEntry::Occupied(worker)) = self.entries.get_mut(index) else { return Ok(()) };
        let Some(running) = &mut worker.running else { return Ok(()) };
        while let Some(next) = running.unsent.front() {
            match next.send(worker.socket.as_fd(), &running.work) {
                Ok(()) => running.unsent.pop_front(),
                // Its exit is on the way, or there is no room.
                Err(LocalError::Socket(SocketError::Closed | SocketError::Deadline)) => break,
                Err(error) => {
                    worker.kill();
                    return worker.running.take().map_or(Ok(()), |it| Err((it.work, error)));
                }
            };
        }
        Ok(())
    }

    /// Reads what a worker says.
    pub fn read(&mut self, index: usize) -> WorkerReport {
        let (Some(PoolEntry::Occupied(worker)), Some(slot)) =
            (self.entries.get_mut(index), self.table.slot(index))
        else {
            return WorkerReport::default();
        };
        let mut said = worker.read(&mut self.buffer);
        if let Some(message) = said.not_renewed.take()
            && !std::mem::replace(&mut self.not_renewed_told, true)
        {
            crate::sandbox::stderr::try_line(&message);
        }
        // A message may be about an earlier turn; the slot says whether this one is over. It is asked after the last
        // message was read: there may be no other.
        worker.note_assigned(slot);
        said
    }

    /// True when every worker is there and has its first instance.
    #[must_use]
    pub fn complete(&self) -> bool {
        self.workers().filter(|(.., slot)| slot.state().has_started()).count() == self.entries.len()
    }

    /// The state of every slot. A vacant entry shows that of its last worker.
    pub fn states(&self) -> impl Iterator<Item = SlotState> {
        (0..self.entries.len()).filter_map(|index| Some(self.table.slot(index)?.state()))
    }

    /// Number of workers, of busy workers, and the bytes of all their pools, as they say.
    #[must_use]
    pub fn figures(&self) -> (u64, u64, u64) {
        self.workers().fold((0, 0, 0_u64), |(workers, busy, pool), (_, worker, slot)| {
            let is_busy = worker.running.is_some() || slot.state().is_busy();
            (workers + 1, busy + u64::from(is_busy), pool.saturating_add(slot.pool_bytes()))
        })
    }

    /// Resets the crash back-off: workers have served requests.
    pub const fn note_turns(&mut self) {
        self.early_deaths = 0;
    }

    /// A free worker; one that is still making its instance if there is no other.
    #[must_use]
    pub fn idle(&self) -> Option<usize> {
        let mut making = None;
        for (index, worker, slot) in self.workers() {
            let state = slot.state();
            if worker.can_begin(state) {
                if state.phase() != Phase::Making {
                    return Some(index);
                }
                making.get_or_insert(index);
            }
        }
        making
    }

    /// True when no worker has work.
    #[must_use]
    pub fn at_rest(&self) -> bool {
        !self.workers().any(|(_, worker, slot)| worker.running.is_some() || slot.state().is_busy())
    }

    /// Assigns work to a free worker.
    ///
    /// # Errors
    /// Gives the work back when the worker has just died or begun a request ([`None`]), or when the work cannot be
    /// sent.
    pub fn assign(
        &mut self,
        index: usize,
        work: Work,
        deadline: Deadline,
    ) -> Result<(), (Work, Option<LocalError>)> {
        let (Some(PoolEntry::Occupied(worker)), Some(slot)) =
            (self.entries.get_mut(index), self.table.slot(index))
        else {
            return Err((work, None));
        };
        let Some(turn) = slot.assign() else { return Err((work, None)) };
        let first = work.first();
        let sent = forward_frame(
            worker.socket.as_fd(),
            &handover::assignment(&work, deadline),
            &first.payload,
            &[first.connection.fd.as_fd()],
            Some(Deadline::PASSED),
        );
        match sent {
            Ok(()) => {
                let (unsent, begun) = (handover::rest(&work), false);
                worker.running = Some(AssignedWork { work, unsent, deadline, begun, turn });
                self.early_deaths = 0;
                // What does not go now is tried again when there is room.
                self.feed(index).map_err(|(work, error)| (work, Some(error)))
            }
            // Its exit follows; until then its state keeps it from being assigned anything.
            Err(LocalError::Socket(SocketError::Closed)) => Err((work, None)),
            Err(error) => {
                let _free_again = slot.unassign(turn);
                worker.wake();
                Err((work, Some(error)))
            }
        }
    }

    /// Kills workers whose deadlines have passed; their exits follow. A direct request has the deadline that its slot
    /// showed first, and at most `latest`.
    pub fn expire(&mut self, now: u64, latest: Option<Deadline>) {
        for (index, entry) in self.entries.iter_mut().enumerate() {
            let (PoolEntry::Occupied(worker), Some(slot)) = (entry, self.table.slot(index)) else {
                continue;
            };
            worker.note_assigned(slot);
            worker.note_taken(slot, latest);
            let assigned = worker.running.as_ref().map(|it| (it.turn, it.deadline));
            let over =
                |(turn, deadline): (_, Deadline)| deadline.has_passed(now) && slot.expire(turn);
            if assigned.or(worker.taken).is_some_and(over) {
                worker.kill();
            }
        }
    }

    /// Takes out a worker that ended; `None` when the pid is no worker's.
    pub fn remove(&mut self, pid: Pid, ending: Ending, now: u64) -> Option<LostWorker> {
        let index = self.workers().find(|(_, worker, _)| worker.pid == pid)?.0;
        // Its last messages may still be unread.
        let undelivered = self.read(index).undelivered;
        let slot = self.table.slot(index)?;
        let entry = self.entries.get_mut(index)?;
        let PoolEntry::Occupied(worker) = entry else { return None };
        let state = slot.state();
        let (starting, expired) = (!state.has_started(), state.phase() == Phase::Expired);
        let activity = WorkerActivity::of(worker.running.take(), slot);
        let proven = slot.has_run();
        // Its successor may be delayed by the back-off.
        if slot.clear_role() {
            self.wakeup.wake_one();
        }
        self.watch.remove(worker.socket.as_fd());
        self.early_deaths = if proven { 0 } else { self.early_deaths.saturating_add(1) };
        let wait = if proven { 0 } else { backoff_ns(self.early_deaths) };
        *entry = PoolEntry::Vacant { not_before: now.saturating_add(wait) };
        Some(LostWorker { ending, activity, expired, starting, undelivered })
    }

    /// Ends all workers and returns their activities.
    pub fn kill_all(&mut self) -> Vec<WorkerActivity> {
        let mut left = Vec::new();
        for (index, entry) in self.entries.iter_mut().enumerate() {
            let empty = PoolEntry::Vacant { not_before: u64::MAX };
            if let (PoolEntry::Occupied(mut worker), Some(slot)) =
                (std::mem::replace(entry, empty), self.table.slot(index))
            {
                let running = worker.running.take();
                let taken_back = running.as_ref().is_some_and(|it| slot.unassign(it.turn));
                worker.kill();
                left.push(match running {
                    Some(assigned) if taken_back => WorkerActivity::not_begun(assigned),
                    running => WorkerActivity::of(running, slot),
                });
            }
        }
        left
    }

    /// The next time at which a fork or a deadline is due.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Deadline> {
        let forks = self.entries.iter().filter_map(|entry| match entry {
            PoolEntry::Vacant { not_before } => Some(Deadline::at_ns(*not_before)),
            PoolEntry::Occupied(_) | PoolEntry::Suspended => None,
        });
        let deadlines = self.workers().filter_map(|(_, worker, slot)| match &worker.running {
            Some(running) => (slot.state().phase() != Phase::Expired).then_some(running.deadline),
            None => {
                let (turn, deadline) = worker.taken?;
                (slot.state() == turn).then_some(deadline)
            }
        });
        forks.chain(deadlines).min()
    }
}

fn backoff_ns(deaths: u32) -> u64 {
    let doublings = deaths.saturating_sub(1).min(16);
    (BACKOFF_MIN_NS << doublings).min(BACKOFF_MAX_NS)
}
