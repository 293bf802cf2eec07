//! One invocation of a reactor (docs/abi.md): allocate in the guest, pass the payload, call `cwasi_handle`, find
//! the answer. Runs in a worker.
//!
//! Segments are mapped in both directions if the guest's pages allow it.
//!
//! Invariant: the guest is not trusted. Every pointer that it returns is checked against its memory.

use cwasi_abi::{ResponseRef, export};
use cwasi_host_functions::{Host, lossy_text};

mod blocks;
mod parts;
mod preallocation;

use blocks::{CheckedRange, checked, offset, outside, response_out};
pub use blocks::{InstanceBlocks, give_back, prepare, reserve};
pub use preallocation::Preallocation;
use preallocation::is_paged;

use super::engine::{GuestStop, Instance, Trap, no_memory};
pub use super::handler::{CalleeEnd, HandlerInput, HandlerOutcome, PayloadHandler};
use cwasi_modes::Payload;

/// Longest error text of a guest in bytes.
pub const ERROR_MESSAGE_MAX: usize = 16 * 1024;

/// Runs `cwasi_handle` on `payload` in a new instance. [`Host::begin`] was called for this invocation.
pub fn handle<'a, I: Instance>(
    instance: &'a mut I,
    payload: &Payload,
    host: &mut Host,
) -> HandlerOutcome<'a> {
    handle_again(instance, &mut InstanceBlocks::default(), payload, host)
}

/// Like [`handle`], in an instance that may have served requests; `kept` is the instance's own state.
pub fn handle_again<'a, 'i, I: Instance>(
    instance: &'a mut I,
    kept: &mut InstanceBlocks,
    input: impl Into<HandlerInput<'i>>,
    host: &mut Host,
) -> HandlerOutcome<'a> {
    let input = input.into();
    if let Some(handler) = instance.payload_handler() {
        kept.use_it();
        host.handler_begins();
        return handler.handle(input, host);
    }
    match run(instance, kept, input, host) {
        Ok(HandlerReturn { status: 0, response }) => answered(instance, response),
        Ok(HandlerReturn { response, .. }) => {
            let bytes = &instance.memory()[response.start..response.end];
            HandlerOutcome::Failed(failure_message(bytes))
        }
        Err(HandlerFault::Stopped(GuestStop::Exited(code))) => HandlerOutcome::Exited(code),
        Err(HandlerFault::Stopped(GuestStop::Trapped(trap))) => HandlerOutcome::Trapped(trap),
        Err(HandlerFault::NoMemory { length }) => {
            kept.allocation_failed(length);
            let linear_memory = instance.memory().len();
            HandlerOutcome::Failed(no_memory(length, linear_memory, instance.memory_max()))
        }
    }
}

/// What a handler that fails has written about it, at most [`ERROR_MESSAGE_MAX`] bytes.
#[must_use]
pub fn failure_message(bytes: &[u8]) -> String {
    let text = lossy_text(bytes, ERROR_MESSAGE_MAX);
    if text.is_empty() { "the handler failed without a message".to_owned() } else { text }
}

fn answered<I: Instance>(instance: &mut I, response: CheckedRange) -> HandlerOutcome<'_> {
    match instance.answer(response.span()) {
        Ok(Some(segment)) => HandlerOutcome::InPlace(segment),
        Ok(None) => HandlerOutcome::Answered(&instance.memory()[response.start..response.end]),
        Err(error) => {
            HandlerOutcome::Failed(format!("the response's region cannot be sent: {error}"))
        }
    }
}

struct HandlerReturn {
    status: i32,
    response: CheckedRange,
}

enum HandlerFault {
    Stopped(GuestStop),
    NoMemory { length: u64 },
}

impl From<GuestStop> for HandlerFault {
    fn from(stop: GuestStop) -> Self {
        Self::Stopped(stop)
    }
}

fn run<I: Instance>(
    instance: &mut I,
    kept: &mut InstanceBlocks,
    input: HandlerInput<'_>,
    host: &mut Host,
) -> Result<HandlerReturn, HandlerFault> {
    let response_out = response_out(instance, kept, host)?;
    let (ptr, len) = match input {
        HandlerInput::Whole(payload) => pass_payload(instance, kept, payload, host)?,
        HandlerInput::Parts { expected, parts } => {
            parts::pass(instance, kept, expected, parts, host)?
        }
    };
    let out = offset(response_out.start);
    kept.use_it();
    host.handler_begins();
    let status = instance.call(export::HANDLE, &[ptr, len, out], host)?;
    let status = status.ok_or_else(|| trap(export::HANDLE, "no status was returned".to_owned()))?;
    let mut bytes = [0; ResponseRef::SIZE];
    bytes.copy_from_slice(&instance.memory()[response_out.start..response_out.end]);
    let response = ResponseRef::from_bytes(bytes);
    let range = checked(instance.memory(), response.ptr, u64::from(response.len))
        .ok_or_else(|| outside(instance, export::HANDLE, response.ptr, u64::from(response.len)))?;
    Ok(HandlerReturn { status, response: range })
}

/// Maps or copies the payload into linear memory: pointer and length, both 0 if it is empty.
fn pass_payload<I: Instance>(
    instance: &mut I,
    kept: &mut InstanceBlocks,
    payload: &Payload,
    host: &mut Host,
) -> Result<(i32, i32), HandlerFault> {
    if payload.is_empty() {
        return Ok((0, 0));
    }
    let segment = match payload {
        Payload::Segment(segment) if is_paged(payload.len()) => Some(segment),
        _ => None,
    };
    let block = blocks::payload_block(instance, kept, payload.len(), segment.is_some(), host)?;
    let mapped = segment.is_some_and(|segment| instance.map(block.span(), segment));
    let range = block.first(payload.len());
    if !mapped {
        payload
            .copy_to(&mut instance.memory_mut()[range.start..range.end])
            .map_err(|error| trap(export::ALLOC, format!("the payload cannot be read: {error}")))?;
    }
    Ok((offset(range.start), offset(range.end - range.start)))
}

fn trap(export: &str, reason: String) -> HandlerFault {
    HandlerFault::Stopped(GuestStop::Trapped(Trap { export: export.to_owned(), reason }))
}

#[cfg(test)]
mod tests;
