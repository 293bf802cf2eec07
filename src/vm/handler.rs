//! A handler's input and end, and the trait of handlers that take payloads themselves. Runs in a worker.

use cwasi_host_functions::Host;
use cwasi_modes::Payload;
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
}

/// The handler of a component, which takes and returns payloads. A core module's speaks the protocol of this file.
pub trait PayloadHandler {
    fn handle(&mut self, input: HandlerInput<'_>, host: &mut Host) -> HandlerOutcome<'static>;
}
