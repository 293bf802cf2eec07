//! A call, and the mode that moves its data, as all modes see them. Runs in workers and shims.

use std::fmt;

use super::{CallError, OutgoingPayload, Payload};
use cwasi_sys::clock::Deadline;
use cwasi_wire::envelope::Join;
use cwasi_wire::ids::{CallId, RunId};
use cwasi_wire::trace_headers::TraceHeaders;

/// The three modes of the paper (§4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModeKind {
    /// Function embedding: inside the caller's process.
    Embedded,
    /// Local buffer: a Unix socket and shared memory on one host.
    Local,
    /// Networked buffer: Redis, to another host.
    Networked,
}

impl ModeKind {
    /// Lower-case name, as annotations, metrics and tables spell it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Local => "local",
            Self::Networked => "networked",
        }
    }
}

impl fmt::Display for ModeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A call that a mode sends.
#[derive(Clone, Copy, Debug)]
pub struct OutgoingCall<'a> {
    /// Unique id; the callee's answer carries it.
    pub id: CallId,
    /// Name of the callee, for messages.
    pub target: &'a str,
    /// The user's bytes.
    pub payload: OutgoingPayload<'a>,
    /// When the caller stops waiting.
    pub deadline: Option<Deadline>,
    /// W3C trace context.
    pub trace: TraceHeaders<'a>,
    /// True if the caller records a span of this call.
    pub traced: bool,
    /// Starts at 1.
    pub attempt: u32,
    /// The run of the workflow; `None` = the call is one of its own.
    pub run: Option<RunId>,
    /// The group of a fan-in that it is a part of.
    pub join: Option<&'a Join>,
}

/// The result of a call: response or error.
pub type CallResult = Result<Payload, CallError>;

/// Number of a call in flight within its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallTicket(pub u32);

/// Too many calls are in flight; the call was not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many calls are in flight")]
pub struct TooManyCalls;
