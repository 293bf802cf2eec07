//! A handler's input and end, and the trait of handlers that take payloads themselves. Runs in a worker.

use cwasi_host_functions::Host;
use cwasi_modes::pool::SegmentPool;
use cwasi_modes::{CallError, CallResult, Payload};
use cwasi_sys::segment::Segment;

use crate::ends::Trap;

/// The payload of a handler.
#[derive(Clone, Copy, Debug)]
pub enum HandlerInput<'a> {
    Whole(&'a Payload),
    /// The parts of a group, in one block (docs/abi.md).
    Parts {
        /// Number of parts in a complete group.
        expected: u32,
        /// Number and payload of each present part, ascending.
        parts: &'a [(u32, &'a Payload)],
    },
}

impl<'a> From<&'a Payload> for HandlerInput<'a> {
    fn from(payload: &'a Payload) -> Self {
        Self::Whole(payload)
    }
}

/// End of a reactor's invocation.
#[derive(Debug)]
pub enum HandlerOutcome<'a> {
    /// A response in the instance's linear memory.
    Answered(&'a [u8]),
    /// A response in a region.
    InPlace(Segment),
    /// A component's response.
    Returned(Payload),
    /// An error of the handler, or a payload too large for the guest's memory.
    Failed(String),
    /// The guest called `proc_exit` instead of answering.
    Exited(u32),
    /// The guest trapped, or returned pointers outside its memory.
    Trapped(Trap),
    /// A component's HTTP response whose head cannot be delivered, and why.
    Undeliverable(String),
}

/// How the invocation of an embedded function ends: as its call does, or with the reason why its caller traps.
pub type CalleeEnd = Result<CallResult, String>;

impl HandlerOutcome<'_> {
    /// The end of an embedded function's invocation. A response in its memory is copied, as [`Payload::copy_of`] does.
    ///
    /// # Errors
    /// Its trap or exit, which is its caller's trap.
    pub fn ended(self, pool: Option<&SegmentPool>) -> CalleeEnd {
        Ok(match self {
            Self::Answered(bytes) => Payload::copy_of(bytes, pool)
                .map_err(|error| CallError::Internal { message: error.to_string() }),
            Self::InPlace(segment) => Ok(Payload::Segment(segment)),
            Self::Returned(response) => Ok(response),
            Self::Failed(message) => Err(CallError::Failed { message }),
            Self::Exited(code) => return Err(format!("it called exit({code})")),
            Self::Trapped(trap) => return Err(trap.reason),
            Self::Undeliverable(reason) => return Err(reason),
        })
    }
}

/// The handler of a component, which takes and returns payloads. A core module's speaks the protocol of this file.
pub trait PayloadHandler {
    fn handle(&mut self, input: HandlerInput<'_>, host: &mut Host) -> HandlerOutcome<'static>;
}
