//! The networked buffer's life in the shim: calls that leave this host, and calls that come to it
//! (`docs/modes.md` has the guarantees, [`crate::modes::networked`] the bytes).
//!
//! Runs in the daemon, on its reactor. A worker that calls over the network holds a connection whose other
//! end is here, and a callee gets a connection from here as it gets one from any shim of its host: neither
//! knows that there is a network.
//!
//! - [`bridge`]: a worker's connection; requests in, responses out.
//! - [`answers`]: responses that wait for workers which read late.
//! - [`order`]: one call as it came; [`calls`]: which instances it goes to, and how it ended.
//! - [`tries`]: one publication of it: accepted or not, and what came back.
//! - [`sending`]: its payload on the way there.
//! - [`routes`]: locations of callees, looked up and kept for a moment.
//! - [`replicas`]: this daemon's own instances: announced, heard, withdrawn.
//! - [`deliver`]: one call that came for one of them.
//! - [`events`]: one-way messages, put into streams and handled.
//! - [`instance`]: one request to an instance of ours.

mod answers;
mod bridge;
mod calls;
mod deliver;
mod events;
mod instance;
mod order;
mod replicas;
mod routes;
mod sending;
mod tries;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::Instant;

use answers::Answers;
pub use bridge::Caller;
pub use events::{ATTEMPTS_MAX, EVENT_MAX};
pub use order::Order;
pub use routes::Listed;
use routes::Routes;

use crate::config::NodeConfig;
use crate::coordinator::registry::Registry;
use crate::modes::networked::claims::Claims;
use crate::modes::networked::link::LinkError;
use crate::modes::networked::locations::ANNOUNCED_AGAIN;
use crate::modes::networked::{Link, Listener, NetworkError, Session, Target, reply_channel};
use crate::sys::random::bytes16;
use crate::wire::envelope::Outcome;
use crate::wire::ids::Identity;
use crate::wire::network::{Answer, AnswerKind, Payload, TryId, check_version, encode, parse};

/// Calls for this daemon's instances that are under way at a time; more are refused, which is safe to retry.
const DELIVERIES_MAX: usize = 1024;
/// How long a look-up waits for Redis to come back, and how long for instances to be announced again.
const LOOK_UP_MAX: Duration = Duration::from_secs(1);
const VANISHED_MAX: Duration = ANNOUNCED_AGAIN;
/// Answers of one try that wait: accepted and ended, and what a confused peer may add.
const ANSWERS_MAX: usize = 4;

/// This daemon's part in the network; clones share it.
#[derive(Clone, Debug)]
pub struct Network {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    link: Link,
    claims: Claims,
    registry: Registry,
    node: String,
    /// Where answers to our calls come.
    replies: String,
    pending: Mutex<HashMap<TryId, mpsc::Sender<Answer>>>,
    /// Answers to our calls that wait for their workers.
    answers: Answers,
    /// Calls for our instances whose callers can still cancel them.
    cancellable: Mutex<HashMap<TryId, watch::Sender<bool>>>,
    routes: Routes,
    deliveries: Arc<Semaphore>,
    served: Mutex<HashMap<String, [oneshot::Sender<()>; 2]>>,
}

impl Network {
    /// The node's network, if it has one: begins to connect, on the current runtime.
    ///
    /// # Errors
    /// When the configuration makes no sense; a Redis that is away is none.
    pub fn start(config: &NodeConfig, registry: &Registry) -> Result<Option<Self>, LinkError> {
        let Some(url) = &config.redis_url else { return Ok(None) };
        let target = Target { url: url.reveal().to_owned(), ca: config.redis_ca.clone() };
        Self::connect(&target, &node_name(&config.node), registry).map(Some)
    }

    /// A network of a node with this name.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn connect(target: &Target, node: &str, registry: &Registry) -> Result<Self, LinkError> {
        let replies = reply_channel(&hex::encode(&bytes16()[..8]));
        let (link, listener) = Link::start(target, &replies)?;
        let inner = Inner {
            link,
            claims: Claims::default(),
            registry: registry.clone(),
            node: node.to_owned(),
            replies,
            pending: Mutex::default(),
            answers: Answers::default(),
            cancellable: Mutex::default(),
            routes: Routes::default(),
            deliveries: Arc::new(Semaphore::new(DELIVERIES_MAX)),
            served: Mutex::default(),
        };
        let network = Self { inner: Arc::new(inner) };
        tokio::spawn(network.clone().hear(listener));
        Ok(network)
    }

    /// Where `callee` can be called; waits for instances that may only have to be announced again.
    ///
    /// # Errors
    /// When Redis is away.
    pub async fn locations(&self, callee: &Identity) -> Result<Listed, NetworkError> {
        let session = self.inner.link.session(Instant::now() + LOOK_UP_MAX).await?;
        self.inner.routes.wait_for(&session, callee, Instant::now() + VANISHED_MAX).await
    }

    /// Hands answers to the calls that wait for them.
    async fn hear(self, mut listener: Listener) {
        while let Some(message) = listener.next().await {
            let answer = parse::<Answer>(&message).and_then(|answer| {
                // A refusal is the same in every version.
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
                    self.inner.cancelled(id);
                }
                Ok((id, answer)) => self.hand_out(id, answer),
                Err(error) => tracing::warn!(%error, "unreadable answer"),
            }
        }
    }

    fn hand_out(&self, id: TryId, answer: Answer) {
        let waiting = self.inner.waiting();
        if let Some(waiting) = waiting.get(&id) {
            // Full: the call has what it needs.
            let _late = waiting.try_send(answer);
            return;
        }
        drop(waiting);
        self.clear_away(id, answer);
    }

    /// An answer that came too late for its call: nobody else would tell the callee's shim, or remove its chunks.
    fn clear_away(&self, id: TryId, answer: Answer) {
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
    fn waiting(&self) -> std::sync::MutexGuard<'_, HashMap<TryId, mpsc::Sender<Answer>>> {
        // Single insertions and removals: a panic elsewhere leaves it whole.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cancellable(&self) -> std::sync::MutexGuard<'_, HashMap<TryId, watch::Sender<bool>>> {
        // As above.
        self.cancellable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The caller of one of our instances wants nothing more of this call.
    fn cancelled(&self, id: TryId) {
        if let Some(told) = self.cancellable().get(&id) {
            told.send_replace(true);
        }
    }

    /// Tells the shim that listens to `callee` that nobody wants the payloads of this call any more.
    fn cancel(&self, session: &Session, callee: &str, id: TryId) {
        let kind = AnswerKind::ANSWER_CANCELLED;
        let message =
            encode(&Answer::of(&self.replies, id, kind, Outcome::ANSWERED, Payload::default()));
        let (session, callee) = (session.clone(), callee.to_owned());
        tokio::spawn(async move {
            if let Err(error) = session.publish(&callee, &message).await {
                tracing::debug!(%error, "a callee is not told that a call is cancelled");
            }
        });
    }
}

/// The configured name, or the host's.
fn node_name(configured: &str) -> String {
    if !configured.is_empty() {
        return configured.to_owned();
    }
    match std::fs::read_to_string("/proc/sys/kernel/hostname") {
        Ok(name) => name.trim().to_owned(),
        Err(_) => "unnamed".to_owned(),
    }
}
