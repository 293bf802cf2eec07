//! Answers a worker's one-way message: stored in Redis, or the error. Runs in the shim daemon.

use std::os::fd::{AsFd, OwnedFd};

use tokio::time::{Duration, Instant};

use super::BrokerPeer;
use crate::network::{EVENT_MAX, Network};
use cwasi_coordinator::selection::callee_of;
use cwasi_modes::causes::{Invalid, Unavailable};
use cwasi_modes::{CallError, Payload, TooLarge};
use cwasi_sys::clock::Deadline;
use cwasi_sys::random::bytes16;
use cwasi_sys::segment::Segment;
use cwasi_sys::seqpacket;
use cwasi_wire::control::{self, EmitReply, EmitRequest};
use cwasi_wire::envelope::CallStatus;
use cwasi_wire::ids::CallId;
use cwasi_wire::remaining;
use cwasi_wire::trace_headers::TraceHeaders;

/// Longest wait for Redis.
const STORE_MAX: Duration = Duration::from_secs(30);

/// Stores one message and answers the worker on `reply`.
pub async fn answer(
    network: Option<Network>,
    peer: &BrokerPeer,
    request: EmitRequest,
    payload: OwnedFd,
    reply: OwnedFd,
) {
    let stored = store(network, peer, &request, payload).await;
    tracing::debug!(caller = %peer.identity, target = request.target, ?stored, "one-way message");
    let answer = match stored {
        Ok(()) => EmitReply { errno: 0, detail: 0, message: String::new() },
        Err(error) => {
            let CallStatus { errno, detail, .. } = error.outcome();
            EmitReply { errno, detail: detail as i32, message: error.wire_message() }
        }
    };
    // The worker's socket is empty, so it has room; sending fails only when the worker is gone.
    let _gone =
        seqpacket::send(reply.as_fd(), &[&control::encode(&answer)], &[], Some(Deadline::PASSED));
}

async fn store(
    network: Option<Network>,
    peer: &BrokerPeer,
    request: &EmitRequest,
    payload: OwnedFd,
) -> Result<(), CallError> {
    let Some(network) = network else {
        return Err(Unavailable::NoRedis.into());
    };
    if request.target.is_empty() || request.target.len() > cwasi_abi::TARGET_MAX {
        return Err(Invalid::TargetLength.into());
    }
    if request.length > EVENT_MAX {
        let (length, target) = (request.length, request.target.clone());
        return Err(TooLarge::Message { target, length, limit: EVENT_MAX }.into());
    }
    let segment = Segment::accept(payload, request.length)
        .map_err(|error| Invalid::Malformed { error: error.to_string() })?;
    let caller = peer.calling(callee_of(&peer.identity, &request.target));
    let wait = remaining::decode(request.remaining_us).unwrap_or(STORE_MAX).min(STORE_MAX);
    let payload = Payload::Segment(segment);
    let EmitRequest { target, traceparent, tracestate, .. } = request;
    let described = (TraceHeaders { traceparent, tracestate }, Vec::new());
    let id = CallId(bytes16());
    network.emit(&caller, id, target, described, payload, Instant::now() + wait).await
}

/// The socket for the answer and the payload, in the order in which a worker sends them.
#[must_use]
pub fn descriptors(mut received: Vec<OwnedFd>) -> Option<(OwnedFd, OwnedFd)> {
    let (payload, reply) = (received.pop()?, received.pop()?);
    received.is_empty().then_some((reply, payload))
}
