//! The caller's side: calls over connections to callees. Runs in the caller's worker.
//!
//! Many requests may be out on one connection; their answers come in any order and carry their ids. An answer
//! that nobody waits for any more is for the caller of [`LocalMode::receive`] to drop.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::modes::{self, Call, CallError, Payload};
use crate::sys::clock::{left_until, monotonic_ns};
use crate::sys::pool::SegmentPool;
use crate::sys::seqpacket::{self, Deadline, SocketError};
use crate::sys::spin::Spin;
use crate::wire::envelope::{Join, Request, Response};
use crate::wire::frame::{self, FRAME_MAX};
use crate::wire::ids::CallId;
use crate::wire::remaining;

use super::{LocalError, admitted, open_payload, send_payload};

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
pub struct Heard {
    /// The call that it ends.
    pub id: CallId,
    /// How.
    pub ended: Result<Payload, CallError>,
}

/// Local buffer, caller's side.
#[derive(Debug)]
pub struct LocalMode {
    buffer: Vec<u8>,
    max_response: u64,
    pool: Option<SegmentPool>,
    spin: Spin,
}

impl LocalMode {
    /// A caller that takes responses of at most `max_response` bytes.
    #[must_use]
    pub fn new(max_response: u64) -> Self {
        Self { buffer: vec![0; FRAME_MAX], max_response, pool: None, spin: Spin::default() }
    }

    /// Lends segments of `pool` to callees of the own trust group.
    #[must_use]
    pub fn lending(self, pool: Option<SegmentPool>) -> Self {
        Self { pool, ..self }
    }

    /// Whose segments are lent to callees of the own trust group.
    #[must_use]
    pub const fn lender(&self) -> Option<&SegmentPool> {
        self.pool.as_ref()
    }

    /// Sends a request; waits for room until `until`. False when there was none: nothing was sent.
    ///
    /// # Errors
    /// When it cannot be sent at all; the callee did not accept it.
    pub fn send(
        &mut self,
        route: &LocalRoute,
        call: &Call<'_>,
        until: Deadline,
    ) -> Result<bool, CallError> {
        let length = call.payload.len();
        if length > route.max_request {
            let what = format!("payload for {}", call.target);
            return Err(CallError::too_large(&what, length, route.max_request));
        }
        let remaining_us = remaining::encode(left_until(call.deadline, monotonic_ns()));
        let request = Request {
            call_id: call.id.0.to_vec(),
            target: call.target.to_owned(),
            remaining_us,
            traceparent: call.traceparent.to_owned(),
            attempt: call.attempt,
            run: call.run.map(|run| run.0.to_vec()).unwrap_or_default(),
            join: call.join.map(envelope_join).into(),
            ..Request::default()
        };
        let connection = route.connection.as_fd();
        let lender = self.pool.as_ref().filter(|_| route.lends);
        match send_payload(connection, &request, call.payload, lender, until) {
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
        until: Deadline,
    ) -> Result<Option<Heard>, CallError> {
        let (fd, buffer) = (route.connection.as_fd(), &mut self.buffer);
        let soon = match until {
            Some(0) => Ok(None),
            _ => self.spin.wait(|| seqpacket::try_receive(fd, buffer)),
        };
        let received = match soon.transpose() {
            Some(received) => received,
            None => seqpacket::receive(fd, buffer, until),
        };
        let received = match received {
            Ok(received) => received,
            Err(SocketError::Deadline) => return Ok(None),
            Err(error) => return Err(not_answered(error.into(), target)),
        };
        let message = &self.buffer[..received.len];
        open(message, received.descriptors, self.max_response, route.lends, target).map(Some)
    }

    /// Waits until one of `routes` has an answer (or has ended), or until there is room on `room`. The indices of
    /// those that have one; empty when `until` passed, or there is room.
    ///
    /// # Errors
    /// When the system cannot wait.
    pub fn wait(
        routes: &[&LocalRoute],
        room: Option<&LocalRoute>,
        until: Deadline,
    ) -> Result<Vec<usize>, CallError> {
        let input: Vec<BorrowedFd<'_>> =
            routes.iter().map(|route| route.connection.as_fd()).collect();
        let room = room.map(|route| route.connection.as_fd());
        seqpacket::wait_any(&input, room, until).map_err(|error| CallError::Internal {
            message: format!("waiting for answers: {error}"),
        })
    }
}

fn envelope_join(join: modes::Join<'_>) -> Join {
    let modes::Join { key, parts, part } = join;
    Join { key: key.to_owned(), parts, part, ..Join::default() }
}

/// The answer that a message is. What is wrong with its payload is that call's error alone.
fn open(
    message: &[u8],
    descriptors: Vec<OwnedFd>,
    max_response: u64,
    lends: bool,
    target: &str,
) -> Result<Heard, CallError> {
    let malformed =
        |message: String| CallError::Internal { message: format!("answer of {target}: {message}") };
    let frame = frame::decode(message).map_err(|error| malformed(error.to_string()))?;
    let envelope = frame.open::<Response>().map_err(|error| malformed(error.to_string()))?;
    let id = envelope.id().ok_or_else(|| malformed("it names no call".to_owned()))?;
    let opened = open_payload(frame.payload, descriptors, 0, max_response);
    let ended = match opened.and_then(|(payload, _)| admitted(payload, lends)) {
        Ok(payload) if envelope.errno == 0 => Ok(payload),
        Ok(payload) => {
            let text = payload.into_vec().unwrap_or_default();
            let text = String::from_utf8_lossy(&text).into_owned();
            Err(CallError::from_wire(envelope.outcome(), text, target))
        }
        Err(error) => Err(not_answered(error, target)),
    };
    Ok(Heard { id, ended })
}

/// The request did not leave, so the callee never accepted it.
fn not_sent(error: LocalError, target: &str) -> CallError {
    let target = target.to_owned();
    match error {
        LocalError::Socket(error) => CallError::Unreachable { target, message: error.to_string() },
        error => CallError::Internal { message: format!("request to {target}: {error}") },
    }
}

/// The request left and no acceptable answer came.
fn not_answered(error: LocalError, target: &str) -> CallError {
    match error {
        LocalError::Socket(SocketError::Closed) => CallError::Broken {
            target: target.to_owned(),
            message: "its connection closed before the answer".to_owned(),
        },
        LocalError::TooLarge { length, limit } => {
            CallError::too_large(&format!("response of {target}"), length, limit)
        }
        error => CallError::Internal { message: format!("answer of {target}: {error}") },
    }
}
