//! The worker's side of the broker: asks its shim for routes over the socketpair that all processes of the
//! sandbox share, with a reply socket of its own in every question.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use protobuf::EnumOrUnknown;
use serde::de::DeserializeOwned;

use crate::modes::CallError;
use crate::modes::local::LocalRoute;
use crate::sys::clock::{left_until, monotonic_ns};
use crate::sys::segment::Segment;
use crate::sys::seqpacket::{self, Deadline, SocketError};
use crate::wire::control::{
    self, CONTROL_MESSAGE_MAX, EdgeReport, EmitReply, EmitRequest, ResolveReply, ResolveRequest,
    SandboxMessage,
};
use crate::wire::envelope::{Detail, Outcome};
use crate::wire::remaining;

use super::call::{Question, Resolve, Resolved};
use super::links::Route;

/// Reports of one message at most; a worker with more edges than this sends several.
const REPORTS_PER_MESSAGE: usize = 16;

/// Sandbox end of the broker.
#[derive(Debug)]
pub struct BrokerClient {
    broker: OwnedFd,
}

impl BrokerClient {
    /// A client on the inherited socket.
    #[must_use]
    pub fn new(broker: OwnedFd) -> Self {
        Self { broker }
    }

    /// Sends a question with a reply socket and `descriptors`, and waits for its answer.
    fn exchange<T: DeserializeOwned>(
        &self,
        question: &SandboxMessage,
        descriptors: &[BorrowedFd<'_>],
        deadline: Deadline,
    ) -> Result<(T, Vec<OwnedFd>), SocketError> {
        let (ours, theirs) = seqpacket::pair()?;
        let mut all = vec![theirs.as_fd()];
        all.extend(descriptors);
        seqpacket::send(self.broker.as_fd(), &[&control::encode(question)], &all, deadline)?;
        drop(theirs);
        let mut buffer = vec![0; CONTROL_MESSAGE_MAX];
        let received = seqpacket::receive(ours.as_fd(), &mut buffer, deadline)?;
        let reply = control::decode(&buffer[..received.len]).map_err(|error| SocketError::Os {
            operation: "broker's answer",
            source: std::io::Error::other(error),
        })?;
        Ok((reply, received.descriptors))
    }
}

impl Resolve for BrokerClient {
    fn resolve(
        &mut self,
        question: &Question<'_>,
        deadline: Deadline,
    ) -> Result<Resolved, CallError> {
        let target = question.target;
        let request = ResolveRequest {
            target: target.to_owned(),
            avoid: question.avoid.to_vec(),
            held: question.held.to_vec(),
            nearer: question.nearer,
        };
        let (reply, mut descriptors) = self
            .exchange(&SandboxMessage::Resolve(request), &[], deadline)
            .map_err(|error| match error {
                SocketError::Deadline => CallError::Timeout { target: target.to_owned() },
                error => CallError::Unreachable {
                    target: target.to_owned(),
                    message: format!("this sandbox's shim does not answer ({error})"),
                },
            })?;
        let mut connection = || {
            descriptors.pop().ok_or_else(|| CallError::Internal {
                message: format!("the route to {target} came without its connection"),
            })
        };
        match reply {
            ResolveReply::Local { instance, reason, max_payload, instances, nearest, lends } => {
                let connection = connection()?;
                let local = LocalRoute { instance, connection, max_request: max_payload, lends };
                let route = Route::Local { local, reason, nearest };
                Ok(Resolved { route: Some(route), instances })
            }
            ResolveReply::Networked { reason, max_payload } => {
                // The shim knows which instance; none of them is to be avoided by name.
                let instance = String::new();
                let connection = connection()?;
                // The other end is the shim, which keeps nothing.
                let lends = true;
                let bridge = LocalRoute { instance, connection, max_request: max_payload, lends };
                Ok(Resolved { route: Some(Route::Networked { bridge, reason }), instances: 1 })
            }
            ResolveReply::NoOther { instances } => Ok(Resolved { route: None, instances }),
            ResolveReply::Unroutable { errno, message } => {
                // Why there is no route is never a matter of time.
                let outcome = Outcome { errno, detail: Detail::DETAIL_NONE };
                Err(CallError::from_wire(outcome, message, target))
            }
        }
    }

    fn emit(
        &mut self,
        target: &str,
        payload: &[u8],
        traceparent: &str,
        deadline: Deadline,
    ) -> Result<(), CallError> {
        let internal = |message: String| CallError::Internal { message };
        let segment = Segment::copy_of(payload).map_err(|error| internal(error.to_string()))?;
        let request = EmitRequest {
            target: target.to_owned(),
            length: segment.len(),
            traceparent: traceparent.to_owned(),
            remaining_us: remaining::encode(left_until(deadline, monotonic_ns())),
        };
        let question = SandboxMessage::Emit(request);
        let answered = self.exchange::<EmitReply>(&question, &[segment.as_fd()], deadline);
        let (reply, _) = answered.map_err(|error| match error {
            SocketError::Deadline => CallError::Timeout { target: target.to_owned() },
            error => CallError::Broken {
                target: target.to_owned(),
                message: format!("this sandbox's shim does not answer ({error})"),
            },
        })?;
        match reply.errno {
            0 => Ok(()),
            errno => {
                let outcome = Outcome::read(errno, EnumOrUnknown::from_i32(reply.detail));
                Err(CallError::from_wire(outcome, reply.message, target))
            }
        }
    }

    fn report(&mut self, reports: Vec<EdgeReport>) {
        for chunk in reports.chunks(REPORTS_PER_MESSAGE) {
            let message = control::encode(&SandboxMessage::Edges(chunk.to_vec()));
            // Metrics never hold up a call: what the shim does not take at once is lost and said so.
            if let Err(error) = seqpacket::send(self.broker.as_fd(), &[&message], &[], Some(0)) {
                tracing::debug!(%error, "edge report lost");
            }
        }
    }
}
