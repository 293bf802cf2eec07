//! The link: connections to Redis that are kept up, and the channels that this daemon listens to.
//!
//! One task connects, subscribes to every channel, and only then shows the session; it pings both
//! connections and gives them up when an answer fails to come, so that a cut network is noticed. Then it
//! tries again with growing pauses. Messages that come while nobody is connected are lost, as pub/sub is.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use redis::aio::{PubSubSink, PubSubStream};
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo as _, TlsCertificates};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};

use super::backoff::Backoff;
use super::bulk::{self, Dial, Pool};
use super::error::NetworkError;
use super::locations;
use super::session::Session;

/// Longest time for a connection to come up.
const CONNECT_MAX: Duration = Duration::from_secs(3);
/// Longest time for Redis to answer one command.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// How often the connections are asked for a sign of life.
const PING_EVERY: Duration = Duration::from_secs(1);
/// Longest time for that sign.
const PING_MAX: Duration = Duration::from_secs(4);
/// First and longest pause between two attempts to connect.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Messages of one channel that wait to be taken; later ones are dropped, as Redis would drop them.
const WAITING_MAX: usize = 4096;

/// Where Redis is; only the node's configuration knows.
#[derive(Clone)]
pub struct Target {
    /// `redis://` or `rediss://`, with user and password.
    pub url: String,
    /// Certificates that a `rediss://` server may be signed by, as a PEM file; `None` = the system's.
    pub ca: Option<PathBuf>,
}

/// The link cannot be set up at all. Never holds the URL.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The URL.
    #[error(
        "redis_url is not usable ({reason}): redis://[user:password@]host[:port][/db] or rediss://…"
    )]
    Url {
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The certificates.
    #[error("redis_ca {} cannot be used: {reason}", path.display())]
    Ca {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
}

#[derive(Clone, Debug)]
enum State {
    Down(Arc<str>),
    Up(Session),
}

/// One subscribed channel; unsubscribed when dropped.
#[derive(Debug)]
pub struct Listener {
    channel: String,
    messages: mpsc::Receiver<Vec<u8>>,
    link: Link,
}

/// Shared by clones.
#[derive(Clone, Debug)]
pub struct Link {
    topics: Arc<Mutex<HashMap<String, mpsc::Sender<Vec<u8>>>>>,
    /// Says that [`Self::topics`] changed.
    changed: Arc<watch::Sender<()>>,
    /// Channels that the current session is subscribed to.
    subscribed: watch::Receiver<Vec<String>>,
    state: watch::Receiver<State>,
}

impl Link {
    /// A link that begins to connect now, on the current runtime, and ends with its last clone. Every session
    /// of it is subscribed to `channel` before anybody sees it.
    ///
    /// # Errors
    /// When the target makes no sense; a Redis that does not answer is none.
    pub fn start(target: &Target, channel: &str) -> Result<(Self, Listener), LinkError> {
        let (client, dial) = client(target)?;
        let (sender, messages) = mpsc::channel(WAITING_MAX);
        let topics = Arc::new(Mutex::new(HashMap::from([(channel.to_owned(), sender)])));
        let changed = Arc::new(watch::Sender::new(()));
        let (subscribed, told) = watch::channel(Vec::new());
        let (state, shown) = watch::channel(State::Down("not connected yet".into()));
        let keeper = Keeper {
            client,
            dial: Arc::new(dial),
            topics: Arc::clone(&topics),
            changes: changed.subscribe(),
            subscribed,
            state,
        };
        tokio::spawn(keeper.keep());
        let link = Self { topics, changed, subscribed: told, state: shown };
        let listener = Listener { channel: channel.to_owned(), messages, link: link.clone() };
        Ok((link, listener))
    }

    /// The session, if there is one or comes up until `deadline`.
    ///
    /// # Errors
    /// [`NetworkError::Away`] with the last reason.
    pub async fn session(&self, deadline: Instant) -> Result<Session, NetworkError> {
        let mut state = self.state.clone();
        let up = state.wait_for(|state| matches!(state, State::Up(_)));
        if let Ok(Ok(state)) = tokio::time::timeout_at(deadline, up).await
            && let State::Up(session) = &*state
        {
            return Ok(session.clone());
        }
        self.session_now()
    }

    /// The session, if there is one.
    ///
    /// # Errors
    /// [`NetworkError::Away`] with the last reason.
    pub fn session_now(&self) -> Result<Session, NetworkError> {
        match &*self.state.borrow() {
            State::Up(session) => Ok(session.clone()),
            State::Down(reason) => Err(NetworkError::Away { reason: reason.to_string() }),
        }
    }

    /// The next session after the one with number `epoch`; for ever when none comes.
    pub async fn session_after(&self, epoch: u64) -> Session {
        let mut state = self.state.clone();
        let newer = |state: &State| matches!(state, State::Up(session) if session.epoch > epoch);
        let session = match state.wait_for(newer).await.as_deref() {
            Ok(State::Up(session)) => Some(session.clone()),
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
        let other = |state: &State| !matches!(state, State::Up(session) if session.epoch == epoch);
        match state.wait_for(other).await.as_deref() {
            Ok(State::Down(reason)) => reason.to_string(),
            _ => "the connection was lost".to_owned(),
        }
    }

    /// Listens to a channel from now on, over every session to come. Returns once the current one is
    /// subscribed, or at once when there is none.
    pub async fn listen(&self, channel: &str) -> Listener {
        let (sender, messages) = mpsc::channel(WAITING_MAX);
        self.topics().insert(channel.to_owned(), sender);
        self.changed.send_replace(());
        let mut subscribed = self.subscribed.clone();
        let mut state = self.state.clone();
        tokio::select! {
            _ = subscribed.wait_for(|all| all.iter().any(|one| one == channel)) => {}
            _ = state.wait_for(|state| matches!(state, State::Down(_))) => {}
        }
        Listener { channel: channel.to_owned(), messages, link: self.clone() }
    }

    fn topics(&self) -> MutexGuard<'_, HashMap<String, mpsc::Sender<Vec<u8>>>> {
        // Single insertions and removals: a panic elsewhere leaves it whole.
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listener {
    /// The next message.
    pub async fn next(&mut self) -> Option<Vec<u8>> {
        self.messages.recv().await
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.link.topics().remove(&self.channel);
        self.link.changed.send_replace(());
    }
}

/// For messages, and for chunks.
fn client(target: &Target) -> Result<(Client, Dial), LinkError> {
    // Every other error of the parser could quote the URL.
    let wrong = |reason| move |_| LinkError::Url { reason };
    let info = target.url.as_str().into_connection_info().map_err(wrong("not a Redis URL"))?;
    let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
    if !target.url.starts_with("rediss:") && !target.url.starts_with("valkeys:") {
        let client = Client::open(info.clone()).map_err(wrong("not a server's address"))?;
        return Ok((client, Dial::new(info, None)));
    }
    // Fails when somebody else was first, which is as good.
    let _first = rustls::crypto::ring::default_provider().install_default();
    let root_cert = target.ca.as_deref().map(read_ca).transpose()?;
    let unusable = |reason: String| match &target.ca {
        Some(path) => LinkError::Ca { path: path.clone(), reason },
        None => LinkError::Url { reason: "TLS cannot be set up" },
    };
    let tls = bulk::tls(target.ca.as_deref()).map_err(unusable)?;
    let certificates = TlsCertificates { client_tls: None, root_cert };
    let client = Client::build_with_tls(info.clone(), certificates)
        .map_err(|error| unusable(error.to_string()))?;
    Ok((client, Dial::new(info, Some(tls))))
}

fn read_ca(path: &Path) -> Result<Vec<u8>, LinkError> {
    fs::read(path)
        .map_err(|error| LinkError::Ca { path: path.to_owned(), reason: error.to_string() })
}

/// Keeps the link up.
struct Keeper {
    client: Client,
    dial: Arc<Dial>,
    topics: Arc<Mutex<HashMap<String, mpsc::Sender<Vec<u8>>>>>,
    changes: watch::Receiver<()>,
    subscribed: watch::Sender<Vec<String>>,
    state: watch::Sender<State>,
}

/// A connection for messages, with the session beside it.
struct Connected {
    session: Session,
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
                    self.state.send_replace(State::Up(connected.session.clone()));
                    let reason = self.serve(connected).await;
                    tracing::warn!(epoch, reason, "connection to Redis lost");
                    reason
                }
                Ok(Err(NetworkError::Away { reason })) => reason,
                Ok(Err(error)) => error.to_string(),
                Err(_elapsed) => format!("no connection within {CONNECT_MAX:?}"),
            };
            tracing::debug!(epoch, reason, "no Redis");
            self.state.send_replace(State::Down(reason.into()));
            self.subscribed.send_replace(Vec::new());
            sleep(backoff.pause()).await;
        }
    }

    async fn connect(&mut self, epoch: u64, again: bool) -> Result<Connected, NetworkError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_MAX))
            .set_response_timeout(Some(ANSWER_MAX));
        let control = self.client.get_multiplexed_async_connection_with_config(&config);
        let control = control.await.map_err(NetworkError::of("connecting"))?;
        let bulk = Pool::new(Arc::clone(&self.dial));
        let pubsub =
            self.client.get_async_pubsub().await.map_err(NetworkError::of("connecting"))?;
        let (mut sink, stream) = pubsub.split();
        self.subscribe(&mut sink).await?;
        let session = Session::new(epoch, again, control, bulk);
        // The name may lead to the master at the next attempt. Without memory, much works all the same.
        if let Err(error @ NetworkError::Replica { .. }) = locations::begin(&session).await {
            return Err(error);
        }
        Ok(Connected { session, sink, stream })
    }

    /// Makes the subscriptions those that are wanted now.
    async fn subscribe(&mut self, sink: &mut PubSubSink) -> Result<(), NetworkError> {
        self.changes.mark_unchanged();
        let wanted: Vec<String> = {
            let topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
            topics.keys().cloned().collect()
        };
        let current = self.subscribed.borrow().clone();
        for channel in wanted.iter().filter(|channel| !current.contains(channel)) {
            sink.subscribe(channel).await.map_err(NetworkError::of("SUBSCRIBE"))?;
        }
        for channel in current.iter().filter(|channel| !wanted.contains(channel)) {
            sink.unsubscribe(channel).await.map_err(NetworkError::of("UNSUBSCRIBE"))?;
        }
        self.subscribed.send_replace(wanted);
        Ok(())
    }

    /// Hands out messages until the connections end; returns why they did.
    async fn serve(&mut self, connected: Connected) -> String {
        let Connected { session, mut sink, mut stream } = connected;
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
                        return "nobody needs it any more".to_owned();
                    }
                    if let Err(error) = self.subscribe(&mut sink).await {
                        return error.to_string();
                    }
                }
                reason = &mut pinging => return reason,
                () = demoted.demoted() => return "it is a replica now".to_owned(),
            }
        }
    }

    fn hand_out(&self, message: &redis::Msg) {
        let channel = message.get_channel_name();
        let topic = {
            let topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
            topics.get(channel).cloned()
        };
        let Some(topic) = topic else { return };
        if topic.try_send(message.get_payload_bytes().to_vec()).is_err() {
            tracing::warn!(channel, "message dropped: {WAITING_MAX} wait already");
        }
    }
}

/// Asks both connections for signs of life until one does not answer.
async fn ping(session: Session, mut sink: PubSubSink) -> String {
    loop {
        sleep(PING_EVERY).await;
        let both = async {
            session.ping().await?;
            sink.ping::<redis::Value>().await.map_err(NetworkError::of("PING"))?;
            Ok::<_, NetworkError>(())
        };
        match timeout(PING_MAX, both).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return error.to_string(),
            Err(_elapsed) => return format!("no answer within {PING_MAX:?}"),
        }
    }
}
