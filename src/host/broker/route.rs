//! Answers route requests: collects facts about the callee, selects the mode, connects. Runs in the shim daemon, and in
//! processes of the host that call functions ([`crate::caller`]).

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cwasi_abi::Errno;

use super::connect::connect_first;
use super::{BrokerPeer, CallerKind};
use crate::network::{self, FunctionLocations, Network};
use cwasi_coordinator::registry::{Record, Registry, RegistryError};
use cwasi_coordinator::selection::{
    EmbeddingState, Facts, Remote, Selection, callee_of, may_call, select,
};
use cwasi_wire::control::{ModeHint, ResolveReply, ResolveRequest};
use cwasi_wire::ids::Identity;
use cwasi_wire::network::Location;

/// Longest name of a target in bytes.
pub(super) const TARGET_MAX: usize = 512;

/// Finds routes over the host's registry and the node's network; clones share their turn over instances.
#[derive(Clone, Debug)]
pub struct Resolver {
    registry: Registry,
    network: Option<Network>,
    rotation: Arc<AtomicUsize>,
}

impl Resolver {
    /// Over the host's registry and the node's network, if it has one.
    #[must_use]
    pub fn new(registry: Registry, network: Option<Network>) -> Self {
        Self { registry, network, rotation: Arc::default() }
    }

    #[must_use]
    pub const fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The node's network, if it has one.
    #[must_use]
    pub const fn network(&self) -> Option<&Network> {
        self.network.as_ref()
    }

    /// Answers a route request, with a connection if there is a route. Blocks, on a thread of a tokio runtime that may.
    #[must_use]
    pub fn resolve(
        &self,
        peer: &BrokerPeer,
        request: &ResolveRequest,
    ) -> (ResolveReply, Option<OwnedFd>) {
        if request.target.is_empty() || request.target.len() > TARGET_MAX {
            let message = format!("a function's name has 1 to {TARGET_MAX} bytes");
            return unroutable(Errno::InvalidArgument, message);
        }
        let callee = callee_of(&peer.identity, &request.target);
        let (local, beside) = match self.look_up(peer, &callee) {
            Ok(found) => found,
            Err(error) => {
                tracing::error!(caller = %peer.identity, %error, "registry unreadable");
                return unroutable(Errno::Internal, "the host's registry cannot be read".into());
            }
        };
        let mut avoid = request.avoid.clone();
        let (held, nearer) = (&request.held, request.nearer);
        let known = CalleeFacts { local: &local, beside: &beside, held, nearer };
        let first = self.choose(peer, &callee, known, &mut avoid);
        match first {
            // No instance of this host accepted: instances elsewhere may.
            (ResolveReply::Unroutable { .. }, _) if avoid.len() > request.avoid.len() => {
                match self.choose(peer, &callee, known, &mut avoid) {
                    (ResolveReply::Unroutable { .. }, _) => first,
                    other => other,
                }
            }
            first => first,
        }
    }

    /// Selects and connects once. Instances that refuse the connection join `avoid`.
    fn choose(
        &self,
        peer: &BrokerPeer,
        callee: &Identity,
        known: CalleeFacts<'_>,
        avoid: &mut Vec<String>,
    ) -> (ResolveReply, Option<OwnedFd>) {
        let CalleeFacts { local, beside, held, nearer } = known;
        let remote = if nearer {
            Elsewhere::Locations(Vec::new())
        } else {
            self.remote(peer, callee, local, avoid)
        };
        let tried = avoid.clone();
        let facts = Facts {
            caller: &peer.identity,
            callee,
            group: &peer.group,
            hint: peer.mode,
            embedding: embedding(peer, callee),
            local,
            remote: remote.as_fact(),
            avoid: &tried,
            held,
            nearer,
            beside,
            rotation: self.rotation.fetch_add(1, Ordering::Relaxed),
        };
        match select(&facts) {
            Selection::Unroutable(none) => unroutable(none.errno, none.to_string()),
            Selection::Embedded { .. } => unroutable(
                Errno::Internal,
                format!("{callee} is embedded, and its caller asked for a route"),
            ),
            Selection::NoOther { instances } => (ResolveReply::NoOther { instances }, None),
            Selection::Local { candidates, instances, reason } => {
                match connect_first(peer, callee, &candidates, (reason, instances), avoid) {
                    Ok((reply, connection)) => (reply, Some(connection)),
                    Err((errno, message)) => unroutable(errno, message),
                }
            }
            Selection::Networked { candidates, reason } => {
                let payload = candidates.iter().map(|location| location.max_payload).max();
                let head = candidates.iter().map(|location| location.max_head).max();
                let largest = (payload.unwrap_or(0), head.unwrap_or(0));
                let reason = self.with_path(reason, &candidates);
                self.bridge(peer, callee, local, largest, reason)
            }
        }
    }

    /// The reason, with the path that the call takes. Connects, as the call would. Blocks.
    fn with_path(&self, reason: String, candidates: &[&Location]) -> String {
        // An announcement names no node: its path is known when an instance has started.
        let first = candidates.iter().find(|location| !location.node.is_empty());
        let Some((network, first)) = self.network.as_ref().zip(first) else { return reason };
        match tokio::runtime::Handle::current().block_on(network.probe(first)) {
            Ok(()) => format!("{reason}, directly"),
            Err(why) => format!("{reason}, {}", network.instead(&why)),
        }
    }

    fn bridge(
        &self,
        peer: &BrokerPeer,
        callee: &Identity,
        local: &[Record],
        (max_payload, max_head): (u64, u32),
        reason: String,
    ) -> (ResolveReply, Option<OwnedFd>) {
        let passed_over = local.iter().map(|record| record.instance.clone()).collect();
        let caller = network::BridgeCaller { passed_over, ..peer.calling(callee.clone()) };
        let bridge = self.network.as_ref().map(|network| network.bridge(caller));
        match bridge {
            Some(Ok(connection)) => {
                (ResolveReply::Networked { reason, max_payload, max_head }, Some(connection))
            }
            Some(Err(error)) => unroutable(Errno::Internal, format!("no connection: {error}")),
            None => unroutable(Errno::Internal, "this node has no network".to_owned()),
        }
    }

    /// Locations on other hosts. Called only when no instance on this host can serve the caller. Blocks.
    fn remote(
        &self,
        peer: &BrokerPeer,
        callee: &Identity,
        local: &[Record],
        avoid: &[String],
    ) -> Elsewhere {
        let Some(network) = &self.network else { return Elsewhere::NotConfigured };
        let here = |record: &Record| {
            !avoid.contains(&record.instance) && may_call(&peer.identity, callee, &record.allow)
        };
        let needed = match peer.mode {
            ModeHint::Auto => !local.iter().any(here),
            ModeHint::Networked => true,
            ModeHint::Embedded | ModeHint::Local => false,
        };
        if !needed {
            return Elsewhere::Locations(Vec::new());
        }
        let runtime = tokio::runtime::Handle::current();
        match runtime.block_on(network.locations(callee)) {
            Ok(FunctionLocations::At(mut locations)) => {
                locations.retain(|location| peer.reaches(&location.instance, location.http));
                let failed = |it: &Location| avoid.contains(&it.instance);
                if !avoid.is_empty() && locations.iter().all(failed) {
                    // The last instance ends: the next one is started for the call.
                    let announced = runtime.block_on(network.announcement(callee)).ok().flatten();
                    let announced = announced.filter(|it| peer.reaches(&it.instance, it.http));
                    return announced.map_or(Elsewhere::Locations(locations), Elsewhere::OnDemand);
                }
                Elsewhere::Locations(locations)
            }
            Ok(FunctionLocations::OnDemand(announcement))
                if peer.reaches(&announcement.instance, announcement.http) =>
            {
                Elsewhere::OnDemand(announcement)
            }
            Ok(FunctionLocations::OnDemand(_)) => Elsewhere::Locations(Vec::new()),
            Ok(FunctionLocations::Vanished(since)) => Elsewhere::Vanished(since),
            Ok(FunctionLocations::Never) => Elsewhere::Locations(Vec::new()),
            Err(error) => Elsewhere::Away(error.to_string()),
        }
    }

    /// The callee's instances on this host. If there is none, the functions beside it, but not for HTTP clients.
    fn look_up(
        &self,
        peer: &BrokerPeer,
        callee: &Identity,
    ) -> Result<(Vec<Record>, Vec<String>), RegistryError> {
        let mut local = self.registry.instances(callee)?;
        local.retain(|record| peer.reaches(&record.instance, record.http));
        let lists_beside =
            local.is_empty() && !matches!(peer.kind, CallerKind::Gateway | CallerKind::Port);
        let beside =
            if lists_beside { self.registry.functions_beside(callee)? } else { Vec::new() };
        Ok((local, beside))
    }
}

/// This host's facts about a callee, and the caller's connections to it.
#[derive(Clone, Copy)]
struct CalleeFacts<'a> {
    /// Instances on this host.
    local: &'a [Record],
    /// Other functions in its scope on this host, if it has no instance.
    beside: &'a [String],
    /// Instances to which the caller has connections; they are skipped.
    held: &'a [String],
    /// The caller asks for an instance of its own group.
    nearer: bool,
}

/// Facts about other hosts.
enum Elsewhere {
    NotConfigured,
    Away(String),
    Vanished(Duration),
    Locations(Vec<Location>),
    OnDemand(Location),
}

impl Elsewhere {
    fn as_fact(&self) -> Remote<'_> {
        match self {
            Self::NotConfigured => Remote::NotConfigured,
            Self::Away(reason) => Remote::Away { reason },
            Self::Vanished(since) => Remote::Vanished { since: *since },
            Self::Locations(locations) => Remote::Known(locations),
            Self::OnDemand(announcement) => Remote::OnDemand(announcement),
        }
    }
}

fn unroutable(errno: Errno, message: String) -> (ResolveReply, Option<OwnedFd>) {
    (ResolveReply::Unroutable { errno: errno as i32, message }, None)
}

/// The coordinator's decision about embedding the callee. A caller never asks for a loaded module.
fn embedding<'a>(peer: &'a BrokerPeer, callee: &Identity) -> EmbeddingState<'a> {
    let sibling = callee.same_scope(&peer.identity);
    let refused = peer.not_embedded.get(&callee.function).filter(|_| sibling);
    refused.map_or(EmbeddingState::No, |reason| EmbeddingState::Untrusted { reason })
}
