//! A callee's answer: written by the worker that ran the request, or by sandbox init when no worker can.

use std::os::fd::BorrowedFd;

use crate::modes::{CallError, Outgoing, Payload};
use crate::sys::seqpacket::{Deadline, SocketError};
use crate::wire::envelope::{Outcome, Response};
use crate::wire::ids::CallId;

use super::{LocalError, send_as_is};

/// Longest error message that travels to a caller, in bytes.
pub const ERROR_MESSAGE_MAX: usize = 4 * 1024;

/// How a request ended.
pub type Answer = Result<Payload, CallError>;

/// Writes the answer to `id` on the connection that the request came from.
///
/// # Errors
/// When the caller is gone or does not read until `deadline`.
pub fn respond(
    fd: BorrowedFd<'_>,
    id: CallId,
    answer: &Answer,
    deadline: Deadline,
) -> Result<(), LocalError> {
    match answer {
        Ok(payload) => respond_with(fd, id, Outcome::ANSWERED, payload.outgoing(), deadline),
        Err(error) => {
            let text = error_text(error);
            let content = Outgoing::Bytes(text.as_bytes());
            respond_with(fd, id, error.outcome(), content, deadline)
        }
    }
}

/// [`respond`] with how the call ended, and the response or the error's text.
///
/// # Errors
/// As [`respond`].
pub fn respond_with(
    fd: BorrowedFd<'_>,
    id: CallId,
    outcome: Outcome,
    content: Outgoing<'_>,
    deadline: Deadline,
) -> Result<(), LocalError> {
    send_as_is(fd, &Response::of(id, outcome), content, &[], deadline)
}

/// True when the answer was not written because the caller has not read others yet.
#[must_use]
pub const fn found_no_room(sent: &Result<(), LocalError>) -> bool {
    matches!(sent, Err(LocalError::Socket(SocketError::Deadline)))
}

/// The text of an error that travels to a caller: at most [`ERROR_MESSAGE_MAX`] bytes.
#[must_use]
pub fn error_text(error: &CallError) -> String {
    let mut text = error.wire_message();
    text.truncate(text.floor_char_boundary(ERROR_MESSAGE_MAX));
    text
}
