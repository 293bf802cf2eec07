//! A callee's answer: written by the worker that ran the request, or by sandbox init when no worker can.

use std::os::fd::BorrowedFd;

use crate::modes::{CallError, Payload};
use crate::sys::seqpacket::Deadline;
use crate::wire::envelope::Response;
use crate::wire::ids::CallId;

use super::{LocalError, forward_frame, send_frame};

/// Longest error message that travels to a caller, in bytes.
pub const ERROR_MESSAGE_MAX: usize = 4 * 1024;

/// How a request ended.
#[derive(Debug)]
pub enum Answer {
    /// With a response.
    Response(Payload),
    /// With an error.
    Error(CallError),
}

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
    let mut response = Response { call_id: id.0.to_vec(), ..Response::default() };
    match answer {
        Answer::Response(payload) => forward_frame(fd, &response, payload, &[], deadline),
        Answer::Error(error) => {
            response.errno = error.errno().code();
            let message = error.wire_message();
            send_frame(fd, &response, clip(&message).as_bytes(), &[], deadline)
        }
    }
}

/// `message` cut to [`ERROR_MESSAGE_MAX`] bytes at a character boundary.
fn clip(message: &str) -> &str {
    &message[..message.floor_char_boundary(ERROR_MESSAGE_MAX)]
}
