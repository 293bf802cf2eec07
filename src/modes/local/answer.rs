//! A callee's answer. The worker that ran the request writes it, or sandbox init if no worker can.

use std::os::fd::BorrowedFd;

use cwasi_abi::INLINE_MAX;

use crate::{CallError, OutgoingPayload, Payload};
use cwasi_sys::clock::Deadline;
use cwasi_sys::seqpacket::{self, SocketError};
use cwasi_wire::envelope::{CallStatus, Response};

use super::{LocalError, send_as_is};

/// Longest error message that travels to a caller, in bytes.
pub const ERROR_MESSAGE_MAX: usize = 4 * 1024;

/// Least memory of the kernel for one message in bytes: its buffer's bookkeeping alone.
const MESSAGE_MEMORY_MIN: usize = 512;

/// Sends an answer now. A large one is written only while those that its caller has not read, if all were as large,
/// have at most `unread_max` bytes: they are memory of the callee's container.
///
/// # Errors
/// As [`send_as_is`]; without room as [`found_no_room`] recognizes it.
pub fn send_answer(
    to: BorrowedFd<'_>,
    response: &Response,
    content: OutgoingPayload<'_>,
    unread_max: u64,
) -> Result<(), LocalError> {
    if content.len() > INLINE_MAX as u64 {
        // More than there are: a message may take more than the least.
        let unread = seqpacket::unreceived(to).unwrap_or(0).div_ceil(MESSAGE_MEMORY_MIN) as u64;
        if unread > 0 && (unread + 1).saturating_mul(content.len()) > unread_max {
            return Err(SocketError::Deadline.into());
        }
    }
    send_as_is(to, response, content, &[], Some(Deadline::PASSED))
}

/// True when the answer was not written because the caller has not read earlier ones.
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
