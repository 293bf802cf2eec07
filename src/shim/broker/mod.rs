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

use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::sync::watch;

use super::metrics::Metrics;
use super::network::Network;
use super::spans::Spans;
use crate::coordinator::registry::Registry;

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

/// The group's broker; clones share it.
#[derive(Clone, Debug)]
pub struct Broker {
    resolver: Resolver,
    metrics: Metrics,
    spans: Spans,
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
        Self { resolver: Resolver::new(registry, network), metrics, spans }
    }

    /// What finds routes.
    #[must_use]
    pub const fn resolver(&self) -> &Resolver {
        &self.resolver
    }

    /// The node's network, if it has one.
    #[must_use]
    pub fn network(&self) -> Option<&Network> {
        self.resolver.network()
    }

    /// The host's registry.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        self.resolver.registry()
    }

    /// The group's metrics.
    #[must_use]
    pub const fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The group's spans.
    #[must_use]
    pub const fn spans(&self) -> &Spans {
        &self.spans
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
