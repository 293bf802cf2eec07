//! The link: keeps connections to Redis up, and subscribes to this daemon's channels.
//!
//! Runs in the shim. One task connects, subscribes to every channel, and only then publishes the session. It pings both
//! connections and closes them when an answer is missing, which detects a cut network. It reconnects with back-off.
//! Messages that are published meanwhile are lost, as always with pub/sub.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use redis::aio::{PubSubSink, PubSubStream};
use redis::{AsyncConnectionConfig, Client};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};

use super::backoff::Backoff;
use super::bulk::{BulkPool, Dial};
use super::error::NetworkError;
use super::locations;
use super::ping::{answered, ping};
use super::session::RedisSession;
use super::target::client;
pub use super::target::{LinkError, RedisTarget};

/// Longest time for a connection to come up.
const CONNECT_MAX: Duration = Duration::from_secs(3);
/// Longest time for Redis to answer one command.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// First and longest pause between two attempts to connect.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Most waiting messages of one channel; later ones are dropped, as Redis would drop them.
const WAITING_MAX: usize = 4096;
/// Longest message in bytes; longer ones are dropped. Ours are shorter.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Begins the names of our own channels.
const OURS: &str = "cwasi:";

#[derive(Clone, Debug)]
enum LinkState {
    Down(Arc<str>),
    Up(RedisSession),
}

/// One subscribed channel; unsubscribed when dropped.
#[derive(Debug)]
pub struct Listener {
    channel: String,
    id: u64,
    messages: mpsc::Receiver<Vec<u8>>,
    link: RedisLink,
}

/// The listeners of each channel, by their ids.
type Topics = HashMap<String, Vec<(u64, mpsc::Sender<Vec<u8>>)>>;

/// What the current session is subscribed to.
#[derive(Clone, Debug, Default)]
struct Subscriptions {
    channels: Vec<String>,
    /// Channels of others that the server does not let us listen to.
    refused: HashMap<String, NetworkError>,
}

#[derive(Clone, Debug)]
pub struct RedisLink {
    topics: Arc<Mutex<Topics>>,
    next_id: Arc<AtomicU64>,
    /// Says that [`Self::topics`] changed.
    changed: Arc<watch::Sender<()>>,
    subscribed: watch::Receiver<Subscriptions>,
    state: watch::Receiver<LinkState>,
}

impl RedisLink {
    /// A link that begins to connect now, on the current runtime, and ends with its last clone. Every session
    /// of it is subscribed to `channel` before it is published.
    ///
    /// # Errors
    /// When the target is unusable. A Redis that does not answer is no error here.
    pub fn start(target: &RedisTarget, channel: &str) -> Result<(Self, Listener), LinkError> {
        let (client, dial) = client(target)?;
        let (subscribed, subscriptions) = watch::channel(Subscriptions::default());
        let (state, states) = watch::channel(LinkState::Down("not connected yet".into()));
        let (link, listener) = Self::new(channel, subscriptions, states);
        let keeper = Keeper {
            client,
            dial: Arc::new(dial),
            topics: Arc::clone(&link.topics),
            changes: link.changed.subscribe(),
            subscribed,
            state,
        };
        tokio::spawn(keeper.keep());
        Ok((link, listener))
    }

    /// The link of a node without Redis, which is never up.
    #[must_use]
    pub fn none(channel: &str) -> (Self, Listener) {
        let down = LinkState::Down("this node has no redis_url".into());
        Self::new(channel, watch::channel(Subscriptions::default()).1, watch::channel(down).1)
    }

    fn new(
        channel: &str,
        subscribed: watch::Receiver<Subscriptions>,
        state: watch::Receiver<LinkState>,
    ) -> (Self, Listener) {
        let (sender, messages) = mpsc::channel(WAITING_MAX);
        let topics = HashMap::from([(channel.to_owned(), vec![(0, sender)])]);
        let topics = Arc::new(Mutex::new(topics));
        let (next_id, changed) = (Arc::new(AtomicU64::new(1)), Arc::new(watch::Sender::new(())));
        let link = Self { topics, next_id, changed, subscribed, state };
        let channel = channel.to_owned();
        let listener = Listener { channel, id: 0, messages, link: link.clone() };
        (link, listener)
    }

    /// The session, if there is one or comes up until `deadline`.
    ///
    /// # Errors
    /// [`NetworkError::Away`] with the last reason.
    pub async fn session(&self, deadline: Instant) -> Result<RedisSession, NetworkError> {
        let mut state = self.state.clone();
        let up = state.wait_for(|state| matches!(state, LinkState::Up(_)));
        if let Ok(Ok(state)) = tokio::time::timeout_at(deadline, up).await
            && let LinkState::Up(session) = &*state
        {
            return Ok(session.clone());
        }
        self.session_now()
    }

    /// The session, if there is one.
    ///
    /// # Errors
    /// [`NetworkError::Away`] with the last reason.
    pub fn session_now(&self) -> Result<RedisSession, NetworkError> {
        match &*self.state.borrow() {
            LinkState::Up(session) => Ok(session.clone()),
            LinkState::Down(reason) => Err(NetworkError::Away { reason: reason.to_string() }),
        }
    }

    /// Waits for the next session after the one with number `epoch`.
    pub async fn session_after(&self, epoch: u64) -> RedisSession {
        let mut state = self.state.clone();
        let newer =
            |state: &LinkState| matches!(state, LinkState::Up(session) if session.epoch > epoch);
        let session = match state.wait_for(newer).await.as_deref() {
            Ok(LinkState::Up(session)) => Some(session.clone()),
            _ => None,
        };
        match session {
            Some(session) => session,
            None => std::future::pending().await,
        }
    }

    /// Waits until the session with this number has ended, and says why.
    pub async fn ended(&self, epoch: u64) -> String {
        let mut state = self.state.clone();
        let other =
            |state: &LinkState| !matches!(state, LinkState::Up(session) if session.epoch == epoch);
        match state.wait_for(other).await.as_deref() {
            Ok(LinkState::Down(reason)) => reason.to_string(),
            _ => "the connection was lost".to_owned(),
        }
    }

    /// Subscribes to a channel, in the current session and in every later one. Returns once the current session is
    /// subscribed, or at once without a session.
    pub async fn listen(&self, channel: &str) -> Listener {
        let listener = self.add(channel, WAITING_MAX);
        self.wait_subscribed(channel).await;
        listener
    }

    /// Subscribes to a channel of others. At most `waiting` of its messages wait.
    ///
    /// # Errors
    /// When the server refuses.
    pub async fn listen_to_others(
        &self,
        channel: &str,
        waiting: usize,
    ) -> Result<Listener, NetworkError> {
        let listener = self.add(channel, waiting);
        self.wait_subscribed(channel).await;
        match self.subscribed.borrow().refused.get(channel) {
            Some(error) => Err(error.clone()),
            None => Ok(listener),
        }
    }

    fn add(&self, channel: &str, waiting: usize) -> Listener {
        let (sender, messages) = mpsc::channel(waiting);
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        self.topics().entry(channel.to_owned()).or_default().push((id, sender));
        self.changed.send_replace(());
        Listener { channel: channel.to_owned(), id, messages, link: self.clone() }
    }

    async fn wait_subscribed(&self, channel: &str) {
        let (mut subscribed, mut state) = (self.subscribed.clone(), self.state.clone());
        let is_decided = |all: &Subscriptions| {
            all.channels.iter().any(|one| one == channel) || all.refused.contains_key(channel)
        };
        tokio::select! {
            _ = subscribed.wait_for(is_decided) => {}
            _ = state.wait_for(|state| matches!(state, LinkState::Down(_))) => {}
        }
    }

    fn topics(&self) -> MutexGuard<'_, Topics> {
        // Single insertions and removals: a panic elsewhere leaves it whole.
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listener {
    pub async fn next(&mut self) -> Option<Vec<u8>> {
        self.messages.recv().await
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut topics = self.link.topics();
        if let Some(listeners) = topics.get_mut(&self.channel) {
            listeners.retain(|(id, _)| *id != self.id);
            if listeners.is_empty() {
                topics.remove(&self.channel);
            }
        }
        drop(topics);
        self.link.changed.send_replace(());
    }
}

/// The task that keeps the link up.
struct Keeper {
    client: Client,
    dial: Arc<Dial>,
    topics: Arc<Mutex<Topics>>,
    changes: watch::Receiver<()>,
    subscribed: watch::Sender<Subscriptions>,
    state: watch::Sender<LinkState>,
}

/// A connection for messages, with the session beside it.
struct SubscribedSession {
    session: RedisSession,
    sink: PubSubSink,
    stream: PubSubStream,
}

impl Keeper {
    async fn keep(mut self) {
        let mut backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
        let (mut epoch, mut again) = (0, false);
        while !self.state.is_closed() {
            epoch += 1;
            let connected = timeout(CONNECT_MAX, self.connect(epoch, again)).await;
            let reason = match connected {
                Ok(Ok(connected)) => {
                    tracing::info!(epoch, "connected to Redis");
                    backoff.reset();
                    again = true;
                    self.state.send_replace(LinkState::Up(connected.session.clone()));
                    let reason = self.serve(connected).await;
                    tracing::warn!(epoch, reason, "connection to Redis lost");
                    reason
                }
                Ok(Err(NetworkError::Away { reason })) => reason,
                Ok(Err(error)) => error.to_string(),
                Err(_elapsed) => format!("no connection within {CONNECT_MAX:?}"),
            };
            tracing::debug!(epoch, reason, "no Redis");
            self.state.send_replace(LinkState::Down(reason.into()));
            self.subscribed.send_replace(Subscriptions::default());
            sleep(backoff.pause()).await;
        }
    }

    async fn connect(
        &mut self,
        epoch: u64,
        again: bool,
    ) -> Result<SubscribedSession, NetworkError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_MAX))
            .set_response_timeout(Some(ANSWER_MAX));
        let control = self.client.get_multiplexed_async_connection_with_config(&config);
        let control = control.await.map_err(NetworkError::of("connecting"))?;
        let bulk = BulkPool::new(Arc::clone(&self.dial));
        let pubsub =
            self.client.get_async_pubsub().await.map_err(NetworkError::of("connecting"))?;
        let (mut sink, stream) = pubsub.split();
        self.subscribe(&mut sink).await?;
        let session = RedisSession::new(epoch, again, control, bulk);
        // The name may lead to the master at the next attempt. Without memory, much works all the same.
        if let Err(error @ NetworkError::Replica { .. }) = locations::begin(&session).await {
            return Err(error);
        }
        Ok(SubscribedSession { session, sink, stream })
    }

    /// Subscribes and unsubscribes until the subscriptions match the topics. Without a channel of ours there is no
    /// session; one of others that the server refuses is its listener's error.
    async fn subscribe(&mut self, sink: &mut PubSubSink) -> Result<(), NetworkError> {
        self.changes.mark_unchanged();
        let wanted: Vec<String> = {
            let topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
            topics.keys().cloned().collect()
        };
        let Subscriptions { channels, mut refused } = self.subscribed.borrow().clone();
        refused.retain(|channel, _| wanted.contains(channel));
        for channel in wanted.iter().filter(|channel| !channels.contains(channel)) {
            match sink.subscribe(channel).await.map_err(NetworkError::of("SUBSCRIBE")) {
                Err(error @ NetworkError::Command { .. }) if !channel.starts_with(OURS) => {
                    refused.insert(channel.clone(), error);
                }
                subscribed => subscribed?,
            }
        }
        for channel in channels.iter().filter(|channel| !wanted.contains(channel)) {
            sink.unsubscribe(channel).await.map_err(NetworkError::of("UNSUBSCRIBE"))?;
        }
        let channels = wanted.into_iter().filter(|it| !refused.contains_key(it)).collect();
        self.subscribed.send_replace(Subscriptions { channels, refused });
        Ok(())
    }

    /// Distributes messages until the connections end; returns the reason.
    async fn serve(&mut self, connected: SubscribedSession) -> String {
        let SubscribedSession { session, mut sink, mut stream } = connected;
        let demoted = session.clone();
        let pinging = ping(session, sink.clone());
        tokio::pin!(pinging);
        loop {
            tokio::select! {
                message = stream.next() => match message {
                    Some(message) => self.hand_out(&message),
                    None => return "the connection was closed".to_owned(),
                },
                changed = self.changes.changed() => {
                    if changed.is_err() {
                        return "it is no longer needed".to_owned();
                    }
                    // Nobody pings meanwhile.
                    if let Err(reason) = answered(self.subscribe(&mut sink)).await {
                        return reason;
                    }
                }
                reason = &mut pinging => return reason,
                () = demoted.demoted() => return "it is a replica now".to_owned(),
            }
        }
    }

    fn hand_out(&self, message: &redis::Msg) {
        let (channel, bytes) = (message.get_channel_name(), message.get_payload_bytes());
        if bytes.len() > MESSAGE_BYTES_MAX {
            tracing::warn!(channel, "message dropped: it is longer than {MESSAGE_BYTES_MAX} bytes");
            return;
        }
        let listeners = {
            let topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
            topics.get(channel).cloned().unwrap_or_default()
        };
        for (_, listener) in listeners {
            if listener.try_send(bytes.to_vec()).is_err() {
                tracing::warn!(channel, "message dropped: as many wait as can");
            }
        }
    }
}
