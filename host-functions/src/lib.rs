//! The functions that a guest imports from the module `cwasi`: one file per function.
//!
//! Runs in a worker, on the thread that runs the guest, while the guest waits for the host function to
//! return. Knows neither the engine nor sockets: linear memory is a [`GuestMemory`], calls go to a
//! [`Dispatch`], log lines to a [`LogSink`].
//!
//! Invariants:
//! - A guest can cause an errno, never a trap or a panic of the host.
//! - A host function never calls back into a guest (docs/abi.md: the engine does not survive it).
//! - Everything that a guest can pile up here is bounded by a named constant.
#![forbid(unsafe_code)]

mod calls;
mod context;
mod context_get;
mod dispatch_start;
mod dispatch_wait;
mod emit;
mod link;
mod log;
mod memory;
mod pages;
mod regions;
mod request_dispatcher;
mod response_read;
mod responses;
mod text;
mod trap_message;

pub use context::{Context, Deadline};
pub use context_get::context_get;
pub use dispatch_start::{StartParameters, begin_start, dispatch_start, end_start};
pub use dispatch_wait::{dispatch_forget, dispatch_wait};
pub use emit::emit;
pub use link::{
    LINK_DEPTH_MAX, LinkEnded, Links, OtherMemory, link_offer, link_read, link_result, link_return,
};
pub use log::{Level, LogSink, log};
pub use memory::{GuestMemory, GuestPtr};
pub use pages::{PagedMemory, Pages, PagesError, Shared, SharedMemory, Token};
pub use regions::{Regions, ShownIn, region_info, region_release, region_seal, region_share};
pub use request_dispatcher::{begin_call, end_call, request_dispatcher};
pub use response_read::response_read;
pub use responses::{RESPONSES_MAX, ResponseTable};
pub use trap_message::trap_message;

use std::os::fd::BorrowedFd;

use calls::CallTable;
use cwasi_abi::Errno;

/// A call's payload on its way out of the caller.
#[derive(Clone, Copy, Debug)]
pub enum Outgoing<'a> {
    /// Bytes in its linear memory.
    Bytes(&'a [u8]),
    /// Shared memory that begins with these `len` bytes, which no receiver can change.
    Sealed {
        /// The memfd.
        fd: BorrowedFd<'a>,
        /// Length of the payload in bytes.
        len: u64,
        /// What goes with the memfd when its owner wants it back.
        token: Option<BorrowedFd<'a>>,
    },
}

impl Outgoing<'_> {
    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Sealed { len, .. } => *len,
        }
    }

    /// True when there are no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// How a call ended.
pub type Ended = Result<Box<dyn Response>, CallFailure>;

/// A call as one part of several that its callee handles together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Join<'a> {
    /// What the parts of a run that belong together have in common.
    pub key: &'a str,
    /// How many there are; 0 = the callee's annotation says.
    pub parts: u32,
    /// The place of this one among them, from 0.
    pub part: u32,
}

/// What a dispatcher calls a call in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallNumber(pub u32);

/// A call that was started.
pub enum Started {
    /// It is under way.
    Flying(CallNumber),
    /// It is over.
    Ended(Ended),
}

/// As many calls are in flight as a dispatcher keeps; nothing was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many calls are in flight")]
pub struct TooManyCalls;

/// Moves one call to its callee and back; the host's dispatcher implements it.
pub trait Dispatch {
    /// Calls `target` and waits for its end.
    ///
    /// # Errors
    /// The errno and the message that the guest reads.
    fn call(
        &mut self,
        target: &str,
        payload: Outgoing<'_>,
        deadline: Deadline,
    ) -> Result<Box<dyn Response>, CallFailure>;

    /// Starts a call of `target`; the payload is the guest's again when this returns. A dispatcher that knows no calls
    /// in flight makes the call at once.
    ///
    /// # Errors
    /// When there are too many.
    fn start(
        &mut self,
        target: &str,
        payload: Outgoing<'_>,
        _join: Option<Join<'_>>,
        deadline: Deadline,
    ) -> Result<Started, TooManyCalls> {
        Ok(Started::Ended(self.call(target, payload, deadline)))
    }

    /// Waits until one of `calls`, which [`Self::start`] numbered, has ended, at most until `until` (`None`: until
    /// their deadlines); the first that has. Its number is free then.
    fn wait(&mut self, _calls: &[CallNumber], _until: Deadline) -> Option<(usize, Ended)> {
        None
    }

    /// Nobody wants to know the end of this call; its number is free.
    fn forget(&mut self, _call: CallNumber) {}

    /// The number of the embedded module that serves `target`; `None` when another mode does, see
    /// [`Self::call`]. The call then runs in the caller's VM, and [`Self::embedded_ended`] follows unless
    /// the guest traps.
    ///
    /// # Errors
    /// The errno and the message that the guest reads, when the call is not to be made at all.
    fn embedded(
        &mut self,
        _target: &str,
        _payload_len: u64,
        _deadline: Deadline,
    ) -> Result<Option<usize>, CallFailure> {
        Ok(None)
    }

    /// The embedded call that began last ended, with a response of this length or an error.
    ///
    /// # Errors
    /// When the response is above the limit.
    fn embedded_ended(&mut self, _response_len: Option<u64>) -> Result<(), CallFailure> {
        Ok(())
    }

    /// A linked call from `caller` (`None`: the function itself) to `callee` is over.
    fn linked(&mut self, _caller: Option<&str>, _callee: &str, _ended: &LinkEnded) {}

    /// Leaves a message for `target`, to be handled later.
    ///
    /// # Errors
    /// The errno and the message that the guest reads.
    fn emit(
        &mut self,
        _target: &str,
        _payload: &[u8],
        _deadline: Deadline,
    ) -> Result<(), CallFailure> {
        let message = "this host keeps no one-way messages".to_owned();
        Err(CallFailure { errno: Errno::NotAvailable, message })
    }

    /// An invocation starts; its calls follow.
    fn begin(&mut self, _context: &Context) {}

    /// The invocation is over.
    fn end(&mut self) {}
}

/// A response that waits until the guest says where it wants it.
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
    /// When the bytes cannot be read any more.
    fn copy_to(&self, target: &mut [u8]) -> Result<(), ResponseLost>;

    /// The shared memory that begins with the [`Self::len`] bytes; `None` when they lie elsewhere.
    fn shared(&self) -> Option<Shared<'_>> {
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

/// A call that did not end with a response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{errno}: {message}")]
pub struct CallFailure {
    /// Guest-visible code, never [`Errno::Ok`].
    pub errno: Errno,
    /// What the guest's author reads.
    pub message: String,
}

/// The bytes of an error's message, or of a small response.
impl Response for Vec<u8> {
    fn len(&self) -> u64 {
        self.as_slice().len() as u64
    }

    fn copy_to(&self, target: &mut [u8]) -> Result<(), ResponseLost> {
        target.copy_from_slice(self);
        Ok(())
    }
}

/// What host functions act on: one per worker, told about each invocation by [`Host::begin`].
pub struct Host {
    context: Context,
    responses: ResponseTable,
    calls: CallTable,
    dispatch: Box<dyn Dispatch>,
    log: Box<dyn LogSink>,
    trap_message: Option<String>,
    running: bool,
    called: bool,
    /// `caller` of the context that an embedded call's own hides.
    outer_caller: String,
}

impl Host {
    /// A host that has not seen an invocation yet: until [`Self::begin`], calls are refused.
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
            running: false,
            called: false,
            outer_caller: String::new(),
        }
    }

    /// An invocation starts: host functions answer for `context` from now on.
    pub fn begin(&mut self, context: Context) {
        self.context = context;
        self.responses.clear();
        self.calls.clear();
        self.trap_message = None;
        self.dispatch.begin(&self.context);
        self.running = true;
        self.called = false;
    }

    /// The invocation has called a function outside its VM, or the last one did: it may have waited.
    #[must_use]
    pub const fn has_called(&self) -> bool {
        self.called
    }

    /// The invocation is over: frees what its guest left, forgets the calls that it did not wait for, refuses calls until the next [`Self::begin`].
    pub fn end(&mut self) {
        self.responses.clear();
        self.calls.clear();
        self.dispatch.end();
        self.running = false;
    }

    /// The function that a call to an embedded one makes visible as `callee`, called by this one.
    pub fn enter_embedded(&mut self, callee: &str) {
        let caller = std::mem::replace(&mut self.context.function, callee.to_owned());
        self.outer_caller = std::mem::replace(&mut self.context.caller, caller);
    }

    /// Back from [`Self::enter_embedded`].
    pub fn leave_embedded(&mut self) {
        let outer = std::mem::take(&mut self.outer_caller);
        self.context.function = std::mem::replace(&mut self.context.caller, outer);
    }

    /// A linked call is over.
    pub fn linked(&mut self, caller: Option<&str>, callee: &str, ended: &LinkEnded) {
        self.dispatch.linked(caller, callee, ended);
    }

    /// What the guest said about the trap that ended it.
    pub fn take_trap_message(&mut self) -> Option<String> {
        self.trap_message.take()
    }

    /// The invocation that host functions answer for.
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
