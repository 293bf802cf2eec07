//! A bridge: the shim's end of a worker's connection to callees on other hosts. Runs in the shim daemon.
//!
//! The worker sends the same frames as to a local callee. When an instance has started on this host since, the bridge
//! refuses a request as not accepted: the worker then asks for a route again and gets the local one.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::answers::WorkerConnection;
use super::{Network, OutgoingCall};
use cwasi_coordinator::registry::Registry;
use cwasi_coordinator::selection::may_call;
use cwasi_modes::Payload;
use cwasi_modes::causes::Unreached;
use cwasi_modes::local::{LocalError, ReceivedFrame, open_frame};
use cwasi_sys::seqpacket;
use cwasi_wire::control::ModeHint;
use cwasi_wire::envelope::{Path, Request};
use cwasi_wire::frame::FRAME_MAX;
use cwasi_wire::ids::{CallId, Identity};

/// Most calls in flight on one connection, given-up ones included. Further requests wait in the socket, then in their
/// worker. Calls with queued answers do not count.
const CALLS_MAX: usize = cwasi_abi::CALLS_IN_FLIGHT_MAX;
/// Deadline of a call without one.
const FOREVER: Duration = Duration::from_secs(24 * 3600);

/// The caller and the callee of a connection.
#[derive(Clone, Debug)]
pub struct BridgeCaller {
    pub identity: Identity,
    /// Its pod or workflow on this host; empty without both.
    pub group: String,
    pub workflow: String,
    pub instance: String,
    /// Its `cwasi.mode`.
    pub hint: ModeHint,
    /// Largest payload and response in bytes.
    pub max_payload: u64,
    /// It calls for HTTP clients: only instances with `cwasi.http=gateway` serve it.
    pub http: bool,
    pub callee: Identity,
    /// Instances on this host that could not serve the caller when the route was made.
    pub passed_over: Vec<String>,
}

impl BridgeCaller {
    /// True if an instance on this host can serve the caller that could not when the route was made.
    pub(super) fn has_moved(&self, registry: &Registry) -> bool {
        if self.hint != ModeHint::Auto {
            return false;
        }
        let records = registry.instances(&self.callee).unwrap_or_default();
        records.iter().any(|record| {
            !self.passed_over.contains(&record.instance)
                && may_call(&self.identity, &self.callee, &record.allow)
        })
    }
}

impl Network {
    /// A connection for a worker of `caller`. This end serves it until the worker closes it.
    ///
    /// # Errors
    /// When descriptors run out.
    pub fn bridge(&self, caller: BridgeCaller) -> std::io::Result<OwnedFd> {
        let (ours, theirs) = seqpacket::pair().map_err(std::io::Error::other)?;
        let bridge = Bridge {
            network: self.clone(),
            connection: Arc::new(WorkerConnection::new(caller, ours)?),
            calls: Arc::new(Semaphore::new(CALLS_MAX)),
        };
        tokio::spawn(bridge.run());
        Ok(theirs)
    }
}

struct Bridge {
    network: Network,
    connection: Arc<WorkerConnection>,
    calls: Arc<Semaphore>,
}

impl Bridge {
    async fn run(self) {
        let answers = &self.network.inner.answers;
        tokio::select! {
            () = self.take_requests() => {}
            () = answers.deliver(&self.connection) => {}
        }
        answers.end(&self.connection);
    }

    /// Reads requests until the connection ends.
    async fn take_requests(&self) {
        let mut buffer = vec![0; FRAME_MAX];
        // They end with the connection: their caller has given them up, or is gone.
        let mut calls = JoinSet::new();
        while let Ok(permit) = Arc::clone(&self.calls).acquire_owned().await {
            while calls.try_join_next().is_some() {}
            let Some(opened) = self.next(&mut buffer).await else { return };
            if !self.take(opened, permit, &mut calls) {
                return;
            }
        }
    }

    /// The next message; `None` at the connection's end.
    async fn next(&self, buffer: &mut [u8]) -> Option<Result<ReceivedFrame<Request>, LocalError>> {
        loop {
            let mut ready = self.connection.requests.readable().await.ok()?;
            match seqpacket::try_receive(self.connection.as_fd(), buffer) {
                Ok(None) => ready.clear_ready(),
                Ok(Some(received)) => {
                    let max = self.connection.caller.max_payload;
                    let message = &buffer[..received.len];
                    return Some(open_frame(message, received.descriptors, 0, max));
                }
                Err(_closed) => return None,
            }
        }
    }

    /// Starts one call; false for any other message.
    fn take(
        &self,
        opened: Result<ReceivedFrame<Request>, LocalError>,
        permit: OwnedSemaphorePermit,
        calls: &mut JoinSet<()>,
    ) -> bool {
        let opened = match opened {
            Ok(opened) => opened,
            Err(error) => {
                let caller = &self.connection.caller.identity;
                tracing::warn!(%caller, %error, "not a request; the connection is closed");
                return false;
            }
        };
        let Some(id) = opened.envelope.id() else { return false };
        let call = outgoing(id, opened, &self.connection.caller);
        if self.connection.caller.has_moved(&self.network.inner.registry) {
            let ended = (Err(call.unreachable(Unreached::Moved)), Path::PATH_NONE);
            self.network.inner.answers.send(&self.connection, id, ended, call.deadline);
            return true;
        }
        let (network, connection) = (self.network.clone(), Arc::clone(&self.connection));
        calls.spawn(async move {
            let ended = network.call(&connection.caller, &call).await;
            network.inner.answers.send(&connection, call.id, ended, call.deadline);
            drop(permit);
        });
        true
    }
}

fn outgoing(id: CallId, opened: ReceivedFrame<Request>, caller: &BridgeCaller) -> OutgoingCall {
    let ReceivedFrame { envelope, payload, .. } = opened;
    let wait = envelope.remaining().unwrap_or(FOREVER).min(FOREVER);
    OutgoingCall {
        id,
        callee: caller.callee.clone(),
        target: envelope.target,
        deadline: Instant::now() + wait,
        traceparent: envelope.traceparent,
        tracestate: envelope.tracestate,
        attempt: envelope.attempt,
        run: envelope.run,
        join: envelope.join.into_option(),
        metadata: envelope.metadata,
        max_head: envelope.max_head,
        payload: match payload {
            // A worker may send few bytes as a segment; over the network they travel in the message.
            Payload::Segment(segment)
                if segment.len() <= cwasi_wire::network::INLINE_MAX as u64 =>
            {
                segment.to_vec().map_or(Payload::Segment(segment), Payload::Inline)
            }
            payload => payload,
        },
    }
}
