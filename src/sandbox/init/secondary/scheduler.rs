//! Scheduling of requests in sandbox init: reads them where workers do not, queues them, assigns them to workers, and
//! answers for workers that end or miss a deadline.

use std::io;
use std::os::fd::{OwnedFd, RawFd};

use crate::init::in_flight::{LostWorker, WorkerActivity};
use crate::init::pool::{ForkWorker, NotForked, WorkerPool};
use crate::init::queue::{self, Queue};
use crate::init::signals::Ending;
use crate::request_limits;
use crate::work::Work;
use crate::worker_table::WorkerTable;
use cwasi_modes::CallError;
use cwasi_modes::causes::Break;
use cwasi_modes::local::incoming::ParsedMessage;
use cwasi_modes::local::receiver::ConnectionEvent;
use cwasi_modes::local::send_queue::SendLimits;
use cwasi_modes::local::{CallKey, ConnectionId, IncomingRequest};
use cwasi_sys::clock::{Deadline, monotonic_ns};
use cwasi_wire::control::{FunctionLaunch, FunctionReport};

use super::caller_errors::{CallerErrors, not_handed};
use super::callers::Callers;
use super::elastic::Elastic;
use super::events::{PollSet, Source};
use super::fan_in::{Groups, descriptors_max};
use super::idle::IdleTimer;
use super::watchdog::Watchdog;

/// Messages that are read from one connection before the others have their turn.
const MESSAGES_PER_TURN: usize = 32;
/// Turns in which a function that ends refuses what was not read: more than a connection's messages take.
const LAST_TURNS_MAX: usize = 1024;

/// The requests of one function and its workers.
pub(super) struct Scheduler<'a> {
    pub callers: Callers<'a>,
    pub pool: WorkerPool<'a>,
    /// Starts at the announcement.
    pub idle: IdleTimer,
    /// `None` for functions with a fixed number of workers.
    elastic: Option<Elastic<'a>>,
    launch: &'a FunctionLaunch,
    errors: CallerErrors<'a>,
    /// Parts that wait for others; only with `cwasi.fan-in`.
    groups: Option<Groups<'a>>,
    queue: Queue,
    /// `None` for functions without direct reads.
    watchdog: Option<Watchdog>,
    accepted: u64,
    /// Requests for which there was no room.
    refused: u64,
    closed: bool,
}

impl<'a> Scheduler<'a> {
    /// No requests, and workers that [`Self::fork_workers`] forks with `fork`.
    ///
    /// # Errors
    /// When descriptors run out.
    pub fn new(
        launch: &'a FunctionLaunch,
        fork: ForkWorker<'a>,
        table: &'a WorkerTable,
        listener: OwnedFd,
    ) -> io::Result<Self> {
        let queue_len = usize::try_from(launch.queue).unwrap_or(usize::MAX);
        // The queue and the send queue share the descriptors that connections leave.
        let (memory, descriptors) = (launch.memory_bound(), descriptors_max() / 2);
        let errors = CallerErrors::of(launch);
        let limits = SendLimits::within(memory, descriptors);
        Ok(Self {
            callers: Callers::new(listener, launch.max_payload, limits, errors)?,
            pool: WorkerPool::new(fork, table, launch.least_workers())?,
            idle: IdleTimer::of(launch),
            elastic: Elastic::of(launch),
            launch,
            errors,
            groups: Groups::of(launch),
            queue: Queue::new(queue::limits(queue_len, memory, descriptors)),
            watchdog: Watchdog::of(launch),
            accepted: 0,
            refused: 0,
            closed: false,
        })
    }

    /// Forks the workers that are due.
    ///
    /// # Errors
    /// The first refusal of the kernel; a worker that the function always has is tried again later.
    pub fn fork_workers(&mut self, now: u64) -> Result<(), NotForked> {
        let receiver = &self.callers.receiver;
        let forked = self.pool.fork_due(now, || receiver.shared_connections().collect());
        if let (Err(NotForked { is_added: true, .. }), Some(elastic)) = (&forked, &mut self.elastic)
        {
            elastic.hold(now);
        }
        forked
    }

    /// Adds what to wait for besides the workers. Returns when there is something to do without an event. Init sleeps
    /// if there is nothing to check; [`Self::awake`] ends its sleep.
    pub fn prepare_wait<'s>(&'s self, poll_set: &mut PollSet<'s>, now: u64) -> Option<Deadline> {
        let check = self.next_check();
        let shared = match self.watchdog {
            _ if self.reads_shared() => Some(Source::Shared),
            Some(_) if check.is_none() => Some(Source::Asleep),
            _ => None,
        };
        self.callers.add_to(poll_set, shared, now);
        for (index, fd) in self.pool.partial_groups() {
            poll_set.room(Source::PartialGroup(index), fd);
        }
        let groups = self.groups.as_ref().and_then(Groups::next_deadline);
        let waiting = [self.queue.next_deadline(), groups, self.callers.next_wakeup(now)];
        let surplus = self.elastic.as_ref().and_then(|elastic| elastic.surplus_at(&self.pool));
        let own = [self.idle_at(), check, surplus].map(|at| at.map(Deadline::at_ns));
        waiting.into_iter().chain(own).chain([self.pool.next_wakeup()]).flatten().min()
    }

    /// Ends init's sleep.
    pub fn awake(&self) {
        self.pool.table.control().set_asleep(false);
    }

    /// The work of one turn of the event loop, after its events. `room`: callers that read again. `woken`: there were
    /// events.
    pub fn end_turn(&mut self, room: &[RawFd], woken: bool) {
        self.run_watchdog(woken);
        self.callers.flush(room);
        self.expire();
        self.grow_or_shrink();
        self.assign();
        self.suspend_or_resume();
        self.update_direct_reads();
    }

    /// Workers and queue for the shim's metrics.
    pub fn report(&self) -> FunctionReport {
        let mut report = self.pool.report();
        (report.queued, report.refused) = (self.queue.len() as u64, self.refused);
        let waiting = self.groups.as_ref().map_or(0, |groups| groups.barrier.waiting_parts());
        report.waiting_parts = waiting as u64;
        // A worker can only say too much about itself.
        let pool_max = self.launch.pool_max.saturating_mul(report.workers);
        report.pool_bytes = report.pool_bytes.min(pool_max);
        report
    }

    /// Reads the messages of a worker, and sends it the rest of its group. Returns why it could not start.
    pub fn read_worker(&mut self, index: usize) -> Option<String> {
        let report = self.pool.read(index);
        self.callers.enqueue(report.undelivered);
        if let Err((work, error)) = self.pool.send_group(index) {
            self.callers.refuse(work.keys(), &not_handed(&error));
        }
        report.failed
    }

    /// Answers for a worker that ended.
    pub fn worker_lost(&mut self, lost: LostWorker, ending: Ending) {
        if let Some(elastic) = self.elastic.as_mut().filter(|_| !lost.state.has_run()) {
            elastic.hold(monotonic_ns());
        }
        let error = self.errors.worker_lost(&lost, ending, self.closed);
        self.fail(lost.activity, &error);
    }

    /// Answers instead of a worker that has ended. If the worker was reading from a connection, the connection ends,
    /// because the worker may have taken a request from it: every call on it gets an error. Work that it had not begun
    /// goes first, to another worker.
    fn fail(&mut self, activity: WorkerActivity, error: &CallError) {
        match activity {
            WorkerActivity::Nothing => {}
            WorkerActivity::Assigned { work, .. } => self.queue.put_back(work),
            WorkerActivity::Begun(calls) => self.callers.refuse(calls, error),
            WorkerActivity::Reading(connection) => self.callers.receiver.end(connection),
        }
    }

    /// True when no further request is taken: the function ends.
    pub const fn is_closed(&self) -> bool {
        self.closed
    }

    /// Takes no further requests. Parts that wait have not run, so their callers can retry elsewhere.
    pub fn close(&mut self) {
        self.callers.stop_accepting();
        self.closed = true;
        let groups = self.groups.as_mut();
        let waiting = groups.map(|groups| groups.barrier.drain()).unwrap_or_default();
        let calls = waiting.into_iter().map(|part| part.request.key());
        self.callers.refuse(calls, &self.errors.ending());
    }

    /// True when no request is in work, and no answer waits.
    pub fn is_drained(&self) -> bool {
        self.queue.is_empty() && self.pool.at_rest() && self.callers.have_all_answers()
    }

    /// Kills the workers, and answers every request.
    pub fn stop(&mut self) {
        self.begin_reading();
        for activity in self.pool.kill_all() {
            self.fail(activity, &self.errors.broken(Break::Stopped));
        }
        while let Some(work) = self.queue.pop() {
            self.callers.refuse(work.keys(), &self.errors.ending());
        }
        self.refuse_unread();
    }

    /// Refuses the requests that no process has read, and those that callers would send until this process has ended:
    /// so each of them knows that its request has not run.
    fn refuse_unread(&mut self) {
        self.callers.receiver.refuse_requests();
        for _ in 0..LAST_TURNS_MAX {
            let receiver = &self.callers.receiver;
            let unread: Vec<_> = receiver.ready().chain(receiver.shared_ready()).collect();
            if unread.is_empty() {
                return;
            }
            unread.into_iter().for_each(|id| self.read(id));
        }
    }

    /// Reads the messages of a connection.
    pub fn read(&mut self, connection: ConnectionId) {
        for _ in 0..MESSAGES_PER_TURN {
            match self.callers.receiver.next_event(connection) {
                ConnectionEvent::Message(ParsedMessage::Request(request)) => {
                    self.accept_request(request);
                }
                ConnectionEvent::Message(ParsedMessage::Refused { id, error, .. }) => {
                    self.callers.refuse([CallKey { connection, id }], &error);
                }
                ConnectionEvent::Introduced => self.share(connection),
                ConnectionEvent::Idle => return,
                ConnectionEvent::Closed { fault } => {
                    // Without direct reads no worker holds it.
                    if self.watchdog.is_some() {
                        self.pool.unshare();
                    }
                    self.queue.forget(connection);
                    if let Some(groups) = &mut self.groups {
                        groups.barrier.forget(connection);
                    }
                    if let Some(fault) = fault {
                        self.errors.log(&format!("a caller's connection was closed: {fault}"));
                    }
                    return;
                }
            }
        }
    }

    /// Lets workers read from a connection, unless they hold too many already.
    fn share(&mut self, id: ConnectionId) {
        let receiver = &mut self.callers.receiver;
        let shared = receiver.shared_connections().count();
        if self.watchdog.is_none() || !Watchdog::may_share(&self.pool, shared) {
            return;
        }
        let Some(connection) = receiver.caller_connection(id) else { return };
        if self.pool.share(&connection)
            && let Err(error) = receiver.share(id)
        {
            self.errors.log(&format!("only init reads a caller's connection: {error}"));
        }
    }

    /// Queues a request, or refuses it.
    fn accept_request(&mut self, request: Box<IncomingRequest>) {
        if self.closed {
            return self.callers.refuse([request.key()], &self.errors.ending());
        }
        let now = monotonic_ns();
        self.idle.restart(now);
        if self.groups.is_some() || request.request.join.is_some() {
            return self.add_part(request, now);
        }
        let caller = request_limits::caller_deadline(&request.request, now);
        let deadline = request_limits::deadline(self.launch, caller, now);
        self.enqueue(Work::one(request, deadline));
    }

    /// Adds a part to its group; a complete group is queued.
    fn add_part(&mut self, request: Box<IncomingRequest>, now: u64) {
        let key = request.key();
        let added = match &mut self.groups {
            None => Err(request_limits::takes_no_parts(self.launch)),
            Some(groups) => groups.add(request, now),
        };
        match added {
            Ok(complete) => complete.into_iter().for_each(|work| self.enqueue(work)),
            Err(error) => {
                self.refused += u64::from(matches!(error, CallError::Overloaded(_)));
                self.callers.refuse([key], &error);
            }
        }
    }

    /// Queues work, and assigns it if a worker is free.
    fn enqueue(&mut self, work: Work) {
        if let Err((work, full)) = self.queue.push(work, self.free_workers()) {
            self.refused += 1;
            let error = self.errors.overloaded(full, self.queue.bounds);
            return self.callers.refuse(work.keys(), &error);
        }
        self.assign();
        self.accepted += 1;
        if self.accepted == self.launch.max_requests {
            self.close();
        }
    }

    /// Workers for which requests may wait beyond the queue's limit: free ones, those that will be free without running
    /// another guest first, and those that are forked when requests wait for them.
    fn free_workers(&self) -> usize {
        let absent = match &self.elastic {
            Some(elastic) => elastic.addable(&self.pool),
            None if self.idle.is_enabled() => self.pool.absent(),
            None => 0,
        };
        absent + self.pool.free_soon()
    }

    /// Assigns queued requests to free workers.
    fn assign(&mut self) {
        while let Some(index) = self.pool.idle() {
            let Some(work) = self.queue.pop() else { return };
            match self.pool.assign(index, work) {
                Ok(()) => {}
                Err((work, None)) => self.queue.put_back(work),
                Err((work, Some(error))) => self.callers.refuse(work.keys(), &not_handed(&error)),
            }
        }
    }

    fn expire(&mut self) {
        let now = monotonic_ns();
        self.pool.expire(now, request_limits::latest(self.launch, now));
        for work in self.queue.take_expired(now) {
            self.callers.refuse(work.keys(), &self.errors.late());
        }
        let groups = self.groups.as_mut();
        let expired = groups.map(|groups| groups.take_expired(now)).unwrap_or_default();
        expired.work.into_iter().for_each(|work| self.enqueue(work));
        for (calls, error) in expired.failed {
            self.callers.refuse(calls, &error);
        }
    }

    /// When the function has been idle long enough for its workers to end.
    fn idle_at(&self) -> Option<u64> {
        let at = self.idle.expires_at().filter(|_| !self.pool.is_suspended())?;
        let no_parts = self.groups.as_ref().is_none_or(|groups| groups.barrier.is_empty());
        (no_parts && self.is_drained()).then_some(at)
    }

    /// Ends the workers of an idle function, and forks some when requests wait again. Init reads all requests while no
    /// reader is there.
    fn suspend_or_resume(&mut self) {
        if !self.idle.is_enabled() {
            return;
        }
        if !self.closed && self.idle_at().is_some_and(|at| at <= monotonic_ns()) {
            self.begin_reading();
            let undelivered = self.pool.suspend();
            self.callers.enqueue(undelivered);
        }
        self.pool.resume(self.queue.len());
    }

    /// Adds workers that requests need, and ends those that none needed for some time.
    fn grow_or_shrink(&mut self) {
        if let Some(elastic) = self.elastic.as_mut().filter(|_| !self.closed) {
            let undelivered = elastic.update(&mut self.pool, self.queue.len());
            self.callers.enqueue(undelivered);
        }
    }

    /// True while init reads the shared connections.
    fn reads_shared(&self) -> bool {
        self.closed || self.watchdog.as_ref().is_some_and(Watchdog::reads)
    }

    /// When the watchdog checks next; `None` when init sleeps until it is woken.
    fn next_check(&self) -> Option<u64> {
        let watchdog = self.watchdog.as_ref().filter(|_| !self.pool.is_suspended())?;
        // No worker wakes init when its request ends, and the idle time may be over then.
        let may_become_idle = self.idle.is_enabled() && !self.pool.at_rest();
        let stays_awake = self.closed || may_become_idle || !self.queue.is_empty();
        watchdog.next_check(&self.pool, stays_awake)
    }

    /// Runs the watchdog's check when it is due.
    fn run_watchdog(&mut self, woken: bool) {
        let now = monotonic_ns();
        let Some(watchdog) = &mut self.watchdog else { return };
        let Some(begun) = watchdog.check_workers(&mut self.pool, now, woken) else { return };
        if begun {
            self.idle.restart(now);
        }
        let room = self.queue.free_slots(self.free_workers());
        let Some(watchdog) = &mut self.watchdog else { return };
        let receiver = &self.callers.receiver;
        let unread = watchdog.check_connections(&self.pool, receiver, begun, room);
        unread.into_iter().for_each(|id| self.read(id));
    }

    fn begin_reading(&mut self) {
        if let Some(watchdog) = &mut self.watchdog {
            watchdog.begin_reading(&self.pool);
        }
    }

    fn update_direct_reads(&mut self) {
        let idle = self.queue.is_empty() && !self.closed;
        let Some(watchdog) = &mut self.watchdog else { return };
        if !watchdog.update_direct_reads(&self.pool, idle) {
            // A worker that became free before it could see the change is seen here.
            self.assign();
        }
    }
}
