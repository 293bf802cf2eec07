//! The caller's side: calls over connections to callees. Runs in the caller's worker.
//!
//! One connection can carry many requests at a time; answers carry their call's id and come in any order. The caller of
//! [`LocalMode::receive`] drops answers to calls that it has given up.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::causes::{Break, Unreached};
use crate::pool::SegmentPool;
use crate::spin::Spin;
use crate::{CallError, CallResult, OutgoingCall, OutgoingPayload};
use cwasi_sys::clock::{Deadline, monotonic_ns};
use cwasi_sys::page_buffer::PageBuffer;
use cwasi_sys::segment::Segment;
use cwasi_sys::seqpacket::{self, SocketError};
use cwasi_wire::envelope::{Metadata, Path, Request, Response};
use cwasi_wire::frame::{self, FRAME_MAX};
use cwasi_wire::ids::CallId;
use cwasi_wire::remaining;

use super::{LocalError, copy_for_peer, open_payload, send_as_is};

/// A connection to one instance of a callee.
#[derive(Debug)]
pub struct LocalRoute {
    /// The callee's instance id.
    pub instance: String,
    /// Connected and introduced by the shim.
    pub connection: OwnedFd,
    /// Largest payload that the callee takes, in bytes.
    pub max_request: u64,
    /// The shim says that the callee is of our trust group: segments may be lent both ways.
    pub lends: bool,
}

/// An answer that arrived.
#[derive(Debug)]
pub struct ReceivedAnswer {
    pub id: CallId,
    /// The response or the error.
    pub result: CallResult,
    /// What the callee set beside its response.
    pub metadata: Vec<Metadata>,
    /// The next answer is worth polling for.
    pub poll_next: bool,
    /// How the call went to another host; a callee of this host may claim anything.
    pub path: Path,
}

/// Local buffer, caller's side.
#[derive(Debug)]
pub struct LocalMode {
    buffer: PageBuffer,
    max_response: u64,
    /// Its segments are lent to callees of the own trust group.
    pub pool: Option<SegmentPool>,
    spin: Spin,
}

impl LocalMode {
    /// A caller that takes responses of at most `max_response` bytes.
    #[must_use]
    pub fn new(max_response: u64) -> Self {
        Self { buffer: PageBuffer::new(FRAME_MAX), max_response, pool: None, spin: Spin::default() }
    }

    /// The copy of a call's payload that goes to the callee, made once however often the call is sent; `None` when the
    /// payload goes as it is.
    ///
    /// # Errors
    /// When the payload is larger than the callee takes, or memory or descriptors run out.
    pub fn copy(
        &self,
        route: &LocalRoute,
        call: &OutgoingCall<'_>,
    ) -> Result<Option<Segment>, CallError> {
        let length = call.payload.len();
        if length > route.max_request {
            let what = format!("payload for {}", call.target);
            return Err(CallError::too_large(&what, length, route.max_request));
        }
        let lender = self.pool.as_ref().filter(|_| route.lends);
        copy_for_peer(call.payload, lender.is_some(), lender)
            .map_err(|error| not_sent(error.into(), call.target))
    }

    /// True if there is room for messages, but not for more descriptors in flight. No event says when there is.
    #[must_use]
    pub fn is_out_of_descriptors(route: &LocalRoute, payload: OutgoingPayload<'_>) -> bool {
        matches!(payload, OutgoingPayload::Segment(_))
            && seqpacket::has_room(route.connection.as_fd())
    }

    /// Sends a request with this payload, its own or its [`Self::copy`]; waits for room until `until`. False when there
    /// was none: nothing was sent.
    ///
    /// # Errors
    /// When it cannot be sent at all; the callee did not accept it.
    pub fn send(
        &mut self,
        route: &LocalRoute,
        call: &OutgoingCall<'_>,
        payload: OutgoingPayload<'_>,
        until: Option<Deadline>,
    ) -> Result<bool, CallError> {
        let remaining_us =
            remaining::encode(call.deadline.map(|deadline| deadline.left(monotonic_ns())));
        let request = Request {
            call_id: call.id.0.to_vec(),
            target: call.target.to_owned(),
            remaining_us,
            traceparent: call.trace.traceparent.to_owned(),
            tracestate: call.trace.tracestate.to_owned(),
            sent_mono_ns: if call.traced { monotonic_ns() } else { 0 },
            attempt: call.attempt,
            run: call.run.map(|run| run.0.to_vec()).unwrap_or_default(),
            join: call.join.cloned().into(),
            ..Request::default()
        };
        let connection = route.connection.as_fd();
        match send_as_is(connection, &request, payload, &[], until) {
            Ok(()) => Ok(true),
            Err(LocalError::Socket(SocketError::Deadline)) => Ok(false),
            Err(error) => Err(not_sent(error, call.target)),
        }
    }

    /// The next answer on a connection to `target`; waits for it until `until`, `None` when there was none.
    ///
    /// # Errors
    /// When the connection brings no more answers: every call that is out on it has ended with this error.
    pub fn receive(
        &mut self,
        route: &LocalRoute,
        target: &str,
        until: Option<Deadline>,
    ) -> Result<Option<ReceivedAnswer>, CallError> {
        let (fd, buffer) = (route.connection.as_fd(), &mut self.buffer);
        let soon = match until {
            Some(Deadline::PASSED) => Ok(None),
            _ => self.spin.wait(|| seqpacket::try_receive(fd, buffer)),
        };
        let wait = || seqpacket::wait_and_receive(fd, buffer, until);
        let received = match soon.transpose().unwrap_or_else(wait) {
            Ok(received) => received,
            Err(SocketError::Deadline) => return Ok(None),
            Err(error) => return Err(not_answered(error.into(), target)),
        };
        let message = &self.buffer[..received.len];
        let lends = route.lends;
        let answer = open_answer(message, received.descriptors, self.max_response, lends, target)?;
        // No callee of another trust group makes this process poll.
        if answer.poll_next && lends {
            self.spin.poll_next();
        }
        Ok(Some(answer))
    }

    /// Waits until one of `routes` has an answer (or has ended), or until there is room on `room`. The indices of
    /// those that have one; empty when `until` passed, or there is room.
    ///
    /// # Errors
    /// When the system cannot wait.
    pub fn wait(
        routes: &[&LocalRoute],
        room: Option<&LocalRoute>,
        until: Option<Deadline>,
    ) -> Result<Vec<usize>, CallError> {
        let input: Vec<BorrowedFd<'_>> =
            routes.iter().map(|route| route.connection.as_fd()).collect();
        let room = room.map(|route| route.connection.as_fd());
        seqpacket::wait_any(&input, room, until).map_err(|error| CallError::Internal {
            message: format!("waiting for answers: {error}"),
        })
    }
}

/// Decodes an answer. A fault of its payload is the error of that call only.
///
/// # Errors
/// When the message is no answer.
pub fn open_answer(
    message: &[u8],
    descriptors: Vec<OwnedFd>,
    max_response: u64,
    lends: bool,
    target: &str,
) -> Result<ReceivedAnswer, CallError> {
    let malformed =
        |message: String| CallError::Internal { message: format!("answer of {target}: {message}") };
    let frame = frame::decode(message).map_err(|error| malformed(error.to_string()))?;
    let envelope = frame.open::<Response>().map_err(|error| malformed(error.to_string()))?;
    let id = envelope.id().ok_or_else(|| malformed("it names no call".to_owned()))?;
    let result = match open_payload(frame.payload, descriptors, 0, max_response, lends) {
        Ok((payload, _)) if envelope.errno == 0 => Ok(payload),
        Ok((payload, _)) => {
            let text = payload.into_vec().unwrap_or_default();
            let text = String::from_utf8_lossy(&text).into_owned();
            Err(CallError::from_wire(envelope.outcome(), text, target))
        }
        Err(error) => Err(not_answered(error, target)),
    };
    let path = envelope.taken_path();
    let Response { metadata, poll_next, .. } = envelope;
    Ok(ReceivedAnswer { id, result, metadata, poll_next, path })
}

/// The error of a request that was not sent, and so not accepted.
fn not_sent(error: LocalError, target: &str) -> CallError {
    let target = target.to_owned();
    match error {
        LocalError::Socket(error) => {
            let cause = Unreached::Unsent { error: error.to_string() };
            CallError::Unreachable { target, cause }
        }
        error => CallError::Internal { message: format!("request to {target}: {error}") },
    }
}

/// The error of a request that was sent and got no acceptable answer.
fn not_answered(error: LocalError, target: &str) -> CallError {
    match error {
        LocalError::Socket(SocketError::Closed) => {
            CallError::Broken { target: target.to_owned(), cause: Break::Closed }
        }
        LocalError::TooLarge { length, limit } => {
            CallError::too_large(&format!("response of {target}"), length, limit)
        }
        error => CallError::Internal { message: format!("answer of {target}: {error}") },
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use crate::local::fixture::send_frame;

    #[test]
    fn only_trusted_callees_restart_polling() {
        for lends in [false, true] {
            let (connection, callee) = seqpacket::pair().unwrap();
            let route = LocalRoute { instance: String::new(), connection, max_request: 1, lends };
            let mut mode = LocalMode::new(1);
            mode.spin.sleep_next();
            let answer = Response { call_id: vec![1; 16], poll_next: true, ..Response::default() };
            send_frame(callee.as_fd(), &answer, b"x", None).unwrap();
            let answer = mode.receive(&route, "callee", None).unwrap().unwrap();
            assert_eq!((answer.id, answer.poll_next), (CallId([1; 16]), true));
            let Ok(polled) = mode.spin.wait(|| Ok::<_, Infallible>(Some(())));
            assert_eq!(polled.is_some(), lends);
        }
    }
}
