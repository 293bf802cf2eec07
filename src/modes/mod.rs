//! How a call's data moves: what all modes share, and one folder for each mode that moves data between processes. A
//! mode never chooses and never sees another.
//!
//! There is no trait of the modes: to a worker there is one kind of connection. [`local`] is its two ends, in the caller's
//! worker and, on the callee's side ([`local::receiver`], [`local::lines`]), in sandbox init and its workers.
//! [`networked`] runs in the shims of both: a networked route is such a connection that ends at the caller's shim. An
//! embedded call moves nothing between processes; the engine makes it (`vm::gate`). All three pass the same suite, through the
//! dispatcher (`tests/conformance`).

use std::fmt;

use crate::sys::segment::{Segment, SegmentError, SegmentRef};
use crate::sys::seqpacket::Deadline;
use crate::wire::ids::{CallId, RunId};
use cwasi_abi::Errno;

pub mod local;
pub mod networked;

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

/// One call as a mode sees it.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Unique id; the callee's answer carries it.
    pub id: CallId,
    /// Name of the callee, for messages.
    pub target: &'a str,
    /// The user's bytes.
    pub payload: Outgoing<'a>,
    /// When the caller stops waiting.
    pub deadline: Deadline,
    /// W3C trace context, empty when not traced.
    pub traceparent: &'a str,
    /// Starts at 1.
    pub attempt: u32,
    /// The run of the workflow; `None` = the call is one of its own.
    pub run: Option<RunId>,
    /// Which parts it is handled with; `None` = with none.
    pub join: Option<Join<'a>>,
}

/// A call as one part of several that the callee handles together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Join<'a> {
    /// What the parts of a run that belong together have in common.
    pub key: &'a str,
    /// How many there are; 0 = the callee's annotation says.
    pub parts: u32,
    /// The place of this one among them, from 0.
    pub part: u32,
}

/// A payload on its way out.
#[derive(Clone, Copy, Debug)]
pub enum Outgoing<'a> {
    /// Bytes of the caller, copied by whoever moves them.
    Bytes(&'a [u8]),
    /// A segment that the caller made, or received; moved as it is.
    Segment(SegmentRef<'a>),
}

impl Outgoing<'_> {
    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Segment(segment) => segment.len(),
        }
    }

    /// True when there are no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A payload or response that arrived.
#[derive(Debug)]
pub enum Payload {
    /// Small enough to travel in a frame.
    Inline(Vec<u8>),
    /// Sealed shared memory.
    Segment(Segment),
}

impl Payload {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Segment(segment) => segment.len(),
        }
    }

    /// True when there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies all bytes into `target`, which is exactly [`Self::len`] long.
    ///
    /// # Errors
    /// When a segment cannot be read.
    ///
    /// # Panics
    /// When `target` has another length: the caller asked for the length first.
    pub fn copy_to(&self, target: &mut [u8]) -> Result<(), SegmentError> {
        match self {
            Self::Inline(bytes) => {
                target.copy_from_slice(bytes);
                Ok(())
            }
            Self::Segment(segment) => segment.read_exact_at(target, 0),
        }
    }

    /// To be sent on.
    #[must_use]
    pub fn outgoing(&self) -> Outgoing<'_> {
        match self {
            Self::Inline(bytes) => Outgoing::Bytes(bytes),
            Self::Segment(segment) => Outgoing::Segment(SegmentRef::from(segment)),
        }
    }

    /// All bytes.
    ///
    /// # Errors
    /// When a segment cannot be read into memory.
    pub fn into_vec(self) -> Result<Vec<u8>, SegmentError> {
        match self {
            Self::Inline(bytes) => Ok(bytes),
            Self::Segment(segment) => segment.to_vec(),
        }
    }
}

/// How the text of [`CallError::Timeout`] ends, whose target each side names in its own way.
const LATE: &str = "did not end before its deadline";

/// Why a call did not end with a response. Each variant is one errno of the guest ABI ([`Self::errno`]);
/// the text is what the guest reads.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The request itself is not valid.
    #[error("{message}")]
    Invalid {
        /// What is wrong.
        message: String,
    },
    /// Nobody of that name.
    #[error("{message}")]
    NoSuchFunction {
        /// What was looked for and where.
        message: String,
    },
    /// Policy.
    #[error("{message}")]
    Refused {
        /// Which rule.
        message: String,
    },
    /// The deadline passed.
    #[error("call to {target} {LATE}")]
    Timeout {
        /// The callee.
        target: String,
    },
    /// The deadline passed, and it is known why.
    #[error("{message}")]
    Late {
        /// Which parts are missing, or which output nobody reads.
        message: String,
    },
    /// Workers and queue full.
    #[error("{message}")]
    Overloaded {
        /// Which bounds.
        message: String,
    },
    /// The callee trapped.
    #[error("{message}")]
    Trapped {
        /// The trap.
        message: String,
    },
    /// The callee answered with an error.
    #[error("{message}")]
    Failed {
        /// The callee's message.
        message: String,
    },
    /// Payload or response above the limit.
    #[error("{message}")]
    TooLarge {
        /// Which one, its length and the limit; see [`CallError::too_large`].
        message: String,
    },
    /// Not accepted by the callee; a retry is safe.
    #[error("{target} cannot be reached: {message}")]
    Unreachable {
        /// The callee.
        target: String,
        /// Why.
        message: String,
    },
    /// Accepted, then the callee died: whether it ran is unknown.
    #[error("{target} died while it served the call: {message}")]
    Broken {
        /// The callee.
        target: String,
        /// How.
        message: String,
    },
    /// This node does not offer it.
    #[error("{message}")]
    NotAvailable {
        /// What, and what it needs.
        message: String,
    },
    /// A fault of the host.
    #[error("host fault: {message}")]
    Internal {
        /// For the host's log.
        message: String,
    },
}

impl CallError {
    /// `what` (payload or response, and whose) of `length` bytes is above `limit` bytes.
    #[must_use]
    pub fn too_large(what: &str, length: u64, limit: u64) -> Self {
        let message = format!(
            "{what} of {length} bytes is larger than the limit of {limit} bytes; raise cwasi.max-payload or send less"
        );
        Self::TooLarge { message }
    }

    /// The guest-visible code.
    #[must_use]
    pub const fn errno(&self) -> Errno {
        match self {
            Self::Invalid { .. } => Errno::InvalidArgument,
            Self::NoSuchFunction { .. } => Errno::NoSuchFunction,
            Self::Refused { .. } => Errno::Refused,
            Self::Timeout { .. } | Self::Late { .. } => Errno::Timeout,
            Self::Overloaded { .. } => Errno::Overloaded,
            Self::Trapped { .. } => Errno::Trapped,
            Self::Failed { .. } => Errno::Failed,
            Self::TooLarge { .. } => Errno::PayloadTooLarge,
            Self::Unreachable { .. } => Errno::Unreachable,
            Self::Broken { .. } => Errno::Broken,
            Self::NotAvailable { .. } => Errno::NotAvailable,
            Self::Internal { .. } => Errno::Internal,
        }
    }

    /// What travels beside the errno, so that [`Self::from_wire`] gives back the same error.
    #[must_use]
    pub fn wire_message(&self) -> String {
        match self {
            Self::Broken { message, .. } | Self::Unreachable { message, .. } => message.clone(),
            other => other.to_string(),
        }
    }

    /// The error behind an errno and message that came over the wire.
    #[must_use]
    pub fn from_wire(errno: i32, message: String, target: &str) -> Self {
        let target = target.to_owned();
        match Errno::from_code(errno) {
            Some(Errno::InvalidArgument) => Self::Invalid { message },
            Some(Errno::NoSuchFunction) => Self::NoSuchFunction { message },
            Some(Errno::Refused) => Self::Refused { message },
            Some(Errno::Timeout) if message.ends_with(LATE) => Self::Timeout { target },
            Some(Errno::Timeout) => Self::Late { message },
            Some(Errno::Overloaded) => Self::Overloaded { message },
            Some(Errno::Trapped) => Self::Trapped { message },
            Some(Errno::PayloadTooLarge) => Self::TooLarge { message },
            Some(Errno::Failed) => Self::Failed { message },
            Some(Errno::Unreachable) => Self::Unreachable { target, message },
            Some(Errno::Broken) => Self::Broken { target, message },
            Some(Errno::NotAvailable) => Self::NotAvailable { message },
            _ => Self::Internal { message: format!("{target} answered errno {errno}: {message}") },
        }
    }

    /// True when the callee certainly did not accept the call.
    #[must_use]
    pub const fn not_accepted(&self) -> bool {
        matches!(self, Self::Unreachable { .. })
    }
}
