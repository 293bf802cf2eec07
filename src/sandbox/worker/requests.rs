//! The requests of a secondary's worker: direct requests from callers' connections, which it shares with init and the
//! other workers, and assignments from init.

use std::convert::Infallible;
use std::io;
use std::os::fd::AsFd;

use crate::work::Work;
use crate::worker_table::{ReaderRole, WorkerSlot};
use crate::{request_limits, stderr};
use cwasi_modes::local::incoming::ParsedMessage;
use cwasi_modes::local::send_queue::unread_max;
use cwasi_modes::local::shared_connections::ReadySource;
use cwasi_modes::local::{ConnectionId, IncomingRequest, LocalError, SharedConnections};
use cwasi_modes::pool::SegmentPool;
use cwasi_modes::shared_processor::SharedProcessor;
use cwasi_modes::spin::{LastSpin, Spin};
use cwasi_sys::clock::{Deadline, monotonic_ns};
use cwasi_sys::page_buffer::PageBuffer;
use cwasi_sys::seqpacket::{self, SocketError};
use cwasi_vm::Context;
use cwasi_wire::control::FunctionLaunch;
use cwasi_wire::envelope::Request;
use cwasi_wire::frame::FRAME_MAX;
use cwasi_wire::metadata::is_of_http;
use cwasi_wire::trace::TraceContext;
use cwasi_wire::trace_headers::TraceHeaders;

use super::replies::{Replies, max_head_of, refuse};
use super::server_span::ServerSpan;
use super::service_time::ServiceTime;
use super::{InitSocket, Worker, WorkerSetup};

use self::assignments::{InitMessage, receive};

mod assignments;

/// A request, or a group of requests.
pub struct Invocation {
    pub replies: Replies,
    pub context: Context,
    /// Its span, if its trace is recorded.
    pub span: Option<ServerSpan>,
}

pub struct Requests<'s> {
    launch: &'s FunctionLaunch,
    init: InitSocket,
    /// Most bytes of large answers that one caller may leave in its connection.
    unread_max: u64,
    /// The pool from which answers are lent.
    pool: Option<SegmentPool>,
    slot: WorkerSlot<'s>,
    connections: SharedConnections,
    buffer: PageBuffer,
    /// The last request was an assignment of init.
    assigned: bool,
    spin: Spin,
    sharing: SharedProcessor,
    /// How long the last request took.
    pub service_time: ServiceTime,
}

impl<'s> Requests<'s> {
    /// The requests from the setup's connections and from init.
    ///
    /// # Errors
    /// When descriptors run out.
    pub fn new<M>(worker: &Worker<'s, M>, setup: WorkerSetup<'s>) -> io::Result<Self> {
        let WorkerSetup { slot, connections: given, wakeup } = setup;
        let (launch, init, pool) = (worker.launch, worker.init.clone(), worker.spec.pool.clone());
        let mut connections = SharedConnections::new(init.0.as_fd(), wakeup, launch.max_payload)?;
        for connection in given {
            connections.add(connection)?;
        }
        let (buffer, assigned) = (PageBuffer::new(FRAME_MAX), false);
        let (spin, sharing, service_time) =
            (Spin::default(), SharedProcessor::default(), ServiceTime::default());
        Ok(Self {
            launch,
            init,
            unread_max: unread_max(launch.memory_bound()),
            pool,
            slot,
            connections,
            buffer,
            assigned,
            spin,
            sharing,
            service_time,
        })
    }

    /// Marks the worker as free: its first instance is made. Returns false when init is gone.
    pub fn become_idle(&self) -> bool {
        let _told_later = self.slot.become_idle();
        self.init.nudge()
    }

    /// Ends the last request, which has been answered, and `called` other functions or not. Returns false when init is
    /// gone, or when the request's deadline has passed and init is about to kill this process.
    pub fn done(&mut self, called: bool) -> bool {
        self.service_time.end(called);
        // In this order: init disables direct reads before it looks for free workers.
        let rests = self.slot.end_turn();
        let asked = self.assigned || !self.slot.direct_reads_enabled();
        rests && (!asked || self.init.nudge())
    }

    /// Waits for the next request. Its instance is made already.
    ///
    /// # Errors
    /// When there will be none: init has closed its socket, or sent what is no message.
    pub fn next(&mut self) -> Result<Invocation, LocalError> {
        loop {
            if let Some(pool) = &self.pool {
                self.slot.note_pool_bytes(pool.bytes());
            }
            self.sharing.waits();
            let ready = if self.slot.become_idle() { self.wait() } else { self.wait_for_init() };
            let invocation = match ready {
                Some(ReadySource::Init) => self.read_init()?,
                Some(ReadySource::Connection(id)) if self.slot.begin_reading(id) => {
                    self.read_connection(id)
                }
                // Init has assigned work or disabled direct reads, or the worker was woken to lead.
                Some(ReadySource::Connection(_)) | None => None,
            };
            if let Some(mut invocation) = invocation {
                let own_group = invocation.replies.lends;
                invocation.replies.poll_next = self.decide_who_leads(own_group);
                return Ok(invocation);
            }
        }
    }

    /// Waits for a request or a message of init. The leader sleeps on the connections, a follower until it is woken.
    fn wait(&mut self) -> Option<ReadySource> {
        let connections = &self.connections;
        let poll = || connections.wait(Some(Deadline::PASSED));
        self.maintain_pool(|| poll().is_some());
        let soon = self.spin.wait(|| Ok::<_, Infallible>(poll())).ok().flatten();
        if matches!(soon, Some(ReadySource::Connection(_))) && self.spin.last() == LastSpin::InTime
        {
            self.sharing.found();
        }
        // At least one poll, so that no worker sleeps while a request waits.
        let soon = soon.or_else(poll);
        if soon.is_some() {
            return soon;
        }
        // Pool maintenance wakes the worker, whatever it sleeps on.
        let until = self.maintenance_due();
        match self.slot.take_role() {
            ReaderRole::Leader => {
                let slept = monotonic_ns();
                let ready = connections.wait(until);
                if let Some(ReadySource::Connection(_)) = ready {
                    self.sharing.slept(slept, monotonic_ns());
                }
                ready
            }
            ReaderRole::Follower => {
                let ready = connections.wait_as_follower(until);
                self.slot.stop_following();
                if self.slot.is_asked_to_poll() {
                    self.spin.poll_next();
                }
                ready
            }
        }
    }

    /// Waits for a message of init; `None` when pool maintenance was due before.
    fn wait_for_init(&self) -> Option<ReadySource> {
        self.maintain_pool(|| self.init_is_readable(Deadline::PASSED));
        match self.maintenance_due() {
            Some(due) if !self.init_is_readable(due) => None,
            // Reading waits.
            _ => Some(ReadySource::Init),
        }
    }

    /// True when init has sent something by `until`, or when reading reports an error.
    fn init_is_readable(&self, until: Deadline) -> bool {
        let init = [self.init.0.as_fd()];
        seqpacket::wait_any(&init, None, Some(until)).map_or(true, |ready| !ready.is_empty())
    }

    /// Maintains the worker's segment pool, until `readable` returns true.
    fn maintain_pool(&self, readable: impl FnMut() -> bool) {
        if let Some(pool) = &self.pool {
            pool.maintain(monotonic_ns(), readable);
        }
    }

    /// When the worker's pool needs maintenance; `None` when it needs none.
    fn maintenance_due(&self) -> Option<Deadline> {
        self.pool.as_ref().and_then(SegmentPool::maintenance_due).map(Deadline::at_ns)
    }

    /// Keeps the lead or hands it over, before the worker runs a request of its own trust group or of another one.
    /// Returns true when it hands the lead over because it shares its caller's processor.
    fn decide_who_leads(&mut self, own_group: bool) -> bool {
        self.service_time.begin();
        if !self.slot.is_reader() {
            return false;
        }
        let is_only_request = || self.connections.wait(Some(Deadline::PASSED)).is_none();
        let keeps = self.service_time.keeps_lead(self.slot, is_only_request);
        let may_part =
            own_group && keeps && self.slot.has_followers() && !self.slot.all_processors_work();
        let leaves = self.sharing.hands_over(&mut self.spin, may_part, monotonic_ns());
        if leaves {
            self.slot.ask_to_poll();
        }
        if keeps && !leaves {
            self.slot.keep_lead();
        } else if self.slot.hand_over_lead() {
            self.connections.wake_follower();
        }
        leaves
    }

    /// Reads a message of init. Adds a further connection; begins assigned work.
    fn read_init(&mut self) -> Result<Option<Invocation>, LocalError> {
        let max_payload = self.launch.max_payload;
        let work = match receive(self.init.0.as_fd(), &mut self.buffer, max_payload)? {
            InitMessage::Assignment(work) => work,
            InitMessage::Connection(connection) => {
                let operation = "epoll_ctl";
                let unwatched = |source| SocketError::Os { operation, source };
                self.connections.add(connection).map_err(unwatched)?;
                return Ok(None);
            }
            InitMessage::WakeUp => return Ok(None),
        };
        // All of it is here. Until now init could assign it to another worker.
        self.assigned = self.slot.begin_assigned();
        if !self.assigned {
            return Ok(None);
        }
        if work.expected.is_some() {
            // Init may hold thousands of the group's descriptors. Without init there is no next request either.
            let _sent = self.init.nudge();
        }
        Ok(Some(self.invocation(work)))
    }

    /// Reads a request from a connection, in phase `Reading`.
    fn read_connection(&mut self, id: ConnectionId) -> Option<Invocation> {
        match self.connections.take(id, &mut self.buffer) {
            Ok(Some(ParsedMessage::Request(request))) if request.request.join.is_some() => {
                let error = request_limits::takes_no_parts(self.launch);
                refuse(&self.init, &request.connection, request.id, &error);
            }
            Ok(Some(ParsedMessage::Request(request))) => return Some(self.begin(request)),
            Ok(Some(ParsedMessage::Refused { connection, id, error })) => {
                refuse(&self.init, &connection, id, &error);
            }
            Err(fault) => {
                let function = &self.launch.identity.function;
                stderr::try_line(&format!("{function}: a caller's connection was closed: {fault}"));
            }
            Ok(None) => {}
        }
        self.slot.abandon_reading();
        None
    }

    /// Records the running request, so that init can enforce its deadline.
    fn begin(&mut self, request: Box<IncomingRequest>) -> Invocation {
        let now = monotonic_ns();
        let caller = request_limits::caller_deadline(&request.request, now);
        let deadline = request_limits::deadline(self.launch, caller, now);
        if self.slot.begin_running(request.id, deadline) {
            // Without init there is no next request either.
            let _told = self.init.nudge();
        }
        self.assigned = false;
        self.invocation(Work::one(request, deadline))
    }

    fn invocation(&self, work: Work) -> Invocation {
        let first = work.first();
        let Request { traceparent: parent, tracestate, metadata, .. } = &first.request;
        let headers = TraceHeaders { traceparent: parent, tracestate };
        let record = self.launch.trace.record;
        let span = record.then(|| ServerSpan::begin(&first.request)).flatten();
        // Of a group with parts of several functions, no function is the caller.
        let caller = &first.connection.caller;
        let is_only_one = work.calls().all(|call| call.connection.caller == *caller);
        let context = Context {
            invocation_id: first.id.to_string(),
            deadline: Some(work.deadline),
            attempt: first.request.attempt,
            caller: if is_only_one { caller.clone() } else { String::new() },
            traceparent: traceparent(&first.request, span.as_ref()),
            tracestate: headers.accepted_state(),
            run: first.request.run_id(),
            metadata: metadata.clone(),
            max_head: Some(max_head(&first.request, self.launch)),
            ..super::context(self.launch)
        };
        let replies = Replies::new(work, self.pool.as_ref(), self.init.clone(), self.unread_max);
        Invocation { replies, context, span }
    }
}

/// Most bytes of metadata that the function may set. Callers that did not come by HTTP drop what they cannot read.
fn max_head(request: &Request, launch: &FunctionLaunch) -> usize {
    let own = launch.max_head as usize;
    if is_of_http(&request.metadata) { own.min(max_head_of(request)) } else { own }
}

/// The position of the invocation in its trace.
fn traceparent(request: &Request, span: Option<&ServerSpan>) -> String {
    match span {
        Some(span) => span.context().to_string(),
        // Passed on as it came, if it is one.
        None if TraceContext::parse(&request.traceparent).is_some() => request.traceparent.clone(),
        None => String::new(),
    }
}
