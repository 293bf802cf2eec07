//! Where a worker's requests come from: its callers' connections, which it shares with init and the other workers, and
//! init, which has those that nobody was free for.

use std::convert::Infallible;
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;

use crate::modes::local::lines::{Arrived, Ready, Taken};
use crate::modes::local::receiver::ConnectionId;
use crate::modes::local::{Answer, Line, Lines, LocalError, Opened, open_frame};
use crate::modes::{CallError, Payload};
use crate::sandbox::board::{Role, Slot, Wait};
use crate::sandbox::messages::WorkerMessage;
use crate::sandbox::{stderr, terms};
use crate::sys::clock::{from_monotonic, monotonic_ns};
use crate::sys::pool::SegmentPool;
use crate::sys::seqpacket::{self, Deadline, Received as Message, SocketError};
use crate::sys::spin::Spin;
use crate::vm::{Context, Module};
use crate::wire::envelope::{self, Assignment, Part, Request};
use crate::wire::frame::{self, FRAME_MAX, Kind};
use crate::wire::ids::CallId;

use super::pace::Pace;
use super::replies::{Destination, Replies};
use super::{Seat, Worker};

/// A request, or a group of them.
pub struct Task {
    pub replies: Replies,
    pub deadline: Deadline,
    pub context: Context,
    pub input: Received,
}

/// What the handler is to get.
pub enum Received {
    Whole(Payload),
    Parts { expected: u32, parts: Vec<(u32, Payload)> },
}

/// Why there are no more requests.
pub enum Ended {
    Init,
    Malformed(String),
}

/// A worker's requests.
pub struct Requests<'s> {
    slot: Slot<'s>,
    lines: Lines,
    buffer: Vec<u8>,
    /// The one that was given last came from init.
    assigned: bool,
    spin: Spin,
    pace: Pace,
}

impl<'s> Requests<'s> {
    /// Those that come over the seat's connections, and from init.
    ///
    /// # Errors
    /// When descriptors run out.
    pub fn new<M: Module>(worker: &Worker<'_, M>, seat: Seat<'s>) -> io::Result<Self> {
        let max_payload = worker.launch.max_payload;
        let mut lines = Lines::new(worker.init.as_fd(), seat.wakeup, max_payload)?;
        for line in seat.lines {
            lines.add(line)?;
        }
        let buffer = vec![0; FRAME_MAX];
        let (spin, pace) = (Spin::default(), Pace::default());
        Ok(Self { slot: seat.slot, lines, buffer, assigned: false, spin, pace })
    }

    /// There is an instance for the first one.
    pub fn settle(&self) {
        let _told_later = self.slot.settle();
    }

    /// The request that was given last has been answered; false when init is gone, or the request's deadline was over
    /// and init is about to end this process.
    pub fn done<M: Module>(&mut self, worker: &Worker<'_, M>) -> bool {
        self.pace.end(worker.host.has_called());
        // In this order: init closes the gate before it looks who is free.
        let rests = self.slot.rest();
        let asked = self.assigned || !self.slot.gate_is_open();
        rests && (!asked || worker.nudge(&WorkerMessage::Done))
    }

    /// The next instance took so many nanoseconds to make.
    pub fn prepared(&mut self, ns: u64) {
        self.pace.prepare(ns);
    }

    /// The next request; there is an instance for it.
    ///
    /// # Errors
    /// When there will be none.
    pub fn next<M: Module>(&mut self, worker: &Worker<'_, M>) -> Result<Task, Ended> {
        loop {
            let ready = match self.slot.settle() {
                Wait::Anybody => self.wait(worker),
                Wait::Init => wait_for_init(worker),
                Wait::End => return Err(Ended::Init),
            };
            let task = match ready {
                Some(Ready::Init) => self.hear_init(worker)?,
                Some(Ready::Line(id)) if self.slot.take(id) => self.take_line(worker, id),
                // Init has something for this worker, or for those who ask it; or it is to watch.
                Some(Ready::Line(_)) | None => None,
            };
            if let Some(task) = task {
                self.decide_who_leads();
                return Ok(task);
            }
        }
    }

    /// Waits for whatever comes first. The leader sleeps on the connections, a follower until it is woken.
    fn wait<M: Module>(&mut self, worker: &Worker<'_, M>) -> Option<Ready> {
        let lines = &self.lines;
        maintain_pool(worker, || lines.wait(Some(0)).is_some());
        let soon = self.spin.wait(|| Ok::<_, Infallible>(lines.wait(Some(0)))).ok().flatten();
        // At least one look, so that nobody goes to sleep beside requests that wait.
        let soon = soon.or_else(|| lines.wait(Some(0)));
        if soon.is_some() {
            return soon;
        }
        // The pool wakes its own worker, and changes nothing about what that sleeps on.
        let timeout_ms = pool_timeout_ms(worker);
        match self.slot.take_role() {
            Role::Leader => lines.wait(timeout_ms),
            Role::Follower => {
                let ready = lines.wait_as_follower(timeout_ms);
                self.slot.stop_following();
                ready
            }
        }
    }

    /// Before the worker runs a request: whether another one is to lead meanwhile.
    fn decide_who_leads(&mut self) {
        self.pace.begin();
        if !self.slot.reads() {
            return;
        }
        let returns = || self.pace.is_short() && self.lines.wait(Some(0)).is_none();
        if self.pace.is_enough(self.slot) || returns() {
            self.slot.keep_lead();
        } else if self.slot.hand_over_lead() {
            self.lines.wake_follower();
        }
    }

    /// Reads from a connection, in `Taking`.
    fn take_line<M: Module>(&mut self, worker: &Worker<'_, M>, id: ConnectionId) -> Option<Task> {
        match self.lines.take(id, &mut self.buffer) {
            Taken::Request(arrived) if arrived.request.join.is_some() => {
                refuse(
                    worker,
                    arrived.line.into(),
                    arrived.id,
                    terms::takes_no_parts(worker.launch),
                );
            }
            Taken::Request(arrived) => return Some(self.begin(worker, *arrived)),
            Taken::Refused { fd, id: call, error } => {
                refuse(worker, Destination { connection: id, fd }, call, error);
            }
            Taken::Fault(fault) => {
                let function = &worker.launch.identity.function;
                stderr::try_line(&format!("{function}: a caller's connection was closed: {fault}"));
            }
            Taken::Nothing => {}
        }
        self.slot.put_back();
        None
    }

    /// Says whose request this worker runs now.
    fn begin<M: Module>(&mut self, worker: &Worker<'_, M>, arrived: Arrived) -> Task {
        let Arrived { line, id, request, payload } = arrived;
        let now = monotonic_ns();
        let caller = terms::caller_deadline(&request, now);
        let deadline = terms::deadline(worker.launch, caller, now);
        if self.slot.run(id, deadline) {
            // Without init there is no next request either.
            let _told = worker.nudge(&WorkerMessage::Took);
        }
        self.assigned = false;
        let Line { id: connection, fd, caller, lends } = line;
        let context = context(worker, &request, id, caller, Some(deadline));
        let (pool, init) = (worker.spec.pool.as_ref(), Rc::clone(&worker.init));
        let replies = Replies::new(id, Destination { connection, fd }, lends, pool, init);
        Task { replies, deadline: Some(deadline), context, input: Received::Whole(payload) }
    }

    /// What init says: work, or where else work comes from.
    fn hear_init<M: Module>(&mut self, worker: &Worker<'_, M>) -> Result<Option<Task>, Ended> {
        let message = receive(worker, &mut self.buffer)?;
        let malformed = |error: LocalError| Ended::Malformed(format!("message of init: {error}"));
        let kind = frame::decode(&self.buffer[..message.len]).map(|frame| frame.kind);
        if kind.map_err(|error| malformed(error.into()))? == Kind::Line {
            self.add_line(message).map_err(malformed)?;
            return Ok(None);
        }
        self.assigned = true;
        self.assignment(worker, message).map(Some)
    }

    /// One more connection, or none: init opened the gate.
    fn add_line(&mut self, message: Message) -> Result<(), LocalError> {
        let Message { len, descriptors } = message;
        let extra = descriptors.len().min(1);
        let message = &self.buffer[..len];
        let Opened { envelope, mut extra, .. } =
            open_frame::<envelope::Line>(message, descriptors, extra, 0)?;
        let Some(fd) = extra.pop() else { return Ok(()) };
        let id = ConnectionId(envelope.connection);
        let line = Line { id, fd: Rc::new(fd), caller: envelope.caller, lends: envelope.lends };
        self.lines.add(line).map_err(|source| {
            LocalError::Socket(SocketError::Os { operation: "epoll_ctl", source })
        })
    }

    fn assignment<M: Module>(
        &mut self,
        worker: &Worker<'_, M>,
        message: Message,
    ) -> Result<Task, Ended> {
        let malformed = |error: LocalError| Ended::Malformed(format!("assignment: {error}"));
        let Opened { mut envelope, payload, mut extra } = open_frame::<Assignment>(
            &self.buffer[..message.len],
            message.descriptors,
            1,
            worker.launch.max_payload,
        )
        .map_err(malformed)?;
        let request = envelope.request.take().unwrap_or_default();
        let (Some(id), Some(reply_to)) = (request.id(), extra.pop()) else {
            return Err(Ended::Malformed("assignment without id or connection".to_owned()));
        };
        let deadline = (envelope.deadline_mono_ns > 0).then_some(envelope.deadline_mono_ns);
        let context = context(worker, &request, id, envelope.caller, deadline);
        let pool = worker.spec.pool.as_ref();
        let caller =
            Destination { connection: ConnectionId(envelope.connection), fd: Rc::new(reply_to) };
        let init = Rc::clone(&worker.init);
        let mut replies = Replies::new(id, caller, envelope.lends, pool, init);
        let input = match envelope.group.as_ref() {
            None => Received::Whole(payload),
            Some(group) => {
                let others = group.parts.saturating_sub(1);
                let mut parts = vec![(group.number, payload)];
                for _ in 0..others {
                    parts.push(receive_part(worker, &mut self.buffer, &mut replies)?);
                }
                Received::Parts { expected: group.expected, parts }
            }
        };
        Ok(Task { replies, deadline, context, input })
    }
}

/// Does what is due for the worker's pool, unless there is something to read.
fn maintain_pool<M: Module>(worker: &Worker<'_, M>, readable: impl FnMut() -> bool) {
    if let Some(pool) = &worker.spec.pool {
        pool.maintain(monotonic_ns(), readable);
    }
}

/// Longest sleep, in milliseconds, until something is due for the worker's pool; `None` when nothing will be.
fn pool_timeout_ms<M: Module>(worker: &Worker<'_, M>) -> Option<u16> {
    let due = worker.spec.pool.as_ref()?.maintenance_due()?;
    let left_ms = due.saturating_sub(monotonic_ns()).div_ceil(1_000_000);
    Some(u16::try_from(left_ms).unwrap_or(u16::MAX))
}

/// Waits until init says something; `None` when the pool had something to do before.
fn wait_for_init<M: Module>(worker: &Worker<'_, M>) -> Option<Ready> {
    let init = [worker.init.as_fd()];
    // An error is one that reading from the socket brings too.
    let readable = |until| {
        seqpacket::wait_any(&init, None, Some(until)).map_or(true, |ready| !ready.is_empty())
    };
    maintain_pool(worker, || readable(0));
    let due = worker.spec.pool.as_ref().and_then(SegmentPool::maintenance_due);
    due.is_none_or(readable).then_some(Ready::Init)
}

fn receive<M: Module>(worker: &Worker<'_, M>, buffer: &mut [u8]) -> Result<Message, Ended> {
    seqpacket::receive(worker.init.as_fd(), buffer, None).map_err(|_closed| Ended::Init)
}

/// Answers what is no acceptable request.
fn refuse<M: Module>(worker: &Worker<'_, M>, caller: Destination, id: CallId, error: CallError) {
    let replies = Replies::new(id, caller, false, None, Rc::clone(&worker.init));
    replies.send(&Err(error), None);
}

fn context<M: Module>(
    worker: &Worker<'_, M>,
    request: &Request,
    id: CallId,
    caller: String,
    deadline: Deadline,
) -> Context {
    Context {
        invocation_id: id.to_string(),
        deadline: deadline.map(from_monotonic),
        attempt: request.attempt,
        caller,
        traceparent: request.traceparent.clone(),
        run: request.run_id().map(|run| run.0),
        ..worker.context()
    }
}

/// One more part of a group: its number and payload.
fn receive_part<M: Module>(
    worker: &Worker<'_, M>,
    buffer: &mut [u8],
    replies: &mut Replies,
) -> Result<(u32, Payload), Ended> {
    let received = receive(worker, buffer)?;
    let message = &buffer[..received.len];
    let malformed = |error: LocalError| Ended::Malformed(format!("part: {error}"));
    let part: Part = frame::decode(message)
        .and_then(|frame| frame.open())
        .map_err(|error| malformed(error.into()))?;
    let brought = usize::from(!replies.knows(part.connection));
    let mut opened =
        open_frame::<Part>(message, received.descriptors, brought, worker.launch.max_payload)
            .map_err(malformed)?;
    let brought = opened.extra.pop().map(|fd| Destination {
        connection: ConnectionId(part.connection_number),
        fd: Rc::new(fd),
    });
    let known = part.id().is_some_and(|id| replies.add(id, part.connection, brought));
    if !known {
        return Err(Ended::Malformed("part without id or connection".to_owned()));
    }
    Ok((part.number, opened.payload))
}

impl From<Line> for Destination {
    fn from(line: Line) -> Self {
        Self { connection: line.id, fd: line.fd }
    }
}

impl Task {
    pub fn answer(&self, answer: &Answer) {
        self.replies.send(answer, self.deadline);
    }
}
