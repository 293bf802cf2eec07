//! The caller's side: one call over one connection. Runs in the caller's worker.
//!
//! A worker runs one invocation at a time and a call is synchronous, so at most one request is out on a
//! connection. Answers to calls that were given up carry another id and are dropped.

use std::os::fd::{AsFd, OwnedFd};

use crate::modes::{self, Call, CallError, Mode, ModeKind, Outgoing, Payload};
use crate::sys::clock::monotonic_ns;
use crate::sys::seqpacket::SocketError;
use crate::wire::envelope::{Join, Request, Response};
use crate::wire::frame::FRAME_MAX;

use super::{LocalError, receive_frame, send_frame, send_segment};

/// A connection to one instance of a callee.
#[derive(Debug)]
pub struct LocalRoute {
    /// The callee's instance id.
    pub instance: String,
    /// Connected and introduced by the shim.
    pub connection: OwnedFd,
    /// Largest payload that the callee takes, in bytes.
    pub max_request: u64,
}

/// Local buffer, caller's side.
#[derive(Debug)]
pub struct LocalMode {
    buffer: Vec<u8>,
    max_response: u64,
}

impl LocalMode {
    /// A caller that takes responses of at most `max_response` bytes.
    #[must_use]
    pub fn new(max_response: u64) -> Self {
        Self { buffer: vec![0; FRAME_MAX], max_response }
    }

    fn send(route: &LocalRoute, call: &Call<'_>) -> Result<(), CallError> {
        let length = call.payload.len();
        if length > route.max_request {
            let what = format!("payload for {}", call.target);
            return Err(CallError::too_large(&what, length, route.max_request));
        }
        let remaining_us = match call.deadline {
            None => 0,
            // At least 1: 0 means "for ever".
            Some(deadline) => (deadline.saturating_sub(monotonic_ns()) / 1000).max(1),
        };
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
        let sent = match call.payload {
            Outgoing::Bytes(bytes) => send_frame(connection, &request, bytes, &[], call.deadline),
            Outgoing::Segment(segment) => {
                send_segment(connection, &request, segment, &[], call.deadline)
            }
        };
        sent.map_err(|error| not_sent(error, call.target))
    }

    fn receive(&mut self, route: &LocalRoute, call: &Call<'_>) -> Result<Payload, CallError> {
        loop {
            let answer = receive_frame::<Response>(
                &route.connection,
                &mut self.buffer,
                self.max_response,
                call.deadline,
            )
            .map_err(|error| not_answered(error, call.target))?;
            if answer.envelope.id() != Some(call.id) {
                continue;
            }
            if answer.envelope.errno == 0 {
                return Ok(answer.payload);
            }
            let message = answer.payload.into_vec().unwrap_or_default();
            let message = String::from_utf8_lossy(&message).into_owned();
            return Err(CallError::from_wire(answer.envelope.errno, message, call.target));
        }
    }
}

fn envelope_join(join: modes::Join<'_>) -> Join {
    let modes::Join { key, parts, part } = join;
    Join { key: key.to_owned(), parts, part, ..Join::default() }
}

impl Mode for LocalMode {
    const KIND: ModeKind = ModeKind::Local;
    type Route = LocalRoute;

    fn call(&mut self, route: &mut LocalRoute, call: &Call<'_>) -> Result<Payload, CallError> {
        Self::send(route, call)?;
        self.receive(route, call)
    }
}

/// The request did not leave, so the callee never accepted it.
fn not_sent(error: LocalError, target: &str) -> CallError {
    let target = target.to_owned();
    match error {
        LocalError::Socket(SocketError::Deadline) => CallError::Timeout { target },
        LocalError::Socket(error) => CallError::Unreachable { target, message: error.to_string() },
        error => CallError::Internal { message: format!("request to {target}: {error}") },
    }
}

/// The request left and no acceptable answer came.
fn not_answered(error: LocalError, target: &str) -> CallError {
    match error {
        LocalError::Socket(SocketError::Deadline) => {
            CallError::Timeout { target: target.to_owned() }
        }
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
