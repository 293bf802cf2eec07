//! The requests of a secondary's worker: direct requests from callers' connections, which it shares with init and the
//! other workers, and assignments from init.

use std::convert::Infallible;
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;

use crate::modes::local::incoming::ParsedMessage;
use crate::modes::local::shared_connections::ReadySource;
use crate::modes::local::{
    CallResult, CallerConnection, ConnectionId, IncomingRequest, SharedConnections,
};
use crate::modes::{CallError, Payload};
use crate::sandbox::messages::WorkerMessage;
use crate::sandbox::worker_table::{ReaderRole, Wait, WorkerSlot};
use crate::sandbox::{request_limits, stderr};
use crate::sys::clock::{Deadline, monotonic_ns};
use crate::sys::page_buffer::PageBuffer;
use crate::sys::pool::SegmentPool;
use crate::sys::seqpacket;
use crate::sys::spin::Spin;
use crate::vm::{Context, Module};
use crate::wire::envelope::Request;
use crate::wire::frame::FRAME_MAX;
use crate::wire::ids::CallId;
use crate::wire::trace::TraceContext;
use crate::wire::trace_headers::TraceHeaders;

use super::replies::{Destination, Replies};
use super::server_span::ServerSpan;
use super::service_time::ServiceTime;
use super::{Worker, WorkerSetup};

mod assignments;

/// A request, or a group of requests.
pub struct Invocation {
    pub replies: Replies,
    pub deadline: Option<Deadline>,
    pub context: Context,
    pub input: RequestInput,
    /// Its span, if its trace is recorded.
    pub span: Option<ServerSpan>,
}

/// The input of the handler.
pub enum RequestInput {
    Whole(Payload),
    Parts { expected: u32, parts: Vec<(u32, Payload)> },
}

/// Why there are no more requests.
pub enum NoMoreRequests {
    Init,
    Malformed(String),
}

/// A worker's requests.
pub struct Requests<'s> {
    slot: WorkerSlot<'s>,
    connections: SharedConnections,
    buffer: PageBuffer,
    /// The last request was an assignment of init.
    assigned: bool,
    spin: Spin,
    service_time: ServiceTime,
    /// Bytes of the pool, as the slot says.
    pool_bytes: u64,
}

impl<'s> Requests<'s> {
    /// The requests from the setup's connections and from init.
    ///
    /// # Errors
    /// When descriptors run out.
    pub fn new<M: Module>(worker: &Worker<'_, M>, setup: WorkerSetup<'s>) -> io::Result<Self> {
        let max_payload = worker.launch.max_payload;
        let mut connections =
            SharedConnections::new(worker.init.as_fd(), setup.wakeup, max_payload)?;
        for connection in setup.connections {
            connections.add(connection)?;
        }
        let buffer = PageBuffer::new(FRAME_MAX);
        let (spin, service_time) = (Spin::default(), ServiceTime::default());
        let slot = setup.slot;
        let (assigned, pool_bytes) = (false, 0);
        Ok(Self { slot, connections, buffer, assigned, spin, service_time, pool_bytes })
    }

    /// Marks the worker as free: its first instance is made.
    pub fn become_idle(&self) {
        let _told_later = self.slot.become_idle();
    }

    /// Ends the last request, which has been answered. Returns false when init is gone, or when the request's deadline
    /// has passed and init is about to kill this process.
    pub fn done<M: Module>(&mut self, worker: &Worker<'_, M>) -> bool {
        self.service_time.end(worker.host.has_called());
        // In this order: init disables direct reads before it looks for free workers.
        let rests = self.slot.end_turn();
        let asked = self.assigned || !self.slot.direct_reads_enabled();
        rests && (!asked || worker.nudge(&WorkerMessage::Done))
    }

    /// Records how long making the next instance took, in nanoseconds.
    pub fn prepared(&mut self, ns: u64) {
        self.service_time.add_preparation(ns);
    }

    /// Waits for the next request. Its instance is made already.
    ///
    /// # Errors
    /// When there will be none.
    pub fn next<M: Module>(
        &mut self,
        worker: &Worker<'_, M>,
    ) -> Result<Invocation, NoMoreRequests> {
        loop {
            self.note_pool(worker);
            let ready = match self.slot.become_idle() {
                Wait::CallersOrInit => self.wait(worker),
                Wait::Init => wait_for_init(worker),
                Wait::Killed => return Err(NoMoreRequests::Init),
            };
            let invocation = match ready {
                Some(ReadySource::Init) => self.read_init(worker)?,
                Some(ReadySource::Connection(id)) if self.slot.begin_reading(id) => {
                    self.read_connection(worker, id)
                }
                // Init has assigned work or disabled direct reads, or the worker was woken to lead.
                Some(ReadySource::Connection(_)) | None => None,
            };
            if let Some(invocation) = invocation {
                self.decide_who_leads();
                return Ok(invocation);
            }
        }
    }

    /// Records the bytes of the worker's pool for init.
    fn note_pool<M: Module>(&mut self, worker: &Worker<'_, M>) {
        let bytes = worker.spec.pool.as_ref().map_or(0, SegmentPool::bytes);
        if bytes != self.pool_bytes {
            self.pool_bytes = bytes;
            self.slot.note_pool_bytes(bytes);
        }
    }

    /// Waits for a request or a message of init. The leader sleeps on the connections, a follower until it is woken.
    fn wait<M: Module>(&mut self, worker: &Worker<'_, M>) -> Option<ReadySource> {
        let connections = &self.connections;
        maintain_pool(worker, || connections.wait(Some(0)).is_some());
        let soon = self.spin.wait(|| Ok::<_, Infallible>(connections.wait(Some(0)))).ok().flatten();
        // At least one poll, so that no worker sleeps while a request waits.
        let soon = soon.or_else(|| connections.wait(Some(0)));
        if soon.is_some() {
            return soon;
        }
        // Pool maintenance wakes the worker by a timeout, whatever it sleeps on.
        let timeout_ms = pool_timeout_ms(worker);
        match self.slot.take_role() {
            ReaderRole::Leader => connections.wait(timeout_ms),
            ReaderRole::Follower => {
                let ready = connections.wait_as_follower(timeout_ms);
                self.slot.stop_following();
                ready
            }
        }
    }

    /// Keeps the lead or hands it over, before the worker runs a request.
    fn decide_who_leads(&mut self) {
        self.service_time.begin();
        if !self.slot.is_reader() {
            return;
        }
        let returns = || self.service_time.is_short() && self.connections.wait(Some(0)).is_none();
        if self.service_time.keeps_processors_busy(self.slot) || returns() {
            self.slot.keep_lead();
        } else if self.slot.hand_over_lead() {
            self.connections.wake_follower();
        }
    }

    /// Reads a request from a connection, in phase `Reading`.
    fn read_connection<M: Module>(
        &mut self,
        worker: &Worker<'_, M>,
        id: ConnectionId,
    ) -> Option<Invocation> {
        match self.connections.take(id, &mut self.buffer) {
            Some(ParsedMessage::Request(incoming)) if incoming.request.join.is_some() => {
                let error = request_limits::takes_no_parts(worker.launch);
                refuse(worker, incoming.connection.into(), incoming.id, error);
            }
            Some(ParsedMessage::Request(incoming)) => {
                return Some(self.begin(worker, *incoming));
            }
            Some(ParsedMessage::Refused { connection, id, error }) => {
                refuse(worker, connection.into(), id, error);
            }
            Some(ParsedMessage::Fault(fault)) => {
                let function = &worker.launch.identity.function;
                stderr::try_line(&format!("{function}: a caller's connection was closed: {fault}"));
            }
            None => {}
        }
        self.slot.abandon_reading();
        None
    }

    /// Records the running request, so that init can enforce its deadline.
    fn begin<M: Module>(
        &mut self,
        worker: &Worker<'_, M>,
        incoming: IncomingRequest,
    ) -> Invocation {
        let IncomingRequest { connection, id, request, payload } = incoming;
        let now = monotonic_ns();
        let caller = request_limits::caller_deadline(&request, now);
        let deadline = request_limits::deadline(worker.launch, caller, now);
        if self.slot.begin_running(id, deadline) {
            // Without init there is no next request either.
            let _told = worker.nudge(&WorkerMessage::Took);
        }
        self.assigned = false;
        let CallerConnection { id: number, fd, caller, lends } = connection;
        let span = span(worker, &request, payload.len());
        let context = context(worker, &request, id, caller, Some(deadline), span.as_ref());
        let (pool, init) = (worker.spec.pool.as_ref(), Rc::clone(&worker.init));
        let replies = Replies::new(id, Destination { connection: number, fd }, lends, pool, init);
        Invocation {
            replies,
            deadline: Some(deadline),
            context,
            input: RequestInput::Whole(payload),
            span,
        }
    }
}

/// Maintains the worker's segment pool, until `readable` returns true.
fn maintain_pool<M: Module>(worker: &Worker<'_, M>, readable: impl FnMut() -> bool) {
    if let Some(pool) = &worker.spec.pool {
        pool.maintain(monotonic_ns(), readable);
    }
}

/// Time in milliseconds until the worker's pool needs maintenance; `None` when it needs none.
fn pool_timeout_ms<M: Module>(worker: &Worker<'_, M>) -> Option<u16> {
    let due = worker.spec.pool.as_ref()?.maintenance_due()?;
    let left_ms = due.saturating_sub(monotonic_ns()).div_ceil(1_000_000);
    Some(u16::try_from(left_ms).unwrap_or(u16::MAX))
}

/// Waits for a message of init; `None` when pool maintenance was due before.
fn wait_for_init<M: Module>(worker: &Worker<'_, M>) -> Option<ReadySource> {
    let init = [worker.init.as_fd()];
    // Reading from the socket reports an error, if there is one.
    let readable = |until| {
        seqpacket::wait_any(&init, None, Some(until)).map_or(true, |ready| !ready.is_empty())
    };
    maintain_pool(worker, || readable(Deadline::PASSED));
    let due = worker.spec.pool.as_ref().and_then(SegmentPool::maintenance_due);
    due.map(Deadline::at_ns).is_none_or(readable).then_some(ReadySource::Init)
}

/// Answers a request that is not acceptable.
fn refuse<M: Module>(worker: &Worker<'_, M>, caller: Destination, id: CallId, error: CallError) {
    let replies = Replies::new(id, caller, false, None, Rc::clone(&worker.init));
    replies.send(&Err(error), None);
}

/// The span of a request, if its trace and this function's spans are recorded.
fn span<M: Module>(worker: &Worker<'_, M>, request: &Request, length: u64) -> Option<ServerSpan> {
    worker.launch.trace.record.then(|| ServerSpan::begin(request, length)).flatten()
}

fn context<M: Module>(
    worker: &Worker<'_, M>,
    request: &Request,
    id: CallId,
    caller: String,
    deadline: Option<Deadline>,
    span: Option<&ServerSpan>,
) -> Context {
    let headers =
        TraceHeaders { traceparent: &request.traceparent, tracestate: &request.tracestate };
    let traceparent = match span {
        Some(span) => span.context().to_string(),
        // Passed on as it came, if it is one.
        None if TraceContext::parse(&request.traceparent).is_some() => request.traceparent.clone(),
        None => String::new(),
    };
    Context {
        invocation_id: id.to_string(),
        deadline: deadline.map(Deadline::to_instant),
        attempt: request.attempt,
        caller,
        traceparent,
        tracestate: headers.accepted_state(),
        run: request.run_id().map(|run| run.0),
        metadata: request
            .metadata
            .iter()
            .map(|pair| (pair.key.clone(), pair.value.clone()))
            .collect(),
        ..worker.context()
    }
}

impl From<CallerConnection> for Destination {
    fn from(connection: CallerConnection) -> Self {
        Self { connection: connection.id, fd: connection.fd }
    }
}

impl Invocation {
    pub fn answer(&self, answer: &CallResult) {
        self.replies.send(answer, self.deadline);
    }

    /// The handler has returned.
    pub fn handler_ended(&self) {
        if let Some(span) = &self.span {
            span.handler_ended();
        }
    }
}
