//! The functions that a guest imports from the module `cwasi`: one file per function. Runs in a worker, on the
//! guest's thread, while the guest waits.
//!
//! Independent of engine and sockets: linear memory is a [`GuestMemory`], calls go to a [`Dispatch`], log lines to a
//! [`LogSink`].
//!
//! Invariants:
//! - A guest can cause an errno, never a trap or a panic of the host. The ABI of [`func_connect()`] has no errnos:
//!   an error of it is a trap of the guest.
//! - A host function never calls back into a guest (docs/abi.md: the engine does not survive it).
//! - A named constant bounds everything that a guest can accumulate here.
#![warn(missing_docs)]
#![forbid(unsafe_code)]

mod calls;
mod context;
mod context_get;
mod context_set;
mod dispatch_start;
mod dispatch_wait;
mod emit;
mod func_connect;
mod link;
mod log;
mod memory;
mod pages;
mod region_calls;
mod regions;
mod request_dispatcher;
mod response_read;
mod responses;
mod text;
mod trap_message;
mod typed;

pub use context::Context;
pub use context_get::context_get;
pub use context_set::{context_add, context_set};
pub use dispatch_start::{StartParameters, begin_start, dispatch_start, end_start};
pub use dispatch_wait::{dispatch_forget, dispatch_wait};
pub use emit::emit;
pub use func_connect::func_connect;
pub use link::{
    LINK_DEPTH_MAX, LinkEnded, LinkedCalls, OtherMemory, link_offer, link_read, link_result,
    link_return,
};
pub use log::{Level, LogSink, log};
pub use memory::{GuestMemory, GuestPtr};
pub use pages::{PagedMemory, Pages, PagesError};
pub use region_calls::{region_info, region_release, region_seal, region_share};
pub use regions::{MapTarget, Regions};
pub use request_dispatcher::{begin_call, end_call, request_dispatcher};
pub use response_read::response_read;
pub use responses::{RESPONSES_MAX, ResponseTable};
pub use text::lossy_text;
pub use trap_message::trap_message;

use std::time::Instant;

use calls::CallTable;
use cwasi_abi::context_key::TRACEPARENT;
use cwasi_modes::causes::Unavailable;
use cwasi_modes::{CallError, CallResult, CallTicket, OutgoingPayload, Payload, TooManyCalls};
use cwasi_sys::clock::Deadline;
use cwasi_sys::segment::Segment;
use cwasi_wire::envelope::{Join, Metadata};

/// End of a call, as a guest reads it.
pub type CallOutcome = Result<Box<dyn Response>, CallError>;

/// A call that was started.
#[derive(Debug)]
pub enum StartedCall {
    /// It runs.
    Pending(CallTicket),
    /// It has ended.
    Ended(CallResult),
}

/// Moves one call to its callee and back; the host's dispatcher implements it.
pub trait Dispatch {
    /// Calls `target` and waits for its end.
    ///
    /// # Errors
    /// The call's, whose errno and text the guest reads.
    fn call(
        &mut self,
        target: &str,
        payload: OutgoingPayload<'_>,
        deadline: Option<Deadline>,
    ) -> CallResult;

    /// Starts a call of `target`; the guest may change the payload afterwards. A dispatcher without calls in flight
    /// makes the call at once.
    ///
    /// # Errors
    /// When too many are in flight.
    fn start(
        &mut self,
        target: &str,
        payload: OutgoingPayload<'_>,
        _join: Option<Join>,
        deadline: Option<Deadline>,
    ) -> Result<StartedCall, TooManyCalls> {
        Ok(StartedCall::Ended(self.call(target, payload, deadline)))
    }

    /// Waits until one of `calls`, which [`Self::start`] returned, has ended, at most until `until` (`None`: until
    /// their deadlines). Returns the first ended one, whose ticket is then free.
    fn wait(
        &mut self,
        _calls: &[CallTicket],
        _until: Option<Deadline>,
    ) -> Option<(usize, CallResult)> {
        None
    }

    /// Drops a call; its ticket is free again.
    fn forget(&mut self, _call: CallTicket) {}

    /// Index of the embedded module for `target`; `None` if another mode serves it ([`Self::call`]). The call then
    /// runs in the caller's VM, and [`Self::embedded_ended`] follows unless the guest traps.
    ///
    /// # Errors
    /// If the call may not be made.
    fn embedded(
        &mut self,
        _target: &str,
        _payload_len: u64,
        _deadline: Option<Deadline>,
    ) -> Result<Option<usize>, CallError> {
        Ok(None)
    }

    /// Ends the embedded call that began last, with the response's length, or `None` for an error.
    ///
    /// # Errors
    /// When the response is above the limit.
    fn embedded_ended(&mut self, _response_len: Option<u64>) -> Result<(), CallError> {
        Ok(())
    }

    /// True if calls of the running invocation are recorded in a trace.
    fn is_traced(&self) -> bool {
        false
    }

    /// True if the next linked call of the running invocation has spans.
    fn records_linked(&self) -> bool {
        self.is_traced()
    }

    /// W3C trace context of the running code, which differs from its invocation's within an embedded or linked call of
    /// a recorded trace; `None` = the invocation's.
    fn traceparent(&self) -> Option<String> {
        None
    }

    /// Begins a linked call of a recorded trace, from `caller` (`None`: the function itself) to `callee`.
    fn enter_linked(&mut self, _caller: Option<&str>, _callee: &str) {}

    /// Ends and counts a linked call from `caller` (`None`: the function itself) to `callee`.
    fn linked(&mut self, _caller: Option<&str>, _callee: &str, _ended: &LinkEnded) {}

    /// Counts `calls` linked calls that were not timed.
    fn linked_directly(&mut self, _caller: Option<&str>, _callee: &str, _calls: u32) {}

    /// Stores a message for `target`.
    ///
    /// # Errors
    /// The message is not stored, or it is unknown whether it is.
    fn emit(
        &mut self,
        _target: &str,
        _payload: &[u8],
        _deadline: Option<Deadline>,
    ) -> Result<(), CallError> {
        Err(Unavailable::NoShim.into())
    }

    /// Begins an invocation.
    fn begin(&mut self, _context: &Context) {}

    /// Ends the invocation.
    fn end(&mut self) {}
}

/// A response that waits until the guest gives an address for it.
pub trait Response {
    /// Length in bytes.
    fn len(&self) -> u64;

    /// True when there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies all bytes into `target`, which is exactly [`Self::len`] long.
    ///
    /// # Errors
    /// When the bytes cannot be read.
    fn copy_to(&self, target: &mut [u8]) -> Result<(), ResponseLost>;

    /// The segment of the [`Self::len`] bytes; `None` for other memory.
    fn segment(&self) -> Option<&Segment> {
        None
    }
}

/// A response whose bytes cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("response cannot be read: {reason}")]
pub struct ResponseLost {
    /// For the host's log.
    pub reason: String,
}

/// A callee's response in its received form: its segment is mapped into the guest's memory, or copied once.
impl Response for Payload {
    fn len(&self) -> u64 {
        self.len()
    }

    fn copy_to(&self, target: &mut [u8]) -> Result<(), ResponseLost> {
        self.copy_to(target).map_err(|error| ResponseLost { reason: error.to_string() })
    }

    fn segment(&self) -> Option<&Segment> {
        match self {
            Self::Segment(segment) => Some(segment),
            Self::Inline(_) => None,
        }
    }
}

/// A response to keep for the guest.
fn boxed(response: Payload) -> Box<dyn Response> {
    Box::new(response)
}

/// The state of the host functions: one per worker. [`Host::begin`] starts each invocation.
pub struct Host {
    context: Context,
    responses: ResponseTable,
    calls: CallTable,
    dispatch: Box<dyn Dispatch>,
    log: Box<dyn LogSink>,
    trap_message: Option<String>,
    /// What `context_set` and `context_add` have set, in their order.
    metadata: Vec<Metadata>,
    running: bool,
    called: bool,
    /// The outer context's `caller` during an embedded call.
    outer_caller: String,
    /// The last embedded callee's name: its allocation serves the next one.
    last_callee: String,
    /// When the handler began; `None` if that is not measured, or it has not begun.
    handler_began: Option<Instant>,
    times_handler: bool,
}

impl Host {
    /// A host before its first invocation: it refuses calls until [`Self::begin`].
    #[must_use]
    pub fn new(context: Context, dispatch: Box<dyn Dispatch>, log: Box<dyn LogSink>) -> Self {
        let responses = ResponseTable::default();
        Self {
            context,
            responses,
            calls: CallTable::default(),
            dispatch,
            log,
            trap_message: None,
            metadata: Vec::new(),
            running: false,
            called: false,
            outer_caller: String::new(),
            last_callee: String::new(),
            handler_began: None,
            times_handler: false,
        }
    }

    /// Measures when the handler of this invocation begins. [`Self::begin`] was called for it.
    pub const fn time_handler(&mut self) {
        self.times_handler = true;
    }

    /// The handler begins: the payload is in the guest's memory.
    pub fn handler_begins(&mut self) {
        // That of an embedded function begins later.
        if self.times_handler && self.handler_began.is_none() {
            self.handler_began = Some(Instant::now());
        }
    }

    /// When the handler began; `None` if it has not, or [`Self::time_handler`] was not called.
    #[must_use]
    pub const fn handler_began(&self) -> Option<Instant> {
        self.handler_began
    }

    /// Begins an invocation with this context.
    pub fn begin(&mut self, context: Context) {
        self.context = context;
        self.responses.clear();
        self.calls.clear();
        self.trap_message = None;
        self.metadata.clear();
        self.handler_began = None;
        self.times_handler = false;
        self.dispatch.begin(&self.context);
        self.running = true;
        self.called = false;
    }

    /// True if the invocation has called a function outside its VM, so that it may have waited.
    #[must_use]
    pub const fn has_called(&self) -> bool {
        self.called
    }

    /// Ends the invocation: frees what its guest left, drops its calls, and refuses calls until the next
    /// [`Self::begin`].
    pub fn end(&mut self) {
        self.responses.clear();
        self.calls.clear();
        self.dispatch.end();
        self.running = false;
    }

    /// Enters an embedded call: the context shows `callee`, called by this function.
    pub fn enter_embedded(&mut self, callee: &str) {
        let mut function = std::mem::take(&mut self.last_callee);
        callee.clone_into(&mut function);
        let caller = std::mem::replace(&mut self.context.function, function);
        self.outer_caller = std::mem::replace(&mut self.context.caller, caller);
    }

    /// Leaves the call of [`Self::enter_embedded`].
    pub fn leave_embedded(&mut self) {
        let outer = std::mem::take(&mut self.outer_caller);
        let function = std::mem::replace(&mut self.context.caller, outer);
        self.last_callee = std::mem::replace(&mut self.context.function, function);
    }

    /// True if an invocation runs whose calls are recorded in a trace.
    #[must_use]
    pub fn is_traced(&self) -> bool {
        self.running && self.dispatch.is_traced()
    }

    /// True if an invocation runs whose next linked call has spans.
    #[must_use]
    pub fn records_linked(&self) -> bool {
        self.running && self.dispatch.records_linked()
    }

    /// Begins a linked call of a recorded trace ([`Self::is_traced`]).
    pub fn enter_linked(&mut self, caller: Option<&str>, callee: &str) {
        self.dispatch.enter_linked(caller, callee);
    }

    /// Ends and counts a linked call.
    pub fn linked(&mut self, caller: Option<&str>, callee: &str, ended: &LinkEnded) {
        self.dispatch.linked(caller, callee, ended);
    }

    /// Counts `calls` linked calls that have not gone through the host.
    pub fn linked_directly(&mut self, caller: Option<&str>, callee: &str, calls: u32) {
        self.dispatch.linked_directly(caller, callee, calls);
    }

    /// Takes the text of `trap_message`.
    pub fn take_trap_message(&mut self) -> Option<String> {
        self.trap_message.take()
    }

    /// Takes what the invocation has set with `context_set` and `context_add`.
    pub fn take_metadata(&mut self) -> Vec<Metadata> {
        std::mem::take(&mut self.metadata)
    }

    /// The value of a key of [`cwasi_abi::context_key`]; `None` for an unknown key.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<Vec<u8>> {
        if key == TRACEPARENT
            && self.running
            && let Some(traceparent) = self.dispatch.traceparent()
        {
            return Some(traceparent.into_bytes());
        }
        self.context.value(key)
    }

    /// [`Self::value`] as text; bytes that are no UTF-8 become U+FFFD.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<String> {
        self.value(key).map(|value| String::from_utf8_lossy(&value).into_owned())
    }

    /// The context of the running invocation.
    #[must_use]
    pub const fn context(&self) -> &Context {
        &self.context
    }
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host")
            .field("context", &self.context)
            .field("responses", &self.responses)
            .field("calls", &self.calls)
            .field("running", &self.running)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod fake;
