//! A callee's answer. The worker that ran the request writes it, or sandbox init if no worker can.

use std::os::fd::BorrowedFd;

use crate::modes::{CallError, OutgoingPayload, Payload};
use crate::sys::clock::Deadline;
use crate::sys::seqpacket::SocketError;
use crate::wire::envelope::{CallStatus, Response};
use crate::wire::ids::CallId;

use super::{LocalError, send_as_is};

/// Longest error message that travels to a caller, in bytes.
pub const ERROR_MESSAGE_MAX: usize = 4 * 1024;

/// The result of a call: response or error.
pub type CallResult = Result<Payload, CallError>;

/// Writes the answer to `id` on the connection that the request came from.
///
/// # Errors
/// When the caller is gone or does not read until `deadline`.
pub fn respond(
    fd: BorrowedFd<'_>,
    id: CallId,
    answer: &CallResult,
    deadline: Option<Deadline>,
) -> Result<(), LocalError> {
    match answer {
        Ok(payload) => respond_with(fd, id, &CallStatus::ANSWERED, payload.outgoing(), deadline),
        Err(error) => {
            let (status, text) = error_answer(error);
            respond_with(fd, id, &status, text.outgoing(), deadline)
        }
    }
}

/// [`respond`] with the call's status, and the response or the error's text.
///
/// # Errors
/// As [`respond`].
pub fn respond_with(
    fd: BorrowedFd<'_>,
    id: CallId,
    outcome: &CallStatus,
    content: OutgoingPayload<'_>,
    deadline: Option<Deadline>,
) -> Result<(), LocalError> {
    send_as_is(fd, &Response::of(id, outcome.clone()), content, &[], deadline)
}

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
