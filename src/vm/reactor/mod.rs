//! One invocation of a reactor (docs/abi.md): allocate in the guest, bring the payload, `cwasi_handle`, find
//! the answer. Segments are mapped both ways where the guest's pages allow it.
//!
//! The guest is not trusted: every pointer that it returns is checked against its memory.

use cwasi_abi::{ResponseRef, export};
use cwasi_host_functions::Host;

mod blocks;
mod parts;
mod place;

pub use blocks::{Kept, give_back, prepare, reserve};
use blocks::{Range, checked, offset, outside, response_out};
pub use place::Ahead;
use place::is_paged;

use super::engine::{Instance, Stop, Trap, no_memory};
use crate::modes::Payload;
use crate::sys::segment::Segment;

/// Longest error message that is taken from a guest, in bytes.
pub const ERROR_MESSAGE_MAX: usize = 16 * 1024;

/// What a handler is given.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// One payload.
    Whole(&'a Payload),
    /// The parts of a group, in one block (docs/abi.md).
    Parts {
        /// How many there should be.
        expected: u32,
        /// Number and payload of those that are here, ascending.
        parts: &'a [(u32, Payload)],
    },
}

impl<'a> From<&'a Payload> for Input<'a> {
    fn from(payload: &'a Payload) -> Self {
        Self::Whole(payload)
    }
}

/// How an invocation of a reactor ended.
#[derive(Debug)]
pub enum Handled<'a> {
    /// With a response, which lies in the instance's linear memory.
    Answered(&'a [u8]),
    /// With a response that the guest made in a region.
    InPlace(Segment),
    /// With an error of the handler, or because the payload does not fit into the guest's memory.
    Failed(String),
    /// The guest called `proc_exit` instead of answering.
    Exited(u32),
    /// The guest trapped, or returned pointers outside its memory.
    Trapped(Trap),
}

/// Runs `cwasi_handle` on `payload`, in a fresh instance. [`Host::begin`] was called for this invocation.
pub fn handle<'a, I: Instance>(
    instance: &'a mut I,
    payload: &Payload,
    host: &mut Host,
) -> Handled<'a> {
    handle_again(instance, &mut Kept::default(), payload, host)
}

/// [`handle`] in an instance that has answered before, if it did; `kept` is the instance's own.
pub fn handle_again<'a, 'i, I: Instance>(
    instance: &'a mut I,
    kept: &mut Kept,
    input: impl Into<Input<'i>>,
    host: &mut Host,
) -> Handled<'a> {
    match run(instance, kept, input.into(), host) {
        Ok(Returned { status: 0, response }) => answered(instance, response),
        Ok(Returned { response, .. }) => {
            let end = response.end.min(response.start + ERROR_MESSAGE_MAX);
            let text = String::from_utf8_lossy(&instance.memory()[response.start..end]);
            Handled::Failed(if text.is_empty() {
                "the handler failed without a message".to_owned()
            } else {
                text.into_owned()
            })
        }
        Err(Fault::Stopped(Stop::Exited(code))) => Handled::Exited(code),
        Err(Fault::Stopped(Stop::Trapped(trap))) => Handled::Trapped(trap),
        Err(Fault::NoMemory { length }) => {
            kept.lack(length);
            let linear_memory = instance.memory().len();
            Handled::Failed(no_memory(length, linear_memory, instance.memory_max()))
        }
    }
}

fn answered<I: Instance>(instance: &mut I, response: Range) -> Handled<'_> {
    match instance.answer(response.span()) {
        Ok(Some(segment)) => Handled::InPlace(segment),
        Ok(None) => Handled::Answered(&instance.memory()[response.start..response.end]),
        Err(error) => Handled::Failed(format!("the response's region cannot be sent: {error}")),
    }
}

struct Returned {
    status: i32,
    response: Range,
}

enum Fault {
    Stopped(Stop),
    NoMemory { length: u64 },
}

impl From<Stop> for Fault {
    fn from(stop: Stop) -> Self {
        Self::Stopped(stop)
    }
}

fn run<I: Instance>(
    instance: &mut I,
    kept: &mut Kept,
    input: Input<'_>,
    host: &mut Host,
) -> Result<Returned, Fault> {
    let response_out = response_out(instance, kept, host)?;
    let (ptr, len) = match input {
        Input::Whole(payload) => bring(instance, kept, payload, host)?,
        Input::Parts { expected, parts } => parts::bring(instance, kept, expected, parts, host)?,
    };
    let out = offset(response_out.start);
    kept.use_it();
    let status = instance.call(export::HANDLE, &[ptr, len, out], host)?;
    let status = status.ok_or_else(|| trap(export::HANDLE, "no status was returned".to_owned()))?;
    let mut bytes = [0; ResponseRef::SIZE];
    bytes.copy_from_slice(&instance.memory()[response_out.start..response_out.end]);
    let response = ResponseRef::from_bytes(bytes);
    let range = checked(instance.memory(), response.ptr, u64::from(response.len))
        .ok_or_else(|| outside(instance, export::HANDLE, response.ptr, u64::from(response.len)))?;
    Ok(Returned { status, response: range })
}

/// The payload in linear memory: pointer and length, both 0 when it is empty.
fn bring<I: Instance>(
    instance: &mut I,
    kept: &mut Kept,
    payload: &Payload,
    host: &mut Host,
) -> Result<(i32, i32), Fault> {
    if payload.is_empty() {
        return Ok((0, 0));
    }
    let segment = match payload {
        Payload::Segment(segment) if is_paged(payload.len()) => Some(segment),
        _ => None,
    };
    let block = blocks::place(instance, kept, payload.len(), segment.is_some(), host)?;
    let shown = segment.is_some_and(|segment| instance.show(block.span(), segment));
    let range = block.first(payload.len());
    if !shown {
        payload
            .copy_to(&mut instance.memory_mut()[range.start..range.end])
            .map_err(|error| trap(export::ALLOC, format!("the payload cannot be read: {error}")))?;
    }
    Ok((offset(range.start), offset(range.end - range.start)))
}

fn trap(export: &str, reason: String) -> Fault {
    Fault::Stopped(Stop::Trapped(Trap { export: export.to_owned(), reason }))
}

#[cfg(test)]
mod tests;
