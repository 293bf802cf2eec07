//! Hands work to a worker: one frame for each call, and each caller's connection once. Runs in sandbox init.

use std::os::fd::{AsFd, BorrowedFd};

use crate::modes::local::{LocalError, send_as_is};
use crate::sandbox::work::Work;
use crate::sys::clock::Deadline;
use crate::wire::envelope::{Assignment, Group, Request};

/// Sends the call with this index. Returns false when `work` has no such call.
///
/// # Errors
/// [`SocketError::Deadline`](crate::sys::seqpacket::SocketError::Deadline) when there is no room now.
pub fn send_call(socket: BorrowedFd<'_>, work: &Work, index: usize) -> Result<bool, LocalError> {
    let Some((number, call)) = work.parts().nth(index) else { return Ok(false) };
    let is_known = work.calls().take(index).any(|sent| sent.connection.id == call.connection.id);
    let descriptors = [call.connection.fd.as_fd()];
    let extra = if is_known { &descriptors[..0] } else { &descriptors[..] };
    let request = match index {
        0 => Request { target: String::new(), ..call.request.clone() },
        _ => Request { call_id: call.id.0.to_vec(), ..Request::default() },
    };
    let group = work.expected.map(|expected| Group {
        expected,
        number: *number,
        following: u32::try_from(work.calls().skip(index + 1).count()).unwrap_or(u32::MAX),
        ..Group::default()
    });
    let assignment = Assignment {
        request: Some(request).into(),
        connection: Some(call.connection.envelope()).into(),
        group: group.into(),
        deadline_mono_ns: work.deadline.as_ns(),
        ..Assignment::default()
    };
    let now = Some(Deadline::PASSED);
    send_as_is(socket, &assignment, call.payload.outgoing(), extra, now).map(|()| true)
}
