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
use std::os::fd::OwnedFd;

use nix::sys::signal::Signal;

use crate::modes::Payload;
use crate::modes::causes::Break;
use crate::modes::local::receiver::ConnectionEvent;
use crate::modes::local::send_queue::SendLimits;
use crate::modes::local::{ConnectionId, IncomingRequest, Receiver};
use crate::sandbox::function_log::{full_stream, unread};
use crate::sandbox::inherited::Sandbox;
use crate::sandbox::{request_limits, stderr};
use crate::sys::clock::{Deadline, monotonic_ns};
use crate::vm::Module;
use crate::wire::control::{Entry, SandboxMessage};
use crate::wire::envelope::Undelivered;

use super::barrier::Barrier;
use super::in_flight::{LostWorker, WorkerActivity};
use super::pool::WorkerPool;
use super::queue::{self, Queue, QueueEntry};
use super::signals::{Change, Signals, next_change};
use super::work::{ReplyTarget, SendQueue, Work};

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
    barrier: Option<Barrier<ConnectionId, Box<IncomingRequest>>>,
    queue: Queue<Work>,
    send_queue: SendQueue,
    pool: WorkerPool<&'a Sandbox<M>>,
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
    pub fn new(sandbox: &'a Sandbox<M>, listener: OwnedFd, signals: Signals) -> io::Result<Self> {
        let launch = &sandbox.launch;
        let workers = usize::try_from(launch.concurrency).unwrap_or(usize::MAX);
        let queue_len = usize::try_from(launch.queue).unwrap_or(usize::MAX);
        // The queue and the send queue share the descriptors that connections leave.
        let descriptors = fan_in::descriptors_max() / 2;
        Ok(Self {
            sandbox,
            signals,
            receiver: Receiver::new(listener, launch.max_payload)?,
            barrier: fan_in::barrier(launch),
            queue: Queue::new(queue::QueueLimits::within(
                queue_len,
                launch.memory_max,
                descriptors,
            )),
            send_queue: SendQueue::new(SendLimits::within(launch.memory_max, descriptors)),
            pool: WorkerPool::new(sandbox, workers)?,
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
            let now = monotonic_ns();
            if let Err(error) =
                self.pool.fork_due(now, || self.receiver.shared_connections().collect())
            {
                if !self.announced {
                    return self.sandbox.start_failed(&self.cannot_fork(&error));
                }
                self.complain(&format!("a worker cannot be forked: {error}"));
            }
            if let Some(code) = self.finished(now) {
                return code;
            }
            let ready = self.wait();
            if ready.signals
                && let Some(signal) = self.signals.take()
            {
                self.stop_for(signal);
            }
            for index in ready.workers {
                let said = self.pool.read(index);
                self.hold(said.undelivered);
                if let Some(message) = said.failed
                    && let Some(code) = self.worker_failed(&message)
                {
                    return code;
                }
                if let Err((work, error)) = self.pool.feed(index) {
                    work.refuse(&caller_errors::not_handed(&error), &mut self.send_queue);
                }
            }
            if ready.signals
                && let Some(code) = self.note_changes()
            {
                return code;
            }
            self.announce();
            if ready.listener {
                self.accept();
            }
            for connection in ready.connections {
                self.read(connection);
            }
            self.run_watchdog();
            self.send_queue.flush(&ready.room, monotonic_ns());
            if let Some((_, complaint)) = self.send_queue.take_complaint() {
                self.complain(&complaint);
            }
            self.expire();
            self.assign();
            self.suspend_or_resume();
            self.update_direct_reads();
            self.report();
        }
    }

    /// Takes out the workers that ended, and gives no work to those that are stopped; the exit code when the function
    /// cannot start without one that ended.
    fn note_changes(&mut self) -> Option<i32> {
        while let Some((pid, change)) = next_change() {
            let ending = match change {
                Change::Ended(ending) => ending,
                Change::Stopped | Change::Continued => {
                    self.pool.set_stopped(pid, change == Change::Stopped);
                    continue;
                }
            };
            if let Some(lost) = self.pool.remove(pid, ending, monotonic_ns())
                && let Some(code) = self.worker_lost(lost)
            {
                return Some(code);
            }
        }
        None
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

    /// The exit code when nothing is left to do.
    fn finished(&mut self, now: u64) -> Option<i32> {
        let stop = self.stop?;
        let drained = self.queue.is_empty() && self.pool.at_rest() && self.send_queue.is_empty();
        if !drained && stop.until > now {
            return None;
        }
        self.begin_reading();
        for activity in self.pool.kill_all() {
            match activity {
                WorkerActivity::NotBegun(waiting) => self.queue.put_back(waiting),
                begun => self.fail(&begun, &self.broken(Break::Stopped)),
            }
        }
        while let Some(waiting) = self.queue.pop() {
            waiting.item.refuse(&self.ending(), &mut self.send_queue);
        }
        self.refuse_unread();
        Some(stop.code)
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

    /// A worker could not make its first instance: before the announcement the function cannot start.
    fn worker_failed(&mut self, message: &str) -> Option<i32> {
        if self.announced {
            self.complain(&format!("a worker cannot start: {message}"));
            return None;
        }
        Some(self.sandbox.start_failed(message))
    }

    /// Queues the answers for which their callers have no room. A caller that has gone needs none.
    fn hold(&mut self, undelivered: Vec<(Undelivered, Payload)>) {
        for (envelope, payload) in undelivered {
            let reply_to = self.receiver.reply_to(ConnectionId(envelope.connection));
            let Some((reply_to, id)) = reply_to.zip(envelope.id()) else { continue };
            let until = Deadline::from_field(envelope.deadline_mono_ns);
            self.send_queue.enqueue(
                &ReplyTarget { reply_to, id },
                envelope.outcome(),
                payload,
                until,
            );
        }
    }

    /// Answers for a worker that ended. Returns the exit code when it ended before the announcement.
    fn worker_lost(&mut self, mut lost: LostWorker) -> Option<i32> {
        self.hold(std::mem::take(&mut lost.undelivered));
        let how = lost.ending.describe();
        if let WorkerActivity::NotBegun(waiting) = lost.activity {
            // It goes first, to another worker.
            self.queue.put_back(waiting);
            lost.activity = WorkerActivity::Nothing;
        }
        if let Some(id) = lost.activity.call().filter(|_| lost.expired) {
            let stuck = full_stream(self.sandbox.launch.entry == Entry::Reactor).map(unread);
            let why = stuck.as_deref().unwrap_or_default();
            self.complain(&format!(
                "call {id} did not end in time; its worker was killed for it{why}"
            ));
            let error = match stuck {
                Some(why) => self.late_because(&why),
                None => self.late(),
            };
            self.fail(&lost.activity, &error);
        } else if !matches!(lost.activity, WorkerActivity::Nothing) {
            self.complain(&format!("a worker {how} while it served a request"));
            self.fail(&lost.activity, &self.fault(lost.ending));
        } else if lost.starting && !self.announced {
            return Some(self.sandbox.start_failed(&format!("a worker {how}")));
        } else if self.stop.is_none() {
            self.complain(&format!("a worker {how}"));
        }
        None
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
                ConnectionEvent::Request(incoming) => self.accept_request(incoming),
                ConnectionEvent::Introduced => self.share(connection),
                ConnectionEvent::Refused { connection, id, error } => {
                    self.send_queue
                        .send_error(&ReplyTarget { reply_to: connection.fd, id }, &error);
                }
                ConnectionEvent::Idle => return,
                ConnectionEvent::Closed { fault } => {
                    self.unshare();
                    self.queue.forget(&connection);
                    if let Some(barrier) = &mut self.barrier {
                        barrier.forget(&connection);
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
    fn accept_request(&mut self, incoming: Box<IncomingRequest>) {
        if self.stop.is_some() {
            let ending = self.ending();
            self.send_queue.send_error(&ReplyTarget::to(&incoming), &ending);
            return;
        }
        let now = monotonic_ns();
        self.last_request = now;
        if self.barrier.is_some() || incoming.request.join.is_some() {
            self.take_part(incoming, now);
            return;
        }
        let caller = request_limits::caller_deadline(&incoming.request, now);
        let deadline = request_limits::deadline(&self.sandbox.launch, caller, now);
        self.queue(Work::One(incoming), deadline);
    }

    /// Assigns work to a free worker, or queues it.
    fn queue(&mut self, work: Work, deadline: Deadline) {
        let waiting = QueueEntry { deadline, item: work };
        if self.queue.is_empty() && self.pool.idle().is_some() {
            self.queue.put_back(waiting);
            self.assign();
        } else if let Err((QueueEntry { item, .. }, full)) = self.queue.push(waiting) {
            self.reports.count_refused();
            item.refuse(&self.overloaded(full), &mut self.send_queue);
            return;
        }
        self.accepted += 1;
        if self.accepted == self.sandbox.launch.max_requests {
            // Every request has a deadline, so this ends.
            self.finish(0, u64::MAX);
        }
    }

    fn expire(&mut self) {
        let now = monotonic_ns();
        self.pool.expire(now, request_limits::latest(&self.sandbox.launch, now));
        while let Some(waiting) = self.queue.pop_expired(now) {
            waiting.item.refuse(&self.late(), &mut self.send_queue);
        }
        self.expire_parts(now);
    }

    /// Assigns queued requests to free workers.
    fn assign(&mut self) {
        while let Some(index) = self.pool.idle() {
            let Some(QueueEntry { deadline, item }) = self.queue.pop() else { return };
            match self.pool.assign(index, item, deadline) {
                Ok(()) => {}
                Err((item, None)) => self.queue.put_back(QueueEntry { deadline, item }),
                Err((item, Some(error))) => {
                    item.refuse(&caller_errors::not_handed(&error), &mut self.send_queue);
                }
            }
        }
    }
}
