//! The broker's answer to a worker that leaves a one-way message: kept, or why not.

use std::os::fd::{AsFd, OwnedFd};

use tokio::time::{Duration, Instant};

use super::Speaker;
use crate::dispatcher::selection::callee_of;
use crate::modes::{CallError, Payload, TooLarge};
use crate::shim::network::{EVENT_MAX, Network};
use crate::sys::segment::Segment;
use crate::sys::seqpacket;
use crate::wire::control::{self, EmitReply, EmitRequest};
use crate::wire::envelope::Outcome;
use crate::wire::remaining;

/// Longest wait for Redis when the worker waits longer.
const KEEP_MAX: Duration = Duration::from_secs(30);

/// Keeps one message and tells the worker on `reply`.
pub async fn answer(
    network: Option<Network>,
    speaker: &Speaker,
    request: EmitRequest,
    payload: OwnedFd,
    reply: OwnedFd,
) {
    let kept = keep(network, speaker, &request, payload).await;
    tracing::debug!(caller = %speaker.identity, target = request.target, ?kept, "one-way message");
    let answer = match kept {
        Ok(()) => EmitReply { errno: 0, detail: 0, message: String::new() },
        Err(error) => {
            let Outcome { errno, detail } = error.outcome();
            EmitReply { errno, detail: detail as i32, message: error.wire_message() }
        }
    };
    // The socket is the worker's own and empty, so there is room; or the worker is gone.
    let _gone = seqpacket::send(reply.as_fd(), &[&control::encode(&answer)], &[], Some(0));
}

async fn keep(
    network: Option<Network>,
    speaker: &Speaker,
    request: &EmitRequest,
    payload: OwnedFd,
) -> Result<(), CallError> {
    let Some(network) = network else {
        let message =
            "one-way messages are kept in Redis, and this node has no redis_url".to_owned();
        return Err(CallError::NotAvailable { message });
    };
    if request.target.is_empty() || request.target.len() > cwasi_abi::TARGET_MAX {
        let message = format!("a function's name has 1 to {} bytes", cwasi_abi::TARGET_MAX);
        return Err(CallError::Invalid { message });
    }
    if request.length > EVENT_MAX {
        let (length, target) = (request.length, request.target.clone());
        return Err(TooLarge::Message { target, length, limit: EVENT_MAX }.into());
    }
    let segment = Segment::accept(payload, request.length)
        .map_err(|error| CallError::Invalid { message: error.to_string() })?;
    let caller = speaker.calling(callee_of(&speaker.identity, &request.target));
    let wait = remaining::decode(request.remaining_us).unwrap_or(KEEP_MAX).min(KEEP_MAX);
    let payload = Payload::Segment(segment);
    let (target, trace) = (&request.target, &request.traceparent);
    network.emit(&caller, target, trace, payload, Instant::now() + wait).await
}

/// The socket for the answer and the payload, in the order in which a worker sends them.
#[must_use]
pub fn descriptors(mut received: Vec<OwnedFd>) -> Option<(OwnedFd, OwnedFd)> {
    let (payload, reply) = (received.pop()?, received.pop()?);
    received.is_empty().then_some((reply, payload))
}
