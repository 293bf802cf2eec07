//! A callee's answer. The worker that ran the request writes it, or sandbox init if no worker can.

use crate::modes::{CallError, Payload};
use crate::sys::seqpacket::SocketError;
use crate::wire::envelope::CallStatus;

use super::LocalError;

/// Longest error message that travels to a caller, in bytes.
pub const ERROR_MESSAGE_MAX: usize = 4 * 1024;

/// The result of a call: response or error.
pub type CallResult = Result<Payload, CallError>;

/// True when the answer was not written because the connection is full: the caller has not read earlier ones.
#[must_use]
pub const fn found_no_room(sent: &Result<(), LocalError>) -> bool {
    matches!(sent, Err(LocalError::Socket(SocketError::Deadline)))
}

/// An error as it travels to a caller: status, and a text of at most [`ERROR_MESSAGE_MAX`] bytes.
#[must_use]
pub fn error_answer(error: &CallError) -> (CallStatus, Payload) {
    let mut text = error.wire_message();
    text.truncate(text.floor_char_boundary(ERROR_MESSAGE_MAX));
    (error.outcome(), Payload::Inline(text.into_bytes()))
}
