//! The broker: answers a sandbox's requests over an inherited socketpair. Runs in the shim daemon.
//!
//! A sandbox has no host paths. For a new callee it asks here: the shim applies the policy, connects to the callee's
//! receiver, introduces the caller, and passes the connection to the sandbox.
//!
//! Invariant: a sandbox cannot choose the identity that it calls with.
//!
//! - [`session`]: the messages of one sandbox; [`BrokerPeer`]: the sandbox's identity.
//! - [`Resolver`]: answers route requests, also those of callers in this process; `connect`: connects to a receiver.
//! - `emit`: answers one-way messages.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use super::metrics::Metrics;
use super::network::Network;
use super::spans::Spans;
use cwasi_coordinator::registry::Registry;
use cwasi_sys::page_buffer::PageBuffer;
use cwasi_sys::seqpacket::{self, SocketError};
use cwasi_wire::control::{self, CONTROL_MESSAGE_MAX, ControlCodecError, SandboxMessage};

mod connect;
mod emit;
mod peer;
mod route;
mod session;

pub use peer::{BrokerPeer, CallerKind};
pub use route::Resolver;
pub use session::Readiness;
use session::Session;

/// Longest wait for a worker to read its answer.
const REPLY_MAX: Duration = Duration::from_secs(1);

/// A sandbox's message, or why it is none.
type DecodedMessage = Result<SandboxMessage, ControlCodecError>;

/// The group's broker; clones share it.
#[derive(Clone, Debug)]
pub struct Broker {
    resolver: Resolver,
    metrics: Metrics,
    spans: Spans,
    /// All sandboxes' messages are read into it, one at a time.
    buffer: Arc<Mutex<PageBuffer>>,
}

impl Broker {
    /// A broker over the host's registry and the node's network, if it has one.
    #[must_use]
    pub fn new(
        registry: Registry,
        metrics: Metrics,
        spans: Spans,
        network: Option<Network>,
    ) -> Self {
        let buffer = Arc::new(Mutex::new(PageBuffer::new(CONTROL_MESSAGE_MAX)));
        Self { resolver: Resolver::new(registry, network), metrics, spans, buffer }
    }

    #[must_use]
    pub const fn resolver(&self) -> &Resolver {
        &self.resolver
    }

    /// The node's network, if it has one.
    #[must_use]
    pub fn network(&self) -> Option<&Network> {
        self.resolver.network()
    }

    #[must_use]
    pub fn registry(&self) -> &Registry {
        self.resolver.registry()
    }

    #[must_use]
    pub const fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    #[must_use]
    pub const fn spans(&self) -> &Spans {
        &self.spans
    }

    /// A message of a sandbox, and its descriptors, if one waits.
    fn receive(
        &self,
        sandbox: BorrowedFd<'_>,
    ) -> Result<Option<(DecodedMessage, Vec<OwnedFd>)>, SocketError> {
        // What a panic left in it is overwritten.
        let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        let received = seqpacket::try_receive(sandbox, &mut buffer)?;
        Ok(received.map(|one| (control::decode(&buffer[..one.len]), one.descriptors)))
    }

    /// Serves one sandbox until all its processes have ended.
    ///
    /// # Errors
    /// When the socket cannot be watched.
    pub fn serve(
        &self,
        socket: OwnedFd,
        peer: BrokerPeer,
    ) -> std::io::Result<watch::Receiver<Readiness>> {
        Session::start(self.clone(), socket, peer)
    }
}

#[cfg(test)]
mod tests;
