//! The answer to a question for a route: what is known about the callee, the mode that is selected, the connection.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cwasi_abi::Errno;

use super::connect::connect_first;
use super::{Broker, Speaker};
use crate::coordinator::registry::{Record, RegistryError};
use crate::dispatcher::selection::{
    Embedding, Facts, Remote, Selection, callee_of, may_call, select,
};
use crate::shim::network::{self, Listed};
use crate::wire::control::{ModeHint, ResolveReply, ResolveRequest};
use crate::wire::ids::Identity;
use crate::wire::network::Location;

/// Longest name that is looked for, in bytes.
pub(super) const TARGET_MAX: usize = 512;
impl Broker {
    /// Answers a question; with a connection when there is a route.
    pub(super) fn resolve(
        &self,
        speaker: &Speaker,
        request: &ResolveRequest,
    ) -> (ResolveReply, Option<OwnedFd>) {
        if request.target.is_empty() || request.target.len() > TARGET_MAX {
            let message = format!("a function's name has 1 to {TARGET_MAX} bytes");
            return unroutable(Errno::InvalidArgument, message);
        }
        let callee = callee_of(&speaker.identity, &request.target);
        let (local, beside) = match self.look_up(&callee) {
            Ok(found) => found,
            Err(error) => {
                tracing::error!(caller = %speaker.identity, %error, "registry unreadable");
                return unroutable(Errno::Internal, "the host's registry cannot be read".into());
            }
        };
        let mut avoid = request.avoid.clone();
        let (held, nearer) = (&request.held, request.nearer);
        let known = Known { local: &local, beside: &beside, held, nearer };
        let first = self.choose(speaker, &callee, known, &mut avoid);
        match first {
            // Nobody here took the connection: perhaps somebody elsewhere does.
            (ResolveReply::Unroutable { .. }, _) if avoid.len() > request.avoid.len() => {
                match self.choose(speaker, &callee, known, &mut avoid) {
                    (ResolveReply::Unroutable { .. }, _) => first,
                    other => other,
                }
            }
            first => first,
        }
    }

    /// Selects and connects once; instances that did not take the connection are added to `avoid`.
    fn choose(
        &self,
        speaker: &Speaker,
        callee: &Identity,
        known: Known<'_>,
        avoid: &mut Vec<String>,
    ) -> (ResolveReply, Option<OwnedFd>) {
        let Known { local, beside, held, nearer } = known;
        let remote = if nearer {
            Elsewhere::Locations(Vec::new())
        } else {
            self.remote(speaker, callee, local, avoid)
        };
        let tried = avoid.clone();
        let facts = Facts {
            caller: &speaker.identity,
            callee,
            group: &speaker.group,
            hint: speaker.mode,
            embedding: embedding(speaker, callee),
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
            Selection::Embedded { .. } => {
                unroutable(Errno::Internal, format!("{callee} is embedded; its caller knows that"))
            }
            Selection::NoOther { instances } => (ResolveReply::NoOther { instances }, None),
            Selection::Local { candidates, instances, reason } => {
                match connect_first(speaker, callee, &candidates, (reason, instances), avoid) {
                    Ok((reply, connection)) => (reply, Some(connection)),
                    Err((errno, message)) => unroutable(errno, message),
                }
            }
            Selection::Networked { candidates, reason } => {
                let largest = candidates.iter().map(|location| location.max_payload).max();
                self.bridge(speaker, callee, local, largest.unwrap_or(0), reason)
            }
        }
    }

    fn bridge(
        &self,
        speaker: &Speaker,
        callee: &Identity,
        local: &[Record],
        max_payload: u64,
        reason: String,
    ) -> (ResolveReply, Option<OwnedFd>) {
        let passed_over = local.iter().map(|record| record.instance.clone()).collect();
        let caller = network::Caller { passed_over, ..speaker.calling(callee.clone()) };
        let bridge = self.network.as_ref().map(|network| network.bridge(caller));
        match bridge {
            Some(Ok(connection)) => {
                (ResolveReply::Networked { reason, max_payload }, Some(connection))
            }
            Some(Err(error)) => unroutable(Errno::Internal, format!("no connection: {error}")),
            None => unroutable(Errno::Internal, "this node has no network".to_owned()),
        }
    }

    /// What Redis lists, asked only when nobody on this host can serve the caller. Blocks.
    fn remote(
        &self,
        speaker: &Speaker,
        callee: &Identity,
        local: &[Record],
        avoid: &[String],
    ) -> Elsewhere {
        let Some(network) = &self.network else { return Elsewhere::NotConfigured };
        let here = |record: &Record| {
            !avoid.contains(&record.instance) && may_call(&speaker.identity, callee, &record.allow)
        };
        let needed = match speaker.mode {
            ModeHint::Auto => !local.iter().any(here),
            ModeHint::Networked => true,
            ModeHint::Embedded | ModeHint::Local => false,
        };
        if !needed {
            return Elsewhere::Locations(Vec::new());
        }
        match tokio::runtime::Handle::current().block_on(network.locations(callee)) {
            Ok(Listed::At(locations)) => Elsewhere::Locations(locations),
            Ok(Listed::Vanished(since)) => Elsewhere::Vanished(since),
            Ok(Listed::Never) => Elsewhere::Locations(Vec::new()),
            Err(error) => Elsewhere::Away(error.to_string()),
        }
    }

    fn look_up(&self, callee: &Identity) -> Result<(Vec<Record>, Vec<String>), RegistryError> {
        let local = self.registry.instances(callee)?;
        let beside =
            if local.is_empty() { self.registry.functions_beside(callee)? } else { Vec::new() };
        Ok((local, beside))
    }
}

/// What this host knows about a callee, and the caller holds of it.
#[derive(Clone, Copy)]
struct Known<'a> {
    /// Instances here.
    local: &'a [Record],
    /// Other functions in its scope here, when there are none.
    beside: &'a [String],
    /// Instances that the caller has connections to, and wants no others of.
    held: &'a [String],
    /// It wants one of its own group.
    nearer: bool,
}

/// What was found out about other hosts.
enum Elsewhere {
    NotConfigured,
    Away(String),
    Vanished(Duration),
    Locations(Vec<Location>),
}

impl Elsewhere {
    fn as_fact(&self) -> Remote<'_> {
        match self {
            Self::NotConfigured => Remote::NotConfigured,
            Self::Away(reason) => Remote::Away { reason },
            Self::Vanished(since) => Remote::Vanished { since: *since },
            Self::Locations(locations) => Remote::Known(locations),
        }
    }
}

fn unroutable(errno: Errno, message: String) -> (ResolveReply, Option<OwnedFd>) {
    (ResolveReply::Unroutable { errno: errno as i32, message }, None)
}

/// What the coordinator said about the callee in the caller's VM; one that is loaded is never asked for.
fn embedding<'a>(speaker: &'a Speaker, callee: &Identity) -> Embedding<'a> {
    let sibling = callee.same_scope(&speaker.identity);
    let refused = speaker.not_embedded.get(&callee.function).filter(|_| sibling);
    refused.map_or(Embedding::No, |reason| Embedding::Untrusted { reason })
}
