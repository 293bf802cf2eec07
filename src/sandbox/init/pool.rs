//! The worker pool of sandbox init: forks workers ahead of requests, supervises and replaces them.
#![expect(unsafe_code, reason = "a forked child has only a part of the shared pages")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use nix::unistd::Pid;

use crate::modes::local::{CallerConnection, LocalError};
use crate::sandbox::work::Work;
use crate::sandbox::worker::WorkerSetup;
use crate::sandbox::worker_table::{Phase, SlotState, WorkerSlot, WorkerTable};
use crate::sys::clock::Deadline;
use crate::sys::page_buffer::PageBuffer;
use crate::sys::seqpacket::SocketError;
use crate::sys::wakeup::Wakeup;
use crate::sys::watch::Watch;
use crate::wire::frame::FRAME_MAX;

use super::handover::send_call;
use super::in_flight::{InFlight, LostWorker, RequestInFlight, WorkerActivity};
use super::signals::Ending;

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
enum PoolEntry<'t> {
    Occupied(WorkerProcess<'t>),
    /// To be forked at this time, not before.
    Vacant {
        not_before: u64,
    },
    /// To be forked when requests wait for it: the function was idle.
    Suspended,
}

impl<'t> PoolEntry<'t> {
    const fn worker(&self) -> Option<&WorkerProcess<'t>> {
        if let Self::Occupied(worker) = self { Some(worker) } else { None }
    }

    const fn worker_mut(&mut self) -> Option<&mut WorkerProcess<'t>> {
        if let Self::Occupied(worker) = self { Some(worker) } else { None }
    }
}

/// All workers of one sandbox.
#[derive(Debug)]
pub struct WorkerPool<'t, F> {
    fork: F,
    /// One for each slot of the table.
    entries: Vec<PoolEntry<'t>>,
    table: &'t WorkerTable,
    /// Wakes a follower.
    wakeup: Rc<Wakeup>,
    /// Their sockets, keyed by worker number.
    watch: Watch,
    buffer: PageBuffer,
    early_deaths: u32,
    /// The log says already that workers make new instances for each request.
    not_renewed_told: bool,
}

impl<'t, F: ForkWorker> WorkerPool<'t, F> {
    /// A worker for each slot of the table, to be forked by [`Self::fork_due`].
    ///
    /// # Errors
    /// When descriptors or memory run out.
    pub fn new(fork: F, table: &'t WorkerTable) -> io::Result<Self> {
        let entries = table.slots().map(|_| PoolEntry::Vacant { not_before: 0 }).collect();
        let (wakeup, watch) = (Rc::new(Wakeup::new()?), Watch::new()?);
        let (buffer, not_renewed_told) = (PageBuffer::new(FRAME_MAX), false);
        Ok(Self { fork, entries, table, wakeup, watch, buffer, early_deaths: 0, not_renewed_told })
    }

    /// The table that all workers share.
    pub const fn table(&self) -> &'t WorkerTable {
        self.table
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
        for (index, slot) in self.table.slots().enumerate() {
            if !matches!(self.entries[index], PoolEntry::Vacant { not_before } if not_before <= now)
            {
                continue;
            }
            let connections = if slot.is_reader() { connections() } else { Vec::new() };
            match self.fork_at(index, slot, connections) {
                Ok(worker) => self.entries[index] = PoolEntry::Occupied(worker),
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
        slot: WorkerSlot<'t>,
        connections: Vec<CallerConnection>,
    ) -> io::Result<WorkerProcess<'t>> {
        slot.reset();
        let setup = WorkerSetup { slot, connections, wakeup: Rc::clone(&self.wakeup) };
        // SAFETY:
        // - the child has a setup with this slot and never gets to the table or another slot (`ForkWorker::fork`).
        let forked = unsafe { self.table.pages().pass_on(index, || self.fork.fork(setup)) };
        let (pid, socket) = forked??;
        // Unwatched it would never be given work; it ends with its socket.
        self.watch.add(socket.as_fd(), u64::try_from(index).unwrap_or(u64::MAX))?;
        Ok(WorkerProcess { slot, pid, socket, stopped: false, in_flight: None })
    }

    fn workers(&self) -> impl Iterator<Item = &WorkerProcess<'t>> {
        self.entries.iter().filter_map(PoolEntry::worker)
    }

    fn worker_mut(&mut self, index: usize) -> Option<&mut WorkerProcess<'t>> {
        self.entries.get_mut(index)?.worker_mut()
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
        self.entries.iter().enumerate().filter_map(|(index, entry)| {
            let worker = entry.worker()?;
            let unfed = worker.in_flight.as_ref().is_some_and(InFlight::has_unsent);
            unfed.then(|| (index, worker.socket.as_fd()))
        })
    }

    /// Sends a worker the remaining calls of its group, as far as its socket has room.
    ///
    /// # Errors
    /// Gives the group back when a call cannot be sent at all; the worker, which waits for that call, is killed.
    pub fn feed(&mut self, index: usize) -> Result<(), (Work, LocalError)> {
        let Some(worker) = self.worker_mut(index) else { return Ok(()) };
        worker.feed()
    }

    /// Reads what a worker says.
    pub fn read(&mut self, index: usize) -> WorkerReport {
        let Some(PoolEntry::Occupied(worker)) = self.entries.get(index) else {
            return WorkerReport::default();
        };
        let mut said = worker.read(&mut self.buffer);
        if let Some(message) = said.not_renewed.take()
            && !std::mem::replace(&mut self.not_renewed_told, true)
        {
            crate::sandbox::stderr::try_line(&message);
        }
        said
    }

    /// True when every worker is there and has its first instance.
    #[must_use]
    pub fn complete(&self) -> bool {
        self.entries.iter().all(|entry| entry.worker().is_some_and(WorkerProcess::has_started))
    }

    /// The state of every slot. A vacant entry shows that of its last worker.
    pub fn states(&self) -> impl Iterator<Item = SlotState> {
        self.table.slots().map(|slot| slot.state())
    }

    /// Number of workers, of busy workers, and the bytes of all their pools, as they say.
    #[must_use]
    pub fn figures(&self) -> (u64, u64, u64) {
        self.workers().fold((0, 0, 0_u64), |(workers, busy, pool), WorkerProcess { slot, .. }| {
            let is_busy = u64::from(slot.state().is_busy());
            (workers + 1, busy + is_busy, pool.saturating_add(slot.pool_bytes()))
        })
    }

    /// How many workers will take a request without running another guest first.
    #[must_use]
    pub fn free_soon(&self) -> usize {
        self.workers().filter(|worker| worker.can_begin_soon()).count()
    }

    /// Resets the crash back-off: workers have served requests.
    pub const fn note_turns(&mut self) {
        self.early_deaths = 0;
    }

    /// A free worker; one that is still making its instance if there is no other.
    #[must_use]
    pub fn idle(&self) -> Option<usize> {
        let mut making = None;
        for (index, entry) in self.entries.iter().enumerate() {
            let Some(worker) = entry.worker().filter(|worker| worker.can_begin()) else { continue };
            if worker.slot.state().phase() != Phase::Making {
                return Some(index);
            }
            making.get_or_insert(index);
        }
        making
    }

    /// True when no worker has work.
    #[must_use]
    pub fn at_rest(&self) -> bool {
        !self.workers().any(|worker| worker.slot.state().is_busy())
    }

    /// Assigns work to a free worker.
    ///
    /// # Errors
    /// Gives the work back when the worker has just died or begun a request ([`None`]), or when the work cannot be
    /// sent.
    pub fn assign(&mut self, index: usize, work: Work) -> Result<(), (Work, Option<LocalError>)> {
        let Some(worker) = self.worker_mut(index) else { return Err((work, None)) };
        let Some(turn) = worker.slot.assign() else { return Err((work, None)) };
        match send_call(worker.socket.as_fd(), &work, 0) {
            Ok(_first) => {
                let (deadline, request) =
                    (work.deadline, RequestInFlight::Assigned { work, sent: 1 });
                worker.in_flight = Some(InFlight { turn, deadline, request });
                // What does not go now is tried again when there is room.
                let fed = worker.feed();
                self.early_deaths = 0;
                fed.map_err(|(work, error)| (work, Some(error)))
            }
            // Its exit follows; until then its state keeps it from being assigned anything.
            Err(LocalError::Socket(SocketError::Closed)) => Err((work, None)),
            Err(error) => {
                let _free_again = worker.slot.unassign(turn);
                worker.wake();
                Err((work, Some(error)))
            }
        }
    }

    /// Kills workers whose deadlines have passed; their exits follow. Direct requests end at `latest` at the latest.
    pub fn expire(&mut self, now: u64, latest: Option<Deadline>) {
        for worker in self.entries.iter_mut().filter_map(PoolEntry::worker_mut) {
            worker.look(latest);
            let late = worker.in_flight.as_ref().filter(|it| it.deadline.has_passed(now));
            if late.is_some_and(|late| worker.slot.expire(late.turn)) {
                worker.kill();
            }
        }
    }

    /// Takes out a worker that ended; `None` when the pid is no worker's.
    pub fn remove(&mut self, pid: Pid, ending: Ending, now: u64) -> Option<LostWorker> {
        let is_it = |entry: &PoolEntry<'_>| entry.worker().is_some_and(|worker| worker.pid == pid);
        let index = self.entries.iter().position(is_it)?;
        // Its last messages may still be unread.
        let undelivered = self.read(index).undelivered;
        let worker = self.take(index, PoolEntry::Suspended)?;
        let (slot, state) = (worker.slot, worker.slot.state());
        let (starting, expired) = (!state.has_started(), state.phase() == Phase::Expired);
        // Its successor may be delayed by the back-off.
        self.early_deaths = if slot.has_run() { 0 } else { self.early_deaths.saturating_add(1) };
        let wait = if slot.has_run() { 0 } else { backoff_ns(self.early_deaths) };
        self.entries[index] = PoolEntry::Vacant { not_before: now.saturating_add(wait) };
        Some(LostWorker { ending, activity: worker.activity(), expired, starting, undelivered })
    }

    /// Takes a worker out of its entry and out of the readers.
    fn take(&mut self, index: usize, entry: PoolEntry<'t>) -> Option<WorkerProcess<'t>> {
        let PoolEntry::Occupied(worker) = std::mem::replace(&mut self.entries[index], entry) else {
            return None;
        };
        self.watch.remove(worker.socket.as_fd());
        if worker.slot.clear_role() {
            self.wakeup.wake_one();
        }
        Some(worker)
    }

    /// Ends all workers and returns their activities.
    pub fn kill_all(&mut self) -> Vec<WorkerActivity> {
        let entries = self.entries.iter_mut();
        let empty = || PoolEntry::Vacant { not_before: u64::MAX };
        let left = entries.filter_map(|entry| match std::mem::replace(entry, empty()) {
            PoolEntry::Occupied(worker) => Some(worker.end()),
            PoolEntry::Vacant { .. } | PoolEntry::Suspended => None,
        });
        left.collect()
    }

    /// The next time at which a fork or a deadline is due.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Deadline> {
        let due = self.entries.iter().filter_map(|entry| match entry {
            PoolEntry::Vacant { not_before } => Some(Deadline::at_ns(*not_before)),
            PoolEntry::Occupied(worker) => worker.deadline(),
            PoolEntry::Suspended => None,
        });
        due.min()
    }
}

fn backoff_ns(deaths: u32) -> u64 {
    let doublings = deaths.saturating_sub(1).min(16);
    (BACKOFF_MIN_NS << doublings).min(BACKOFF_MAX_NS)
}
