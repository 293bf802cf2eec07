//! The worker pool of sandbox init: forks workers ahead of requests, supervises and replaces them.
#![expect(unsafe_code, reason = "a forked child has only a part of the shared pages")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use crate::work::Work;
use crate::worker::WorkerSetup;
use crate::worker_table::{Phase, SlotState, WorkerSlot, WorkerTable};
use cwasi_modes::local::{CallerConnection, LocalError};
use cwasi_sys::clock::Deadline;
use cwasi_sys::page_buffer::PageBuffer;
use cwasi_sys::wakeup::Wakeup;
use cwasi_sys::watch::Watch;
use cwasi_wire::control::FunctionReport;
use cwasi_wire::frame::FRAME_MAX;

use super::in_flight::{InFlight, LostWorker, WorkerActivity};

use self::process::WorkerProcess;

pub use self::process::WorkerReport;

mod added;
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
/// Deaths after which it certainly is the longest.
const DOUBLINGS_MAX: u32 = 16;

/// Forks a worker: its pid and init's end of the socketpair. In the child it does not return. The child accesses only
/// its own slot and the common page of the worker table. A fork that the kernel refuses is tried again later.
pub type ForkWorker<'t> = Box<dyn Fn(WorkerSetup<'_>) -> io::Result<(Pid, OwnedFd)> + 't>;

/// A worker that the kernel did not fork.
#[derive(Debug, thiserror::Error)]
#[error("a worker cannot be forked{}", self.why())]
pub struct NotForked {
    /// The function goes on without it.
    pub is_added: bool,
    pub source: io::Error,
}

impl NotForked {
    /// The limit that the kernel may have met, and its error.
    #[must_use]
    pub fn why(&self) -> String {
        let hint = match self.source.raw_os_error() {
            Some(libc::EAGAIN) => {
                ": the container's pids limit, or its user's RLIMIT_NPROC, allows no more processes"
            }
            _ => "",
        };
        format!("{hint}: {}", self.source)
    }
}

/// The place of a worker.
#[derive(Debug)]
struct PoolEntry<'t> {
    worker: Option<WorkerProcess<'t>>,
    /// When the next worker is forked, if there is none; `None` while it is suspended.
    fork_at: Option<u64>,
}

impl PoolEntry<'_> {
    const fn is_suspended(&self) -> bool {
        self.worker.is_none() && self.fork_at.is_none()
    }
}

/// All workers of one sandbox.
pub struct WorkerPool<'t> {
    fork: ForkWorker<'t>,
    /// Those of the first slots of the table: as many as there were workers at a time.
    entries: Vec<PoolEntry<'t>>,
    /// Workers that the function always has; further ones are [`added`].
    least: usize,
    /// The table that all workers share.
    pub table: &'t WorkerTable,
    wakeup: Rc<Wakeup>,
    /// Their sockets, keyed by worker number.
    watch: Watch,
    buffer: PageBuffer,
    early_deaths: u32,
}

impl<'t> WorkerPool<'t> {
    /// `least` workers, to be forked by [`Self::fork_due`].
    ///
    /// # Errors
    /// When descriptors or memory run out.
    pub fn new(fork: ForkWorker<'t>, table: &'t WorkerTable, least: usize) -> io::Result<Self> {
        let first = table.slots().take(least);
        let entries = first.map(|_| PoolEntry { worker: None, fork_at: Some(0) }).collect();
        let (wakeup, watch) = (Rc::new(Wakeup::new()?), Watch::new()?);
        let buffer = PageBuffer::new(FRAME_MAX);
        Ok(Self { fork, entries, least, table, wakeup, watch, buffer, early_deaths: 0 })
    }

    /// Forks the workers that are due. Readers get `connections`.
    ///
    /// # Errors
    /// The first refusal of the kernel; the worker is tried again after the backoff, unless it was added.
    pub fn fork_due(
        &mut self,
        now: u64,
        connections: impl Fn() -> Vec<CallerConnection>,
    ) -> Result<(), NotForked> {
        for (index, slot) in self.table.slots().take(self.entries.len()).enumerate() {
            let entry = &self.entries[index];
            if entry.worker.is_some() || entry.fork_at.is_none_or(|at| at > now) {
                continue;
            }
            let connections = if slot.is_reader() { connections() } else { Vec::new() };
            match self.fork_one(index, slot, connections) {
                Ok(worker) => self.entries[index].worker = Some(worker),
                Err(source) => {
                    let is_added = self.is_added(index);
                    self.entries[index].fork_at = (!is_added).then(|| self.back_off(now));
                    return Err(NotForked { is_added, source });
                }
            }
        }
        Ok(())
    }

    /// True for a worker that the function does not always have.
    const fn is_added(&self, index: usize) -> bool {
        index >= self.least
    }

    /// When to fork a worker instead of one that served nothing.
    fn back_off(&mut self, now: u64) -> u64 {
        let doublings = self.early_deaths.min(DOUBLINGS_MAX);
        self.early_deaths = self.early_deaths.saturating_add(1);
        now.saturating_add((BACKOFF_MIN_NS << doublings).min(BACKOFF_MAX_NS))
    }

    fn fork_one(
        &self,
        index: usize,
        slot: WorkerSlot<'t>,
        connections: Vec<CallerConnection>,
    ) -> io::Result<WorkerProcess<'t>> {
        slot.reset();
        let setup = WorkerSetup { slot, connections, wakeup: Rc::clone(&self.wakeup) };
        // SAFETY:
        // - the child has a setup with this slot and never gets to the table or another slot (`ForkWorker`).
        let forked = unsafe { self.table.pages.pass_on(index, || (self.fork)(setup)) };
        let (pid, socket) = forked??;
        let worker = WorkerProcess { slot, pid, socket, stopped: false, in_flight: None };
        let key = u64::try_from(index).unwrap_or(u64::MAX);
        if let Err(error) = self.watch.add(worker.socket.as_fd(), key) {
            // The next worker of the slot must be the only one that writes it.
            worker.kill();
            let _reaped = waitpid(pid, None);
            if worker.slot.clear_role() {
                self.wakeup.wake_one();
            }
            worker.slot.reset();
            return Err(error);
        }
        Ok(worker)
    }

    fn workers(&self) -> impl Iterator<Item = &WorkerProcess<'t>> {
        self.entries.iter().filter_map(|entry| entry.worker.as_ref())
    }

    fn worker_mut(&mut self, index: usize) -> Option<&mut WorkerProcess<'t>> {
        self.entries.get_mut(index)?.worker.as_mut()
    }

    /// To be polled for input: a worker says something.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    /// Numbers of the workers that sent a message.
    pub fn ready(&self) -> impl Iterator<Item = usize> + use<> {
        self.watch.ready().into_iter().filter_map(|key| usize::try_from(key).ok())
    }

    /// Numbers and sockets of the workers that have not got all of their group, to be polled for room.
    pub fn partial_groups(&self) -> impl Iterator<Item = (usize, BorrowedFd<'_>)> {
        self.entries.iter().enumerate().filter_map(|(index, entry)| {
            let worker = entry.worker.as_ref()?;
            let is_partial = worker.in_flight.as_ref().is_some_and(InFlight::has_unsent);
            is_partial.then(|| (index, worker.socket.as_fd()))
        })
    }

    /// Sends a worker the remaining calls of its group, as far as its socket has room.
    ///
    /// # Errors
    /// Gives the group back when a call cannot be sent at all; the worker, which waits for that call, is killed.
    pub fn send_group(&mut self, index: usize) -> Result<(), (Work, LocalError)> {
        let Some(worker) = self.worker_mut(index) else { return Ok(()) };
        worker.send_group()
    }

    /// Reads what a worker says.
    pub fn read(&mut self, index: usize) -> WorkerReport {
        let worker = self.entries.get(index).and_then(|entry| entry.worker.as_ref());
        worker.map(|worker| worker.read(&mut self.buffer)).unwrap_or_default()
    }

    /// True when every worker is there and has its first instance.
    #[must_use]
    pub fn complete(&self) -> bool {
        self.started() == self.entries.len()
    }

    fn started(&self) -> usize {
        self.workers().filter(|worker| worker.slot.state().has_started()).count()
    }

    /// The state of every slot that has been used. A vacant entry shows that of its last worker.
    pub fn states(&self) -> impl Iterator<Item = SlotState> {
        self.table.slots().take(self.entries.len()).map(|slot| slot.state())
    }

    /// The workers, those that are busy, and the bytes of all their pools, as they say.
    #[must_use]
    pub fn report(&self) -> FunctionReport {
        let turns = self.states().map(SlotState::turn).fold(0, u64::wrapping_add);
        let mut report = FunctionReport { turns, ..FunctionReport::default() };
        for WorkerProcess { slot, .. } in self.workers() {
            report.workers += 1;
            report.busy += u64::from(slot.state().is_busy());
            report.pool_bytes = report.pool_bytes.saturating_add(slot.pool_bytes());
        }
        report
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
        let free = self.entries.iter().enumerate().filter_map(|(index, entry)| {
            let worker = entry.worker.as_ref().filter(|worker| worker.can_begin())?;
            let is_making = worker.slot.state().phase() == Phase::Making;
            Some((is_making, index))
        });
        free.min().map(|(_is_making, index)| index)
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
        let (deadline, activity) = (work.deadline, WorkerActivity::Assigned { work, sent: 0 });
        worker.in_flight = Some(InFlight { turn, deadline, activity });
        // What does not go now is tried again when there is room.
        let sent = worker.send_group();
        self.early_deaths = 0;
        sent.map_err(|(work, error)| (work, Some(error)))
    }

    /// Kills workers whose deadlines have passed; their exits follow. Direct requests end at `latest` at the latest.
    pub fn expire(&mut self, now: u64, latest: Option<Deadline>) {
        for worker in self.entries.iter_mut().filter_map(|entry| entry.worker.as_mut()) {
            worker.update_in_flight(latest);
            let late = worker.in_flight.as_ref().filter(|it| it.deadline.has_passed(now));
            if late.is_some_and(|late| worker.slot.expire(late.turn)) {
                worker.kill();
            }
        }
    }

    /// The number of the worker with this pid.
    #[must_use]
    pub fn index_of(&self, pid: Pid) -> Option<usize> {
        let mut workers = self.entries.iter().map(|entry| entry.worker.as_ref());
        workers.position(|worker| worker.is_some_and(|worker| worker.pid == pid))
    }

    /// Takes out a worker that ended, after its last messages were [read](Self::read).
    pub fn remove(&mut self, index: usize, now: u64) -> Option<LostWorker> {
        let state = self.table.slot(index)?.state();
        if state.has_run() {
            self.early_deaths = 0;
        }
        let fork_at = if state.has_run() { now } else { self.back_off(now) };
        // An added worker has no successor: if requests wait, another one is added.
        let fork_at = (!self.is_added(index)).then_some(fork_at);
        let activity = self.take(index, fork_at)?.activity();
        Some(LostWorker { state, activity })
    }

    /// Takes a worker out of its entry and out of the readers. The next one is forked at `fork_at`.
    fn take(&mut self, index: usize, fork_at: Option<u64>) -> Option<WorkerProcess<'t>> {
        let entry = &mut self.entries[index];
        let worker = entry.worker.take()?;
        entry.fork_at = fork_at;
        self.watch.remove(worker.socket.as_fd());
        if worker.slot.clear_role() {
            self.wakeup.wake_one();
        }
        Some(worker)
    }

    /// Ends all workers and returns their activities.
    pub fn kill_all(&mut self) -> Vec<WorkerActivity> {
        let workers = self.entries.drain(..).filter_map(|entry| entry.worker);
        workers.map(WorkerProcess::end).collect()
    }

    /// The next time at which a fork or a deadline is due.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Deadline> {
        let due = self.entries.iter().filter_map(|entry| match &entry.worker {
            Some(worker) => worker.deadline(),
            None => entry.fork_at.map(Deadline::at_ns),
        });
        due.min()
    }
}
