//! A secondary: lets its workers take requests from its callers, hands those that nobody is free for to the next
//! free one, and answers for those that workers cannot answer.
//!
//! - [`lookout`]: what workers do by themselves, and when init reads what they read.
//! - [`ends`]: the errors that callers get from init.
//! - [`fan_in`]: calls that are parts of a group wait for each other.

mod ends;
mod fan_in;
mod lookout;

use std::io;
use std::os::fd::OwnedFd;

use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::Signal;

use crate::modes::Payload;
use crate::modes::local::outbox::Bounds;
use crate::modes::local::receiver::{ConnectionId, Event};
use crate::modes::local::{Incoming, Receiver};
use crate::sandbox::function_log::{full_stream, unread};
use crate::sandbox::{stderr, terms};
use crate::sys::clock::monotonic_ns;
use crate::vm::Module;
use crate::wire::control::{Entry, SandboxMessage};
use crate::wire::envelope::Undelivered;

use super::barrier::Barrier;
use super::doing::{Doing, Lost};
use super::pool::Pool;
use super::queue::{self, Queue, Waiting};
use super::signals::{Change, Signals, next_change};
use super::work::{Outbox, Reply, Work};
use super::{Sandbox, poll_timeout};

use self::lookout::Lookout;

/// Longest time for requests in flight after a stop signal, in nanoseconds.
const DRAIN_NS: u64 = 10_000_000_000;
/// Messages that are read from one connection before the others have their turn.
const MESSAGES_PER_TURN: usize = 32;
/// How long new connections wait when descriptors ran out, in nanoseconds.
const ACCEPT_PAUSE_NS: u64 = 100_000_000;

/// Why and until when a secondary finishes.
#[derive(Clone, Copy, Debug)]
struct Stop {
    code: i32,
    until: u64,
}

/// What one wait found ready.
#[derive(Default)]
struct Readiness {
    workers: Vec<usize>,
    /// Those that init alone reads, or that have ended.
    connections: Vec<ConnectionId>,
    /// Those that workers read too.
    shared: Vec<ConnectionId>,
    /// Callers that have room for answers, as the outbox numbers them.
    room: Vec<usize>,
    listener: bool,
    signals: bool,
}

/// The event loop's state.
pub struct Secondary<'a, M: Module> {
    sandbox: &'a Sandbox<M>,
    signals: Signals,
    receiver: Receiver,
    /// Parts that wait for others; only where `cwasi.fan-in` is.
    barrier: Option<Barrier<ConnectionId, Box<Incoming>>>,
    queue: Queue<Work>,
    outbox: Outbox,
    pool: Pool<&'a Sandbox<M>>,
    /// Only where workers take requests themselves.
    lookout: Option<Lookout>,
    announced: bool,
    accepted: u64,
    last_request: u64,
    accept_after: u64,
    stop: Option<Stop>,
}

impl<'a, M: Module> Secondary<'a, M> {
    /// A secondary that does not run yet.
    ///
    /// # Errors
    /// When descriptors run out.
    pub fn new(sandbox: &'a Sandbox<M>, listener: OwnedFd, signals: Signals) -> io::Result<Self> {
        let launch = &sandbox.launch;
        let workers = usize::try_from(launch.concurrency).unwrap_or(usize::MAX);
        let places = usize::try_from(launch.queue).unwrap_or(usize::MAX);
        // The queue and the outbox share what connections leave.
        let descriptors = fan_in::descriptors_max() / 2;
        Ok(Self {
            sandbox,
            signals,
            receiver: Receiver::new(listener, launch.max_payload)?,
            barrier: fan_in::barrier(launch),
            queue: Queue::new(queue::Bounds::within(places, launch.memory_max, descriptors)),
            outbox: Outbox::new(Bounds::within(launch.memory_max, descriptors)),
            pool: Pool::new(sandbox, workers)?,
            lookout: Lookout::of(launch),
            announced: false,
            accepted: 0,
            last_request: monotonic_ns(),
            accept_after: 0,
            stop: None,
        })
    }

    /// Serves until it is stopped; returns the exit code.
    pub fn run(mut self) -> i32 {
        loop {
            let now = monotonic_ns();
            if let Err(error) = self.pool.fork_due(now, || self.receiver.lines().collect()) {
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
                if let Err(error) = self.pool.feed(index) {
                    self.complain(&format!("a worker cannot be given its parts: {error}"));
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
            for connection in ready.connections.into_iter().chain(ready.shared) {
                self.read(connection);
            }
            self.look_out();
            self.outbox.flush(&ready.room, monotonic_ns());
            if let Some((_, complaint)) = self.outbox.take_complaint() {
                self.complain(&complaint);
            }
            self.expire();
            self.assign();
            self.mind_gate();
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

    /// Waits for the next thing to do. Workers and connections are many: they are asked for only when one has
    /// something to say.
    fn wait(&mut self) -> Readiness {
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
        // A request that waits wakes init: the worker that should read it may be stopped, or slow.
        let asleep = self.lookout.is_some() && sleep.is_none();
        fds.extend(listener.map(input));
        fds.extend((reads_shared || asleep).then(|| input(self.receiver.shared_fd())));
        // When a reader comes it learns what it missed.
        let untold = stderr::log().filter(|log| log.wants_room());
        fds.extend(untold.iter().map(|log| room(log.as_fd())));
        fds.extend(unfed.iter().map(|(_, fd)| room(*fd)));
        let callers: Vec<_> = self.outbox.sockets().collect();
        fds.extend(callers.iter().map(|(_, fd)| room(*fd)));
        let wakeup = [self.next_wakeup(now), sleep].into_iter().flatten().min();
        let _interrupted = poll(&mut fds, poll_timeout(wakeup));
        self.pool.board().control().set_asleep(false);
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
        let shared = reads_shared && waiting;
        let readiness = Readiness {
            signals,
            workers: said.chain(fed).collect(),
            room,
            connections: connections.then(|| self.receiver.ready()).into_iter().flatten().collect(),
            shared: shared.then(|| self.receiver.shared_ready()).into_iter().flatten().collect(),
            listener,
        };
        if let Some(lookout) = self.lookout.as_mut().filter(|_| asleep && waiting) {
            lookout.begin_anew();
        }
        readiness
    }

    fn next_wakeup(&self, now: u64) -> Option<u64> {
        let accept = (self.accept_after > now).then_some(self.accept_after);
        let stop = self.stop.map(|stop| stop.until);
        let parts = self.barrier.as_ref().and_then(Barrier::next_deadline);
        let waiting = [self.queue.next_deadline(), parts, self.outbox.next_deadline()];
        let own = [self.pool.next_wakeup(), self.idle_at(), accept, stop];
        waiting.into_iter().chain(own).flatten().min()
    }

    /// When it has been idle long enough to end.
    fn idle_at(&self) -> Option<u64> {
        let idle_ms = self.sandbox.launch.idle_ms?;
        let no_parts = self.barrier.as_ref().is_none_or(Barrier::is_empty);
        let nothing = no_parts && self.queue.is_empty() && self.outbox.is_empty();
        (self.announced && nothing && self.pool.at_rest())
            .then(|| self.last_request.saturating_add(idle_ms.saturating_mul(1_000_000)))
    }

    /// Says that callers can call: once, when every worker has its first instance.
    fn announce(&mut self) {
        if !self.announced && self.pool.complete() {
            self.announced = true;
            self.last_request = monotonic_ns();
            self.sandbox.tell(&SandboxMessage::Ready);
        }
    }

    /// The exit code when nothing is left to do.
    fn finished(&mut self, now: u64) -> Option<i32> {
        if self.stop.is_none() && self.idle_at().is_some_and(|at| at <= now) {
            self.finish(0, now);
        }
        let stop = self.stop?;
        let drained = self.queue.is_empty() && self.pool.at_rest() && self.outbox.is_empty();
        if !drained && stop.until > now {
            return None;
        }
        for doing in self.pool.kill_all() {
            self.fail(&doing, &self.broken("it was stopped and had no more time"));
        }
        while let Some(waiting) = self.queue.pop() {
            waiting.item.refuse(&self.ending(), &mut self.outbox);
        }
        Some(stop.code)
    }

    fn stop_for(&mut self, signal: Signal) {
        let now = monotonic_ns();
        // The second signal, and one before anybody could call: at once.
        let until = if self.stop.is_some() || !self.announced { now } else { now + DRAIN_NS };
        self.finish(128 + signal as i32, until);
    }

    fn finish(&mut self, code: i32, until: u64) {
        self.receiver.stop_accepting();
        self.stop = Some(Stop { code, until });
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

    /// Takes over the answers for which their callers have no room. Who has gone needs none.
    fn hold(&mut self, undelivered: Vec<(Undelivered, Payload)>) {
        for (envelope, payload) in undelivered {
            let reply_to = self.receiver.reply_to(ConnectionId(envelope.connection));
            let Some((reply_to, id)) = reply_to.zip(envelope.id()) else { continue };
            let until = Some(envelope.deadline_mono_ns).filter(|until| *until > 0);
            self.outbox.hold(&Reply { reply_to, id }, envelope.outcome(), payload, until);
        }
    }

    /// A worker ended: its request gets the error, and a start that never was ends the sandbox.
    fn worker_lost(&mut self, mut lost: Lost) -> Option<i32> {
        self.hold(std::mem::take(&mut lost.undelivered));
        let how = lost.ending.describe();
        let expired = match &lost.doing {
            Doing::Given(running) if running.expired => Some(running.reply.id),
            Doing::Took { took, expired: true } => Some(took.id),
            _ => None,
        };
        if let Some(id) = expired {
            let stuck = full_stream(self.sandbox.launch.entry == Entry::Reactor).map(unread);
            let why = stuck.as_deref().unwrap_or_default();
            self.complain(&format!(
                "call {id} did not end in time; its worker was killed for it{why}"
            ));
            let error = match stuck {
                Some(why) => self.late_because(&why),
                None => self.late(),
            };
            self.fail(&lost.doing, &error);
        } else if !matches!(lost.doing, Doing::Nothing) {
            self.complain(&format!("a worker {how} while it served a request"));
            let error = if lost.unbegun {
                self.unreachable(&format!("its worker {how} before it began"))
            } else {
                self.fault(lost.ending)
            };
            self.fail(&lost.doing, &error);
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
            self.complain(&format!("callers have to wait: {error}"));
        }
    }

    fn read(&mut self, connection: ConnectionId) {
        for _ in 0..MESSAGES_PER_TURN {
            match self.receiver.next_event(connection) {
                Event::Request(incoming) => self.take(incoming),
                Event::Introduced => self.share(connection),
                Event::Refused { reply_to, id, error } => {
                    self.outbox.tell(&Reply { reply_to, id }, &error);
                }
                Event::Idle => return,
                Event::Closed { fault } => {
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

    /// Gives a request its place, or its refusal.
    fn take(&mut self, incoming: Box<Incoming>) {
        if self.stop.is_some() {
            let ending = self.ending();
            self.outbox.tell(&Reply::to(&incoming), &ending);
            return;
        }
        let now = monotonic_ns();
        self.last_request = now;
        if self.barrier.is_some() || incoming.request.join.is_some() {
            self.take_part(incoming, now);
            return;
        }
        let caller = terms::caller_deadline(&incoming.request, now);
        let deadline = terms::deadline(&self.sandbox.launch, caller, now);
        self.queue(Work::One(incoming), deadline);
    }

    /// Gives work to a free worker or lets it wait for one.
    fn queue(&mut self, work: Work, deadline: u64) {
        let waiting = Waiting { deadline, item: work };
        if self.queue.is_empty() && self.pool.idle().is_some() {
            self.queue.put_back(waiting);
            self.assign();
        } else if let Err((Waiting { item, .. }, full)) = self.queue.push(waiting) {
            item.refuse(&self.overloaded(full), &mut self.outbox);
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
        self.pool.expire(now, terms::latest(&self.sandbox.launch, now));
        while let Some(waiting) = self.queue.pop_expired(now) {
            waiting.item.refuse(&self.late(), &mut self.outbox);
        }
        self.expire_parts(now);
    }

    /// Gives waiting requests to free workers.
    fn assign(&mut self) {
        while let Some(index) = self.pool.idle() {
            let Some(Waiting { deadline, item }) = self.queue.pop() else { return };
            match self.pool.assign(index, item, deadline) {
                Ok(()) => {}
                Err((item, None)) => self.queue.put_back(Waiting { deadline, item }),
                Err((item, Some(error))) => {
                    item.refuse(&ends::not_handed(&error), &mut self.outbox);
                }
            }
        }
    }
}
