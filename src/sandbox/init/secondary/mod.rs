//! A secondary's sandbox init: the event loop. Shares callers' connections with workers, queues the requests for which
//! no worker is free, and answers for workers that end or miss a deadline.
//!
//! - [`watchdog`]: supervises direct reads, and decides when init reads requests itself.
//! - [`events`]: waits for workers, connections and signals.
//! - [`caller_errors`]: the errors with which init answers callers.
//! - [`idle`]: ends and forks the workers of an idle function.
//! - [`fan_in`]: calls that wait for the other parts of their group.
//! - [`report`]: workers and queue for the shim's metrics.

mod caller_errors;
mod events;
mod fan_in;
mod idle;
mod report;
mod watchdog;

use std::io;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use nix::sys::signal::Signal;

use crate::inherited::Sandbox;
use crate::work::Work;
use crate::worker::WorkerSetup;
use crate::worker_table::{Phase, WorkerTable};
use crate::{request_limits, stderr};
use cwasi_modes::Payload;
use cwasi_modes::causes::Break;
use cwasi_modes::local::incoming::ParsedMessage;
use cwasi_modes::local::receiver::ConnectionEvent;
use cwasi_modes::local::send_queue::{SendLimits, SendQueue};
use cwasi_modes::local::{CallKey, ConnectionId, IncomingRequest, Receiver};
use cwasi_sys::clock::{Deadline, monotonic_ns};
use cwasi_vm::Module;
use cwasi_wire::control::SandboxMessage;
use cwasi_wire::envelope::Undelivered;

use super::barrier::Barrier;
use super::in_flight::{LostWorker, WorkerActivity};
use super::pool::WorkerPool;
use super::queue::{self, Queue};
use super::signals::{Change, Ending, Signals, next_change};

use self::events::Source;
use self::report::Reports;
use self::watchdog::Watchdog;

/// Longest time for requests in flight after a stop signal, in nanoseconds.
const DRAIN_NS: u64 = 10_000_000_000;
/// Messages that are read from one connection before the others have their turn.
const MESSAGES_PER_TURN: usize = 32;
/// Turns in which a function that ends refuses what was not read: more than a connection's messages take.
const LAST_TURNS_MAX: usize = 1024;
/// How long new connections wait when descriptors ran out, in nanoseconds.
const ACCEPT_PAUSE_NS: u64 = 100_000_000;

/// Why and until when a secondary finishes.
#[derive(Clone, Copy, Debug)]
struct Shutdown {
    code: i32,
    until: u64,
}

/// The event loop's state.
pub struct Secondary<'a, M: Module> {
    sandbox: &'a Sandbox<M>,
    signals: Signals,
    receiver: Receiver,
    /// Parts that wait for others; only where `cwasi.fan-in` is.
    barrier: Option<Barrier>,
    queue: Queue,
    send_queue: SendQueue<Rc<OwnedFd>>,
    pool: WorkerPool<'a>,
    /// `None` for functions without direct reads.
    watchdog: Option<Watchdog>,
    announced: bool,
    accepted: u64,
    last_request: u64,
    accept_after: u64,
    stop: Option<Shutdown>,
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
        let launch = &sandbox.launch;
        let queue_len = usize::try_from(launch.queue).unwrap_or(usize::MAX);
        // The queue and the send queue share the descriptors that connections leave.
        let descriptors = fan_in::descriptors_max() / 2;
        let fork = Box::new(move |setup: WorkerSetup<'_>| sandbox.fork_worker(Some(setup)));
        Ok(Self {
            sandbox,
            signals,
            receiver: Receiver::new(listener, launch.max_payload)?,
            barrier: fan_in::barrier(launch),
            queue: Queue::new(queue::limits(queue_len, launch.memory_bound(), descriptors)),
            send_queue: SendQueue::new(SendLimits::within(launch.memory_bound(), descriptors)),
            pool: WorkerPool::new(fork, table)?,
            watchdog: Watchdog::of(launch),
            announced: false,
            accepted: 0,
            last_request: monotonic_ns(),
            accept_after: 0,
            stop: None,
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
        for source in self.wait() {
            match source {
                Source::Workers => self.pool.ready().try_for_each(|index| self.hear(index))?,
                Source::Unfed(index) => self.hear(index)?,
                Source::Signals => {
                    self.signals.take().into_iter().for_each(|signal| self.stop_for(signal));
                    self.note_changes()?;
                }
                Source::Listener => self.accept(),
                Source::Connections => self.receiver.ready().for_each(|id| self.read(id)),
                Source::Shared => self.receiver.shared_ready().for_each(|id| self.read(id)),
                // A worker has a tick to read it before init does.
                Source::Asleep => {}
                Source::Caller(number) => room.push(number),
                Source::Log => stderr::log().iter().for_each(|log| log.tell_dropped()),
            }
        }
        self.announce();
        self.run_watchdog();
        self.send_queue.flush(&room, monotonic_ns());
        if let Some((_, complaint)) = self.send_queue.complaint.take() {
            self.complain(&complaint);
        }
        self.expire();
        self.assign();
        self.suspend_or_resume();
        self.update_direct_reads();
        self.report();
        ControlFlow::Continue(())
    }

    /// Reads what a worker says, and sends it the rest of its group. Breaks when it could not make its first instance
    /// before the announcement: the function cannot start.
    fn hear(&mut self, index: usize) -> ControlFlow<i32> {
        let said = self.pool.read(index);
        self.hold(said.undelivered);
        if let Some(why) = said.failed {
            if !self.announced {
                return ControlFlow::Break(self.sandbox.start_failed(&why));
            }
            self.complain(&format!("a worker cannot start: {why}"));
        }
        if let Err((work, error)) = self.pool.feed(index) {
            self.refuse(work.keys(), &caller_errors::not_handed(&error));
        }
        ControlFlow::Continue(())
    }

    fn fork_workers(&mut self, now: u64) -> ControlFlow<i32> {
        let connections = || self.receiver.shared_connections().collect();
        if let Err(error) = self.pool.fork_due(now, connections) {
            if !self.announced {
                return ControlFlow::Break(self.sandbox.start_failed(&self.cannot_fork(&error)));
            }
            self.complain(&format!("a worker cannot be forked: {error}"));
        }
        ControlFlow::Continue(())
    }

    /// Takes out the workers that ended, and gives no work to those that are stopped. Breaks when the function cannot
    /// start without one that ended.
    fn note_changes(&mut self) -> ControlFlow<i32> {
        while let Some((pid, change)) = next_change() {
            let Some(index) = self.pool.index_of(pid) else { continue };
            match change {
                Change::Ended(ending) => {
                    // Its last messages may have come after init was woken: why it could not start, for example.
                    self.hear(index)?;
                    if let Some(lost) = self.pool.remove(index, monotonic_ns()) {
                        self.worker_lost(lost, ending)?;
                    }
                }
                Change::Stopped => self.pool.set_stopped(index, true),
                Change::Continued => self.pool.set_stopped(index, false),
            }
        }
        ControlFlow::Continue(())
    }

    fn complain(&self, message: &str) {
        stderr::try_line(&format!("{}: {message}", self.sandbox.launch.identity.function));
    }

    /// Tells the shim that callers can call: once, when every worker has its first instance.
    fn announce(&mut self) {
        if !self.announced && self.pool.complete() {
            self.announced = true;
            self.last_request = monotonic_ns();
            self.sandbox.tell(&SandboxMessage::Ready);
        }
    }

    /// Ends the workers and breaks, when the function is stopped and nothing is left to do.
    fn finish_when_drained(&mut self, now: u64) -> ControlFlow<i32> {
        let drained = self.queue.is_empty() && self.pool.at_rest() && self.send_queue.is_empty();
        let Some(stop) = self.stop.filter(|stop| drained || stop.until <= now) else {
            return ControlFlow::Continue(());
        };
        self.begin_reading();
        for activity in self.pool.kill_all() {
            self.fail(activity, &self.broken(Break::Stopped));
        }
        while let Some(work) = self.queue.pop() {
            self.refuse(work.keys(), &self.ending());
        }
        self.refuse_unread();
        ControlFlow::Break(stop.code)
    }

    /// Refuses the requests that no process has read, and those that callers would send until this process has ended:
    /// so each of them knows that its request has not run.
    fn refuse_unread(&mut self) {
        self.receiver.refuse_requests();
        for _ in 0..LAST_TURNS_MAX {
            let unread: Vec<_> =
                self.receiver.ready().chain(self.receiver.shared_ready()).collect();
            if unread.is_empty() {
                return;
            }
            unread.into_iter().for_each(|id| self.read(id));
        }
    }

    fn stop_for(&mut self, signal: Signal) {
        let now = monotonic_ns();
        // At once on the second signal, and before the announcement.
        let until = if self.stop.is_some() || !self.announced { now } else { now + DRAIN_NS };
        self.finish(128 + signal as i32, until);
    }

    fn finish(&mut self, code: i32, until: u64) {
        if let Err(error) = self.receiver.stop_accepting() {
            self.complain(&format!("some callers that had connected were not accepted: {error}"));
        }
        self.stop = Some(Shutdown { code, until });
        self.refuse_parts();
    }

    /// Queues the answers for which their callers have no room. A caller that has gone needs none.
    fn hold(&mut self, undelivered: Vec<(Undelivered, Payload)>) {
        for (Undelivered { response, connection, deadline_mono_ns, .. }, payload) in undelivered {
            let caller = self.receiver.reply_to(ConnectionId(connection));
            let response = response.into_option().filter(|response| response.id().is_some());
            let Some((caller, response)) = caller.zip(response) else { continue };
            let until = Deadline::at_ns(deadline_mono_ns);
            self.send_queue.enqueue(&caller, response, payload, until);
        }
    }

    /// Answers for a worker that ended. Breaks when it ended before the announcement.
    fn worker_lost(&mut self, lost: LostWorker, ending: Ending) -> ControlFlow<i32> {
        let LostWorker { state, activity } = lost;
        let how = ending.describe();
        let error = match &activity {
            WorkerActivity::Begun(calls) if state.phase() == Phase::Expired => {
                self.missed_deadline(calls)
            }
            WorkerActivity::Begun(_) | WorkerActivity::Reading(_) => {
                self.complain(&format!("a worker {how} while it served a request"));
                self.fault(ending)
            }
            WorkerActivity::Nothing if !state.has_started() && !self.announced => {
                return ControlFlow::Break(self.sandbox.start_failed(&format!("a worker {how}")));
            }
            WorkerActivity::Nothing | WorkerActivity::Assigned { .. } => {
                if self.stop.is_none() {
                    self.complain(&format!("a worker {how}"));
                }
                self.fault(ending)
            }
        };
        self.fail(activity, &error);
        ControlFlow::Continue(())
    }

    fn accept(&mut self) {
        if let Err(error) = self.receiver.accept() {
            self.accept_after = monotonic_ns().saturating_add(ACCEPT_PAUSE_NS);
            self.complain(&format!("new callers wait, raise RLIMIT_NOFILE: {error}"));
        }
    }

    fn read(&mut self, connection: ConnectionId) {
        for _ in 0..MESSAGES_PER_TURN {
            match self.receiver.next_event(connection) {
                ConnectionEvent::Message(ParsedMessage::Request(request)) => {
                    self.accept_request(request);
                }
                ConnectionEvent::Message(ParsedMessage::Refused { id, error, .. }) => {
                    self.refuse([CallKey { connection, id }], &error);
                }
                ConnectionEvent::Introduced => self.share(connection),
                ConnectionEvent::Idle => return,
                ConnectionEvent::Closed { fault } => {
                    // Without direct reads no worker holds it.
                    if self.watchdog.is_some() {
                        self.pool.unshare();
                    }
                    self.queue.forget(connection);
                    if let Some(barrier) = &mut self.barrier {
                        barrier.forget(connection);
                    }
                    if let Some(fault) = fault {
                        self.complain(&format!("a caller's connection was closed: {fault}"));
                    }
                    return;
                }
            }
        }
    }

    /// Queues a request, or refuses it.
    fn accept_request(&mut self, request: Box<IncomingRequest>) {
        if self.stop.is_some() {
            return self.refuse([request.key()], &self.ending());
        }
        let now = monotonic_ns();
        self.last_request = now;
        if self.barrier.is_some() || request.request.join.is_some() {
            return self.take_part(request, now);
        }
        let caller = request_limits::caller_deadline(&request.request, now);
        let deadline = request_limits::deadline(&self.sandbox.launch, caller, now);
        self.queue(Work::one(request, deadline));
    }

    /// Queues work, and assigns it if a worker is free.
    fn queue(&mut self, work: Work) {
        if let Err((work, full)) = self.queue.push(work, self.free_workers()) {
            self.reports.refused += 1;
            return self.refuse(work.keys(), &self.overloaded(full));
        }
        self.assign();
        self.accepted += 1;
        if self.accepted == self.sandbox.launch.max_requests {
            // Every request has a deadline, so this ends.
            self.finish(0, u64::MAX);
        }
    }

    /// Workers for which requests may wait beyond the queue's limit: free ones, those that will be free without running
    /// another guest first, and those that are forked when requests wait for them.
    fn free_workers(&self) -> usize {
        let suspended = self.sandbox.launch.idle_ms.map_or(0, |_| self.pool.absent());
        suspended + self.pool.free_soon()
    }

    fn expire(&mut self) {
        let now = monotonic_ns();
        self.pool.expire(now, request_limits::latest(&self.sandbox.launch, now));
        for work in self.queue.take_expired(now) {
            self.refuse(work.keys(), &self.late());
        }
        self.expire_parts(now);
    }

    /// Assigns queued requests to free workers.
    fn assign(&mut self) {
        while let Some(index) = self.pool.idle() {
            let Some(work) = self.queue.pop() else { return };
            match self.pool.assign(index, work) {
                Ok(()) => {}
                Err((work, None)) => self.queue.put_back(work),
                Err((work, Some(error))) => {
                    self.refuse(work.keys(), &caller_errors::not_handed(&error));
                }
            }
        }
    }
}
