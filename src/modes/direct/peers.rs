//! Connections to the shims of other hosts: made when a call needs one, kept for the next call.

mod avoided;
mod idle;

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, setsockopt, sockopt};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_rustls::client::TlsStream;

use self::avoided::{ADDRESS_AVOIDED, Avoided};
use self::idle::Idle;
use super::connection::{Kind, read_message};
use super::tls::{ANY_SHIM, HANDSHAKE_MAX, Mismatch, Tls};
use cwasi_wire::network::Link;

/// Most connections to one shim, and so calls to it at a time.
pub const CONNECTIONS_MAX: usize = 256;
/// How long one is used at all: a certificate that has ended, or is of an authority that counts no more, proves nothing
/// for longer.
pub const USED_FOR: Duration = Duration::from_secs(600);
/// Longest time for a TCP connection to come up: what a firewall costs the first call.
const CONNECT_MAX: Duration = Duration::from_secs(1);
/// How long a port may refuse connections: another shim of the node takes it over.
const TAKE_OVER_MAX: Duration = Duration::from_millis(500);
const TAKE_OVER_PAUSE: Duration = Duration::from_millis(5);
/// How long a shim that does not answer is left alone if its address does.
const SHIM_AVOIDED: Duration = Duration::from_secs(1);
/// A silent connection is probed after so many seconds, so often, and is broken when nothing comes back.
const PROBE_SECONDS: u32 = 1;
const PROBES: u32 = 3;
/// Unacknowledged bytes break it after so many milliseconds.
const UNACKNOWLEDGED_MS: u32 = 4000;

/// Why there is no connection to a shim.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PeerError {
    #[error("{address} does not answer: {reason}")]
    Address { address: String, reason: String },
    /// The machine answers, and no shim of it listens.
    #[error("{address} does not answer: {reason}")]
    Closed { address: String, reason: String },
    /// Its node answers.
    #[error("the shim behind {address} does not answer: {reason}")]
    Shim { address: String, reason: String },
    #[error("{CONNECTIONS_MAX} calls are under way to the shim behind {address}")]
    Busy { address: String },
    #[error("{address} is not asked: {mismatch}")]
    Mismatch { address: String, mismatch: Mismatch },
}

/// A caller's instance and the callee's. The callee's shim keeps its connection to the instance, which is in the
/// caller's name, with the direct one: the pair's next call on that needs no new one. Empty for what is no call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pair {
    pub caller: String,
    pub callee: String,
}

/// A connection with its place among those to the same shim.
#[derive(Debug)]
pub struct Lease {
    pub stream: TlsStream<TcpStream>,
    /// `None` if it is beyond [`CONNECTIONS_MAX`].
    pub place: Option<OwnedSemaphorePermit>,
    pub made: Made,
    /// Whose call it is for.
    pub pair: Pair,
}

/// When a connection was made, and with which of this node's [proofs](Tls::number).
#[derive(Clone, Copy, Debug)]
pub struct Made {
    at: Instant,
    with: u64,
}

#[derive(Debug)]
struct Peer {
    /// Connections without a call.
    idle: Idle<TlsStream<TcpStream>>,
    places: Arc<Semaphore>,
}

impl Default for Peer {
    fn default() -> Self {
        Self { idle: Idle::default(), places: Arc::new(Semaphore::new(CONNECTIONS_MAX)) }
    }
}

/// Connections to other shims.
#[derive(Debug)]
pub struct Peers {
    tls: Tls,
    shims: Mutex<HashMap<String, Peer>>,
    avoided: Avoided,
}

/// A shim's name among all: [`ANY_SHIM`] is one of each node.
fn name(link: &Link) -> String {
    format!("{} behind {}", link.shim, link.address)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Single insertions and removals: a panic elsewhere leaves it consistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Peers {
    #[must_use]
    pub fn new(tls: Tls) -> Self {
        Self { tls, shims: Mutex::default(), avoided: Avoided::default() }
    }

    /// Why this shim is left alone now, if it is.
    #[must_use]
    pub fn avoids(&self, link: &Link) -> Option<PeerError> {
        if let Err(error) = self.check(link) {
            return Some(error);
        }
        self.avoided.reason(&[link.address.clone(), name(link)], Instant::now())
    }

    /// Checks that this node and the other one prove themselves in the same way.
    fn check(&self, link: &Link) -> Result<(), PeerError> {
        let checked = self.tls.check(&link.proof);
        checked.map_err(|mismatch| PeerError::Mismatch { address: link.address.clone(), mismatch })
    }

    /// A connection to a shim for what is no call.
    ///
    /// # Errors
    /// As [`Self::take_for`].
    pub async fn take(
        &self,
        link: &Link,
        deadline: Instant,
        waits: bool,
    ) -> Result<Lease, PeerError> {
        self.take_for(Pair::default(), link, deadline, waits).await
    }

    /// A connection to a shim: one that is kept, that of the pair's last call if it is free, or a new one. While the
    /// shim has all its connections, this waits for one if `waits`.
    ///
    /// # Errors
    /// When there is none until `deadline`; nothing was sent.
    pub async fn take_for(
        &self,
        pair: Pair,
        link: &Link,
        deadline: Instant,
        waits: bool,
    ) -> Result<Lease, PeerError> {
        if let Err(error) = self.check(link) {
            self.avoided.add(&name(link), &error, Instant::now() + SHIM_AVOIDED);
            return Err(error);
        }
        let busy = || PeerError::Busy { address: link.address.clone() };
        let places = Arc::clone(&lock(&self.shims).entry(name(link)).or_default().places);
        let place = match Arc::clone(&places).try_acquire_owned() {
            Err(_all_taken) if waits => {
                let place = timeout_at(deadline, places.acquire_owned()).await;
                place.map_err(|_elapsed| busy())?.map_err(|_closed| busy())?
            }
            place => place.map_err(|_all_taken| busy())?,
        };
        if let Some((stream, made)) = self.kept(&name(link), &pair) {
            return Ok(Lease { stream, place: Some(place), made, pair });
        }
        let (stream, made) = self.connect(link, deadline).await?;
        Ok(Lease { stream, place: Some(place), made, pair })
    }

    /// A connection that is kept and still there.
    fn kept(&self, name: &str, pair: &Pair) -> Option<(TlsStream<TcpStream>, Made)> {
        let (number, mut shims) = (self.tls.number(), lock(&self.shims));
        shims.get_mut(name)?.idle.take(pair, number, Instant::now(), is_silent)
    }

    /// A new connection, to ask about a call that has another one.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub async fn take_new(&self, link: &Link, deadline: Instant) -> Result<Lease, PeerError> {
        self.check(link)?;
        let (stream, made) = self.connect(link, deadline).await?;
        Ok(Lease { stream, place: None, made, pair: Pair::default() })
    }

    /// Keeps a connection on which nothing is under way.
    pub fn put_back(&self, link: &Link, lease: Lease) {
        let mut shims = lock(&self.shims);
        let Lease { stream, place, made, pair } = lease;
        shims.entry(name(link)).or_default().idle.add(stream, made, pair, Instant::now());
        drop(place);
    }

    /// Closes connections that were not used for a while. Called now and then.
    pub fn sweep(&self) {
        let (number, now) = (self.tls.number(), Instant::now());
        lock(&self.shims).retain(|_shim, peer| {
            peer.idle.sweep(number, now, is_silent);
            !peer.idle.is_empty() || peer.places.available_permits() < CONNECTIONS_MAX
        });
        self.avoided.sweep(now);
    }

    async fn connect(
        &self,
        link: &Link,
        deadline: Instant,
    ) -> Result<(TlsStream<TcpStream>, Made), PeerError> {
        // A question finds out when a shim listens again.
        let asks = link.shim == ANY_SHIM;
        let avoided = self.avoids(link);
        if let Some(error) =
            avoided.filter(|error| !asks || !matches!(error, PeerError::Closed { .. }))
        {
            return Err(error);
        }
        let address = &link.address;
        // One that changes meanwhile makes the connection look older.
        let made = Made { at: Instant::now(), with: self.tls.number() };
        let stream = match timeout_at(deadline, dial(address)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                let error = unanswered(address, &error);
                if !asks || !matches!(error, PeerError::Closed { .. }) {
                    self.avoided.add(address, &error, Instant::now() + ADDRESS_AVOIDED);
                }
                return Err(error);
            }
            Err(_elapsed) => {
                self.avoided.probe(address);
                let reason = "the deadline came first".to_owned();
                return Err(PeerError::Address { address: address.clone(), reason });
            }
        };
        let failed = |reason: String| PeerError::Shim { address: address.clone(), reason };
        match timeout_at(deadline, self.greet(stream, link)).await {
            Ok(Ok(stream)) => {
                self.answers(link);
                Ok((stream, made))
            }
            Ok(Err(reason)) => {
                let error = failed(reason);
                self.avoided.add(&name(link), &error, Instant::now() + SHIM_AVOIDED);
                Err(error)
            }
            Err(_elapsed) => Err(failed("the deadline came first".to_owned())),
        }
    }

    /// The handshake, and what the other shim says first; why it takes no calls.
    async fn greet(&self, stream: TcpStream, link: &Link) -> Result<TlsStream<TcpStream>, String> {
        let connected = self.tls.connect(stream, &link.shim, &link.proof).await;
        let mut stream = connected.map_err(|error| error.to_string())?;
        match timeout(HANDSHAKE_MAX, read_message(&mut stream)).await {
            Ok(Ok(Some((Kind::Ready, _)))) => Ok(stream),
            Ok(Ok(Some((Kind::Refusal, text)))) => Err(String::from_utf8_lossy(&text).into_owned()),
            Ok(Ok(Some((kind, _)))) => Err(format!("it says {kind:?} at first")),
            Ok(Ok(None)) => Err("it has ended".to_owned()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_elapsed) => Err("it says nothing".to_owned()),
        }
    }

    /// A connection timed out under a call: further calls take another path for a while.
    pub fn loses(&self, link: &Link, why: &str) -> PeerError {
        let reason = format!("{why}: are large packets lost on the way (MTU)?");
        let error = PeerError::Shim { address: link.address.clone(), reason };
        if let Some(peer) = lock(&self.shims).get_mut(&name(link)) {
            peer.idle.clear();
        }
        self.avoided.add(&name(link), &error, Instant::now() + ADDRESS_AVOIDED);
        error
    }

    /// A shim that did not answer does so again.
    fn answers(&self, link: &Link) {
        if self.avoided.remove(&[link.address.clone(), name(link)]) {
            tracing::info!(address = link.address, "direct connections again");
        }
    }
}

fn unanswered(address: &str, error: &io::Error) -> PeerError {
    let (address, reason) = (address.to_owned(), error.to_string());
    match error.kind() {
        ErrorKind::ConnectionRefused => PeerError::Closed { address, reason },
        _ => PeerError::Address { address, reason },
    }
}

/// A TCP connection. A refusal is repeated for a moment: a shim that had the port may just have ended.
async fn dial(address: &str) -> io::Result<TcpStream> {
    let until = Instant::now() + TAKE_OVER_MAX;
    loop {
        let connecting = timeout(CONNECT_MAX, TcpStream::connect(address));
        let refused = match connecting.await.map_err(|_elapsed| ErrorKind::TimedOut)? {
            Ok(stream) => {
                set_up(&stream)?;
                return Ok(stream);
            }
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => error,
            Err(error) => return Err(error),
        };
        if Instant::now() >= until {
            return Err(refused);
        }
        sleep(TAKE_OVER_PAUSE).await;
    }
}

/// Small messages go at once, and a peer that is gone is noticed within seconds.
///
/// # Errors
/// When the system refuses.
pub fn set_up(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &PROBE_SECONDS)?;
    setsockopt(stream, sockopt::TcpKeepInterval, &PROBE_SECONDS)?;
    setsockopt(stream, sockopt::TcpKeepCount, &PROBES)?;
    setsockopt(stream, sockopt::TcpUserTimeout, &UNACKNOWLEDGED_MS)?;
    Ok(())
}

/// True if the other side has neither ended the connection nor sent anything: an idle one has nothing to say.
fn is_silent(stream: &TlsStream<TcpStream>) -> bool {
    let flags = MsgFlags::MSG_PEEK.union(MsgFlags::MSG_DONTWAIT);
    let peeked = recv(stream.get_ref().0.as_raw_fd(), &mut [0], flags);
    peeked == Err(Errno::EAGAIN)
}

#[cfg(test)]
mod tests;
