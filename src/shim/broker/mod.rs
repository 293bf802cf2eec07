//! The broker: what a sandbox asks its shim, over a socketpair that the sandbox inherited.
//!
//! Runs in the daemon. A sandbox has no host paths: for a new callee it asks here, the shim applies policy,
//! connects to the callee's receiver, says hello in the caller's true name and hands the connection over.
//!
//! - [`session`]: the conversation with one sandbox; [`Speaker`]: on whose behalf it speaks.
//! - `route`: the answer to a question for a route; `connect`: a connection to a receiver.
//! - `emit`: the answer to a one-way message.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use tokio::sync::watch;

use super::edges::Edges;
use super::network::Network;
use crate::coordinator::registry::Registry;

mod connect;
mod emit;
mod route;
mod session;
mod speaker;

pub use session::Readiness;
use session::Session;
pub use speaker::Speaker;

/// Longest time a worker may take to take its answer, in nanoseconds.
const REPLY_MAX_NS: u64 = 1_000_000_000;

/// The group's broker; clones share it.
#[derive(Clone, Debug)]
pub struct Broker {
    registry: Registry,
    edges: Edges,
    network: Option<Network>,
    rotation: Arc<AtomicUsize>,
}

impl Broker {
    /// A broker over the host's registry and, when the node has one, the network.
    #[must_use]
    pub fn new(registry: Registry, edges: Edges, network: Option<Network>) -> Self {
        Self { registry, edges, network, rotation: Arc::default() }
    }

    /// The node's network, if it has one.
    #[must_use]
    pub fn network(&self) -> Option<&Network> {
        self.network.as_ref()
    }

    /// The host's registry.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The group's edges.
    #[must_use]
    pub fn edges(&self) -> &Edges {
        &self.edges
    }

    /// Serves one sandbox until all its processes are gone.
    ///
    /// # Errors
    /// When the socket cannot be watched.
    pub fn serve(
        &self,
        socket: OwnedFd,
        speaker: Speaker,
    ) -> std::io::Result<watch::Receiver<Readiness>> {
        Session::start(self.clone(), socket, speaker)
    }
}

#[cfg(test)]
mod tests;
