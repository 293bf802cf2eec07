//! The shim's side of the networked buffer: outgoing and incoming calls (guarantees: `docs/modes.md`; formats:
//! [`cwasi_networked`]). Runs in the shim daemon, on its reactor.
//!
//! Invariant: workers know no network. A calling worker holds a connection whose other end is here. A callee gets a
//! connection from here as from any shim of its host.
//!
//! - [`bridge`]: a worker's connection; requests in, responses out.
//! - [`answers`]: queued responses for slow workers.
//! - [`outgoing`]: one outgoing call; [`calls`]: its instances and its end.
//! - [`tries`]: one publication of it, and the answer.
//! - [`sending`]: its payload.
//! - [`directory`]: who knows the locations of callees: Redis, or other nodes without it.
//! - [`routes`]: cached locations of callees; [`refresh`]: their look-ups in the background.
//! - [`replicas`]: announces this daemon's own instances.
//! - [`direct`]: direct connections to other shims, without Redis.
//! - [`demand`]: reports held calls and running ones, for functions that are started on demand.
//! - [`deliver`]: one incoming call; [`reply`]: its answers.
//! - [`pending`]: calls under way in both directions.
//! - [`storing`]: one-way messages out; [`events`]: one-way messages and entries of triggers in; [`entries`]: what they
//!   ask for. [`channels`]: triggers that are channels. [`trigger_counts`]: metrics and traces of triggers.
//! - [`instance`]: one request to an own instance.

mod answers;
mod bridge;
mod calls;
mod channels;
mod deliver;
mod demand;
mod direct;
mod directory;
mod entries;
mod events;
mod instance;
mod outgoing;
mod pending;
mod refresh;
mod replicas;
mod reply;
mod routes;
mod sending;
mod storing;
mod tries;
mod trigger_counts;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

use answers::Answers;
pub use bridge::BridgeCaller;
pub use cwasi_direct::certificates::CertificateError;
pub use cwasi_direct::peers::PeerError;
use demand::{HeldCalls, Occupied};
use direct::Direct;
pub use direct::{DirectSettings, link_end, link_entry};
pub use events::ATTEMPTS_MAX;
pub use outgoing::{CallResponse, OutgoingCall};
use pending::{IncomingCalls, PendingTries};
use replicas::ServedInstances;
pub use replicas::TriggerFault;
pub use routes::FunctionLocations;
use routes::Routes;
pub use storing::EVENT_MAX;
use trigger_counts::TriggerCounts;

use crate::metrics::Metrics;
use crate::spans::Spans;
use cwasi_config::NodeConfig;
use cwasi_config::messages::MessagesConfig;
use cwasi_coordinator::registry::Registry;
use cwasi_networked::claims::Claims;
use cwasi_networked::limits::ServerLimits;
use cwasi_networked::link::LinkError;
use cwasi_networked::locations::ANNOUNCED_AGAIN;
use cwasi_networked::quota::Limits;
use cwasi_networked::{
    Listener, NetworkError, RedisLink, RedisSession, RedisTarget, reply_channel,
};
use cwasi_sys::random::bytes16;
use cwasi_wire::envelope::CallStatus;
use cwasi_wire::ids::Identity;
use cwasi_wire::network::{
    Answer, AnswerKind, Location, Payload, TryId, check_version, encode, parse,
};
use cwasi_wire::trace::SampleRatio;

/// Most incoming calls at a time; more are refused, which is safe to retry.
const DELIVERIES_MAX: usize = 1024;
/// Longest wait of a look-up for Redis, and for instances to be announced again.
const LOOK_UP_MAX: Duration = Duration::from_secs(1);
const VANISHED_MAX: Duration = ANNOUNCED_AGAIN;

/// This daemon's part of the network; clones share it.
#[derive(Clone, Debug)]
pub struct Network {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    link: RedisLink,
    /// `None` = all calls go over Redis.
    direct: Option<Arc<Direct>>,
    claims: Claims,
    registry: Registry,
    node: String,
    /// Channel for answers to our calls.
    replies: String,
    pending: PendingTries,
    /// Queued answers for our workers.
    answers: Answers,
    incoming: IncomingCalls,
    routes: Routes,
    /// Calls that wait for an instance.
    held: HeldCalls,
    /// What this daemon's instances do.
    occupied: Occupied,
    deliveries: Arc<Semaphore>,
    limits: Limits,
    /// Held while a one-way message is stored.
    storing: tokio::sync::Mutex<()>,
    served: Mutex<ServedInstances>,
    trigger_counts: TriggerCounts,
}

impl Network {
    /// The node's network, if it has one. Starts to connect, on the current runtime.
    ///
    /// # Errors
    /// When the configuration is invalid. A Redis that is away is no error.
    pub fn start(config: &NodeConfig, registry: &Registry) -> Result<Option<Self>, LinkError> {
        let node = node_name(&config.node);
        let Some(url) = &config.redis_url else {
            let peers = !config.link_peers.is_empty();
            let direct = peers.then(|| DirectSettings::of_node(config, None)).flatten();
            return Ok(direct.map(|direct| Self::among_peers(&node, registry, direct)));
        };
        let target = RedisTarget { url: url.reveal().to_owned(), ca: config.redis_ca.clone() };
        let direct = DirectSettings::of_node(config, Some(&target));
        Self::connect(&target, &node, registry, &config.messages, direct).map(Some)
    }

    /// A network of a node without Redis: the nodes of `direct` are its directory.
    #[must_use]
    pub fn among_peers(node: &str, registry: &Registry, direct: DirectSettings) -> Self {
        let shim = new_shim();
        let link = RedisLink::none(&reply_channel(&shim));
        Self::over(link, (node, &shim), registry, &MessagesConfig::default(), Some(direct))
    }

    /// A network of a node with this name; `direct` = how it takes and makes direct connections, if it does.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn connect(
        target: &RedisTarget,
        node: &str,
        registry: &Registry,
        messages: &MessagesConfig,
        direct: Option<DirectSettings>,
    ) -> Result<Self, LinkError> {
        let shim = new_shim();
        let link = RedisLink::start(target, &reply_channel(&shim))?;
        Ok(Self::over(link, (node, &shim), registry, messages, direct))
    }

    fn over(
        (link, listener): (RedisLink, Listener),
        (node, shim): (&str, &str),
        registry: &Registry,
        messages: &MessagesConfig,
        direct: Option<DirectSettings>,
    ) -> Self {
        let direct = direct.map(|settings| Direct::new(settings, shim));
        let inner = Inner {
            link,
            direct: direct.map(Arc::new),
            claims: Claims::default(),
            registry: registry.clone(),
            node: node.to_owned(),
            replies: reply_channel(shim),
            pending: PendingTries::default(),
            answers: Answers::default(),
            incoming: IncomingCalls::default(),
            routes: Routes::default(),
            held: HeldCalls::default(),
            occupied: Occupied::default(),
            deliveries: Arc::new(Semaphore::new(DELIVERIES_MAX)),
            limits: Limits {
                bytes: messages.waiting_max,
                functions: messages.functions_max,
                kept: messages.kept(),
            },
            storing: tokio::sync::Mutex::default(),
            served: Mutex::default(),
            trigger_counts: TriggerCounts::default(),
        };
        let network = Self { inner: Arc::new(inner) };
        tokio::spawn(network.clone().receive_answers(listener));
        tokio::spawn(network.clone().report_held());
        tokio::spawn(network.clone().keep_link());
        network
    }

    /// False on a node whose directory are other nodes.
    #[must_use]
    pub fn has_redis(&self) -> bool {
        self.inner.peers().is_none()
    }

    /// Counts and traces the messages of triggers into a daemon's files; `sample` is the share of traces.
    pub fn count_triggers(&self, metrics: Metrics, spans: Spans, sample: SampleRatio) {
        self.inner.trigger_counts.set(metrics, spans, sample);
    }

    /// Locations of `callee`. Waits for instances that may be announced again.
    ///
    /// # Errors
    /// When Redis is away, or a node in its place does not answer.
    pub async fn locations(&self, callee: &Identity) -> Result<FunctionLocations, NetworkError> {
        // Without Redis, what is known of instances that are reached directly counts on.
        let known = || self.inner.known_directly(callee);
        if self.has_redis()
            && self.inner.link.session_now().is_err()
            && let Some(known) = known()
        {
            return Ok(known);
        }
        let found = async {
            let directory = match self.inner.peers() {
                Some(peers) => peers,
                None => {
                    let until = Instant::now() + LOOK_UP_MAX;
                    self.inner.redis(&self.inner.link.session(until).await?)
                }
            };
            let until = Instant::now() + VANISHED_MAX;
            let usable = |location: &Location| self.inner.is_reached_directly(location);
            self.inner.routes.listed(&directory, callee, until, usable).await
        };
        found.await.or_else(|error| known().ok_or(error))
    }

    /// The announcement of `callee` as a function that is started on demand, if there is one.
    ///
    /// # Errors
    /// When Redis is away.
    pub async fn announcement(&self, callee: &Identity) -> Result<Option<Location>, NetworkError> {
        let session = self.inner.link.session(Instant::now() + LOOK_UP_MAX).await?;
        cwasi_networked::demand::look_up(&session, callee).await
    }

    /// Limits of the server.
    ///
    /// # Errors
    /// When Redis is away, or forbids to read them.
    pub async fn limits(&self) -> Result<ServerLimits, NetworkError> {
        ServerLimits::read(&self.inner.link.session(Instant::now() + LOOK_UP_MAX).await?).await
    }

    /// Passes answers to their calls.
    async fn receive_answers(self, mut listener: Listener) {
        while let Some(message) = listener.next().await {
            let answer = parse::<Answer>(&message).and_then(|answer| {
                // A refusal has the same format in every version.
                if answer.kind.enum_value() != Ok(AnswerKind::ANSWER_REFUSED) {
                    check_version(&answer)?;
                }
                Ok((TryId::from_field(&answer.try_id)?, answer))
            });
            match answer {
                Ok((id, answer))
                    if answer.kind.enum_value() == Ok(AnswerKind::ANSWER_CANCELLED) =>
                {
                    tracing::debug!(from = answer.from, "a call is cancelled");
                    self.inner.incoming.cancel(id);
                }
                Ok((id, answer)) => {
                    if let Some(late) = self.inner.pending.pass(id, answer) {
                        self.discard(id, late);
                    }
                }
                Err(error) => tracing::warn!(%error, "unreadable answer"),
            }
        }
    }

    /// Discards an answer to an ended call: cancels it at the callee's shim, and removes the answer's chunks.
    fn discard(&self, id: TryId, answer: Answer) {
        let accepted = answer.kind.enum_value() == Ok(AnswerKind::ANSWER_ACCEPTED);
        tracing::debug!(accepted, "answer to a call that has ended");
        let claim = answer.payload.into_option().and_then(|payload| payload.claim.into_option());
        if claim.is_none() && !accepted {
            return;
        }
        let Ok(session) = self.inner.link.session_now() else { return };
        self.inner.cancel(&session, &answer.from, id);
        if let Some(claim) = claim {
            let inner = Arc::clone(&self.inner);
            tokio::spawn(async move { inner.claims.refuse(&session, &claim).await });
        }
    }
}

impl Inner {
    /// Instances of `callee` that are reached without Redis, as they were when it last answered; `None` without any.
    fn known_directly(&self, callee: &Identity) -> Option<FunctionLocations> {
        let mut locations = self.direct.as_ref().and_then(|_| self.routes.last_known(callee))?;
        locations.retain(|location| self.direct_to(location).is_some());
        (!locations.is_empty()).then_some(FunctionLocations::At(locations))
    }

    /// Cancels this call at the shim that listens to `callee`: it stops the call's transfers.
    fn cancel(&self, session: &RedisSession, callee: &str, id: TryId) {
        let kind = AnswerKind::ANSWER_CANCELLED;
        let message =
            encode(&Answer::of(&self.replies, id, kind, CallStatus::ANSWERED, Payload::default()));
        let (session, callee) = (session.clone(), callee.to_owned());
        tokio::spawn(async move {
            if let Err(error) = session.publish(&callee, &message).await {
                tracing::debug!(%error, "a call could not be cancelled at its callee");
            }
        });
    }
}

/// A name that no other shim has: hexadecimal digits.
fn new_shim() -> String {
    hex::encode(&bytes16()[..8])
}

/// The configured name, or the host's.
#[must_use]
pub fn node_name(configured: &str) -> String {
    if !configured.is_empty() {
        return configured.to_owned();
    }
    match std::fs::read_to_string("/proc/sys/kernel/hostname") {
        Ok(name) => name.trim().to_owned(),
        Err(_) => "unnamed".to_owned(),
    }
}
