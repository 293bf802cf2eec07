//! A secondary's sandbox init: the event loop, from the announcement to the end.
//!
//! - [`scheduler`]: requests and workers; [`watchdog`]: when init reads requests itself.
//! - [`callers`]: connections and waiting answers; [`fan_in`]: calls that wait for the other parts of their group.
//! - [`elastic`]: workers that come and go.
//! - [`events`]: waits for workers, connections and signals; [`idle`]: when the function is idle.
//! - [`caller_errors`]: the errors with which init answers callers; [`report`]: reports for the shim's metrics.

mod caller_errors;
mod callers;
mod elastic;
mod events;
mod fan_in;
mod idle;
mod report;
mod scheduler;
mod watchdog;

use std::io;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;

use nix::sys::signal::Signal;

use crate::inherited::Sandbox;
use crate::stderr;
use crate::worker::WorkerSetup;
use crate::worker_table::WorkerTable;
use cwasi_sys::clock::{Deadline, monotonic_ns};
use cwasi_vm::Module;
use cwasi_wire::control::SandboxMessage;

use super::in_flight::{LostWorker, WorkerActivity};
use super::signals::{Change, Ending, Signals, next_change};

use self::caller_errors::CallerErrors;
use self::events::{PollSet, Source};
use self::report::Reports;
use self::scheduler::Scheduler;

/// Longest time for requests in flight after a stop signal, in nanoseconds.
const DRAIN_NS: u64 = 10_000_000_000;

/// Why and until when a secondary finishes.
#[derive(Clone, Copy, Debug)]
struct Shutdown {
    code: i32,
    until: u64,
}

/// The event loop's state.
pub struct Secondary<'a, M: Module> {
    sandbox: &'a Sandbox<M>,
    errors: CallerErrors<'a>,
    signals: Signals,
    scheduler: Scheduler<'a>,
    announced: bool,
    shutdown: Option<Shutdown>,
    reports: Reports,
}

impl<'a, M: Module> Secondary<'a, M> {
    /// A secondary that does not run yet.
    ///
    /// # Errors
    /// When descriptors run out.
    pub fn new(
        sandbox: &'a Sandbox<M>,
        table: &'a WorkerTable,
        listener: OwnedFd,
        signals: Signals,
    ) -> io::Result<Self> {
        let fork = Box::new(move |setup: WorkerSetup<'_>| super::fork_worker(sandbox, Some(setup)));
        Ok(Self {
            sandbox,
            errors: CallerErrors::of(&sandbox.launch),
            signals,
            scheduler: Scheduler::new(&sandbox.launch, fork, table, listener)?,
            announced: false,
            shutdown: None,
            reports: Reports::default(),
        })
    }

    /// Serves until it is stopped; returns the exit code.
    pub fn run(mut self) -> i32 {
        loop {
            if let ControlFlow::Break(code) = self.turn() {
                return code;
            }
        }
    }

    /// One turn of the event loop. Breaks with the exit code.
    fn turn(&mut self) -> ControlFlow<i32> {
        let now = monotonic_ns();
        self.fork_workers(now)?;
        self.finish_when_drained(now)?;
        let mut room = Vec::new();
        let sources = self.wait();
        let woken = !sources.is_empty();
        for source in sources {
            match source {
                Source::Workers => {
                    let mut ready = self.scheduler.pool.ready();
                    ready.try_for_each(|index| self.read_worker(index))?;
                }
                Source::PartialGroup(index) => self.read_worker(index)?,
                Source::Signals => {
                    self.signals.take().into_iter().for_each(|signal| self.stop_for(signal));
                    self.note_changes()?;
                }
                Source::Listener => self.scheduler.callers.accept(),
                Source::Connections => {
                    let ready = self.scheduler.callers.receiver.ready();
                    ready.for_each(|id| self.scheduler.read(id));
                }
                Source::Shared => {
                    let ready = self.scheduler.callers.receiver.shared_ready();
                    ready.for_each(|id| self.scheduler.read(id));
                }
                // A worker has a tick to read it before init does.
                Source::Asleep => {}
                Source::Caller(number) => room.push(number),
                Source::Log => stderr::log().iter().for_each(|log| log.report_dropped()),
            }
        }
        self.announce();
        self.scheduler.end_turn(&room, woken);
        self.report();
        ControlFlow::Continue(())
    }

    /// Waits for the next events. A worker's last messages are read before its exit is noticed.
    fn wait(&mut self) -> Vec<Source> {
        let now = monotonic_ns();
        let log = stderr::log().filter(|log| log.wants_room());
        let mut poll_set = PollSet::default();
        poll_set.input(Source::Workers, self.scheduler.pool.as_fd());
        poll_set.input(Source::Signals, self.signals.as_fd());
        let next = self.scheduler.prepare_wait(&mut poll_set, now);
        if let Some(log) = &log {
            poll_set.room(Source::Log, log.as_fd());
        }
        let until = self.shutdown.map(|shutdown| shutdown.until);
        let own = [until, self.reports.next].map(|at| at.map(Deadline::at_ns));
        let ready = poll_set.wait(own.into_iter().chain([next]).flatten().min());
        self.scheduler.awake();
        ready
    }

    /// Reads the messages of a worker. Breaks when it could not make its first instance before the announcement: the
    /// function cannot start.
    fn read_worker(&mut self, index: usize) -> ControlFlow<i32> {
        if let Some(why) = self.scheduler.read_worker(index) {
            if !self.announced {
                return ControlFlow::Break(self.sandbox.start_failed(&why));
            }
            self.errors.log(&format!("a worker cannot start: {why}"));
        }
        ControlFlow::Continue(())
    }

    fn fork_workers(&mut self, now: u64) -> ControlFlow<i32> {
        if let Err(error) = self.scheduler.fork_workers(now) {
            if !self.announced {
                let workers = self.sandbox.launch.concurrency;
                let why = format!(
                    "its workers (cwasi.concurrency: {workers}) cannot be forked{}",
                    error.why()
                );
                return ControlFlow::Break(self.sandbox.start_failed(&why));
            }
            let without = if error.is_added { "; the function goes on without it" } else { "" };
            self.errors.log(&format!("{error}{without}"));
        }
        ControlFlow::Continue(())
    }

    /// Takes out the workers that ended, and gives no work to those that are stopped. Breaks when the function cannot
    /// start without one that ended.
    fn note_changes(&mut self) -> ControlFlow<i32> {
        while let Some((pid, change)) = next_change() {
            let Some(index) = self.scheduler.pool.index_of(pid) else { continue };
            match change {
                Change::Ended(ending) => {
                    // Its last messages may have come after init was woken: why it could not start, for example.
                    self.read_worker(index)?;
                    if let Some(lost) = self.scheduler.pool.remove(index, monotonic_ns()) {
                        self.worker_lost(lost, ending)?;
                    }
                }
                Change::Stopped => self.scheduler.pool.set_stopped(index, true),
                Change::Continued => self.scheduler.pool.set_stopped(index, false),
            }
        }
        ControlFlow::Continue(())
    }

    /// Answers for a worker that ended. Breaks when it ended before the announcement.
    fn worker_lost(&mut self, lost: LostWorker, ending: Ending) -> ControlFlow<i32> {
        let had_nothing = matches!(lost.activity, WorkerActivity::Nothing);
        if had_nothing && !lost.state.has_started() && !self.announced {
            let how = format!("a worker {}", ending.describe());
            return ControlFlow::Break(self.sandbox.start_failed(&how));
        }
        self.scheduler.worker_lost(lost, ending);
        ControlFlow::Continue(())
    }

    /// Reports to the shim that callers can call: once, when every worker has its first instance.
    fn announce(&mut self) {
        if !self.announced && self.scheduler.pool.complete() {
            self.announced = true;
            self.scheduler.idle.start(monotonic_ns());
            self.sandbox.send(&SandboxMessage::Ready);
        }
    }

    /// Reports to the shim what changed, after each turn of the event loop.
    fn report(&mut self) {
        if self.announced {
            let (scheduler, sandbox) = (&self.scheduler, self.sandbox);
            let send = |report| sandbox.try_send(&SandboxMessage::Function(report));
            self.reports.update(monotonic_ns(), || scheduler.report(), send);
        }
    }

    /// Ends the workers and breaks, when the function is stopped and nothing is left to do.
    fn finish_when_drained(&mut self, now: u64) -> ControlFlow<i32> {
        if self.scheduler.is_closed() {
            // It has had its number of requests. Each of them has a deadline, so this ends.
            self.shutdown.get_or_insert(Shutdown { code: 0, until: u64::MAX });
        }
        match self.shutdown {
            Some(shutdown) if shutdown.until <= now || self.scheduler.is_drained() => {
                self.scheduler.stop();
                ControlFlow::Break(shutdown.code)
            }
            _ => ControlFlow::Continue(()),
        }
    }

    fn stop_for(&mut self, signal: Signal) {
        let now = monotonic_ns();
        // At once on the second signal, and before the announcement.
        let at_once = self.scheduler.is_closed() || !self.announced;
        let until = if at_once { now } else { now + DRAIN_NS };
        self.scheduler.close();
        self.shutdown = Some(Shutdown { code: 128 + signal as i32, until });
    }
}
