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

mod error;
pub mod local;
pub mod networked;

pub use error::{CallError, Overload, TooLarge};

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
