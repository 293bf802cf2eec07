//! The shim's side of direct connections ([`cwasi_direct`]). Runs in the shim daemon, and in processes of the host that
//! call functions, which take no calls.
//!
//! - [`outgoing`]: one try of a call. [`incoming`]: calls of other hosts. [`trust`]: whose they may be; [`taken`]: how
//!   many connections.
//! - [`settings`]: what a node is configured to. [`peers`]: questions between nodes without Redis.

mod incoming;
mod outgoing;
mod peers;
mod room;
mod settings;
mod taken;
mod trust;

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OnceCell, watch};
use tokio::time::{Instant, interval, sleep, timeout};

use super::{Inner, Network};
use cwasi_coordinator::registry::Record;
use cwasi_direct::decisions::Decisions;
use cwasi_direct::peers::{PeerError, Peers};
use cwasi_direct::port::{self, PortSettings};
use cwasi_modes::pool::{ReceivePools, TakenSegment};
use cwasi_networked::{NetworkError, locations, nodes};
use cwasi_sys::clock::monotonic_ns;
use cwasi_wire::network::{Link, Location, NodeProof};
pub(super) use outgoing::DirectEnd;
use room::PayloadRoom;
pub use settings::{DirectSettings, link_end, link_entry};
use taken::Taken;
use trust::KnownNodes;

/// Longest look-up of the node's own address.
const ADDRESS_MAX: Duration = Duration::from_secs(1);
/// Most bytes of the segments into which payloads are received again and again, for all instances together.
const SEGMENT_BYTES_MAX: u64 = 256 << 20;
/// How often connections that nobody uses are closed.
const SWEEP_EVERY: Duration = Duration::from_secs(10);
/// Longest attempt to connect to a shim without a call.
const PROBE_MAX: Duration = Duration::from_secs(2);
/// Longest wait for callers to end their connections when this daemon ends.
const CLOSE_MAX: Duration = Duration::from_millis(500);
const CLOSE_PAUSE: Duration = Duration::from_millis(2);
/// Pause before a key is announced that Redis did not take.
const ANNOUNCE_PAUSE: Duration = Duration::from_secs(1);

/// Direct connections of this daemon.
#[derive(Debug)]
pub(super) struct Direct {
    settings: DirectSettings,
    /// This daemon, for others.
    shim: String,
    peers: Peers,
    decisions: Mutex<Decisions>,
    nodes: KnownNodes,
    /// Of calls that come.
    requests: PayloadRoom,
    /// Of calls that go.
    responses: PayloadRoom,
    /// What payloads and responses are received into.
    segments: ReceivePools,
    /// Instances of this daemon.
    served: Mutex<HashMap<String, Record>>,
    /// This daemon's end, as locations have it, once it takes connections.
    link: OnceCell<Link>,
    /// True when it takes no more calls.
    closing: watch::Sender<bool>,
    /// Connections of other shims.
    taken: Taken,
    /// True while it has a part in the node's port.
    has_port: AtomicBool,
    /// True after the log said that a connection was refused.
    has_refused: AtomicBool,
    /// True after the log said that this daemon takes no connections.
    has_no_link: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Single insertions and removals: a panic elsewhere leaves it consistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Direct {
    /// `shim` are hexadecimal digits that no other shim has.
    pub(super) fn new(settings: DirectSettings, shim: &str) -> Self {
        Self {
            peers: Peers::new(settings.tls.clone()),
            settings,
            shim: shim.to_owned(),
            decisions: Mutex::default(),
            nodes: KnownNodes::default(),
            requests: PayloadRoom::default(),
            responses: PayloadRoom::default(),
            segments: ReceivePools::new(SEGMENT_BYTES_MAX),
            served: Mutex::default(),
            link: OnceCell::new(),
            closing: watch::Sender::new(false),
            taken: Taken::default(),
            has_port: AtomicBool::new(false),
            has_refused: AtomicBool::new(false),
            has_no_link: AtomicBool::new(false),
        }
    }

    /// A segment for a payload of `length` bytes to `reader`, an instance of this host: a new one, or one that this
    /// instance had before. `None` when no room is left.
    fn segment_for(&self, reader: &str, length: u64) -> Option<TakenSegment> {
        let taken = self.segments.take(reader, length)?;
        if self.segments.begin_maintenance() {
            let segments = self.segments.clone();
            tokio::spawn(async move {
                while segments.maintain(monotonic_ns()) {
                    sleep(ReceivePools::IDLE).await;
                }
            });
        }
        Some(taken)
    }

    /// Why a direct connection to this shim is not tried now, if it is not.
    pub(super) fn avoids(&self, link: &Link) -> Option<PeerError> {
        self.peers.avoids(link)
    }

    /// Logs why a connection is refused; a stranger does not fill the log.
    fn note_refusal(&self, reason: &str) {
        if self.has_refused.swap(true, Relaxed) {
            tracing::debug!(reason, "a direct connection is refused");
        } else {
            tracing::warn!(
                reason,
                "a direct connection is refused; later ones are logged at debug"
            );
        }
    }

    fn record(&self, instance: &str) -> Option<Record> {
        lock(&self.served).get(instance).cloned()
    }

    /// True on a node without Redis.
    pub(super) const fn has_peers(&self) -> bool {
        !self.settings.peers.is_empty()
    }
}

impl Inner {
    /// True if calls do not go over Redis.
    pub(super) fn is_always_direct(&self) -> bool {
        self.direct.as_ref().is_some_and(|direct| direct.settings.always)
    }

    /// How an instance is reached directly, if this daemon and its node offer that.
    pub(super) fn direct_to<'a>(
        &'a self,
        location: &'a Location,
    ) -> Option<(&'a Direct, &'a Link)> {
        self.direct.as_deref().zip(location.link.as_deref())
    }

    /// True if an instance is reached without Redis, as far as is known.
    pub(super) fn is_reached_directly(&self, location: &Location) -> bool {
        self.direct_to(location).is_some_and(|(direct, link)| direct.avoids(link).is_none())
    }
}

impl Network {
    /// Why calls to an instance go over Redis; `None` if they go directly.
    #[must_use]
    pub fn why_not_direct(&self, location: &Location) -> Option<String> {
        if self.inner.direct.is_none() {
            let why = "link = \"redis\", or this process may not read the node's key";
            return Some(why.to_owned());
        }
        let Some((direct, link)) = self.inner.direct_to(location) else {
            return Some(format!("node {} has no link", location.node));
        };
        direct.avoids(link).map(|error| error.to_string())
    }

    /// Connects to an instance's shim.
    ///
    /// # Errors
    /// Why that is not possible, and its calls go over Redis.
    pub async fn probe(&self, location: &Location) -> Result<(), String> {
        let why = || self.why_not_direct(location).unwrap_or_default();
        let (direct, link) = self.inner.direct_to(location).ok_or_else(why)?;
        let until = Instant::now() + PROBE_MAX;
        let lease =
            direct.peers.take(link, until, false).await.map_err(|error| error.to_string())?;
        direct.peers.put_back(link, lease);
        Ok(())
    }

    /// Instances of all functions in Redis, `most` at most.
    ///
    /// # Errors
    /// When Redis is away.
    pub async fn all_locations(&self, most: usize) -> Result<Vec<Location>, NetworkError> {
        let session = self.inner.link.session(Instant::now() + PROBE_MAX).await?;
        locations::all(&session, most).await
    }

    /// The record of an instance of this daemon, as other shims of the node find it.
    #[must_use]
    pub fn linked(&self, record: Record) -> Record {
        let link = self.inner.direct.as_ref().map(|direct| direct.shim.clone());
        Record { link: link.unwrap_or_default(), ..record }
    }

    /// How calls go for which there is no direct connection, for people.
    #[must_use]
    pub fn instead(&self, why: &str) -> String {
        let path = if self.inner.is_always_direct() { "not reached" } else { "over Redis" };
        format!("{path}: {why}")
    }

    /// Takes calls for an instance over direct connections. Returns this daemon's end of them, if it takes any now.
    pub(super) async fn serve_direct(&self, record: &Record) -> Option<Box<Link>> {
        let direct = self.inner.direct.as_ref()?;
        let link = match direct.link.get_or_try_init(|| self.begin_to_take(direct)).await {
            Ok(link) => link.clone(),
            Err(error) => {
                // Each heartbeat tries again.
                if !direct.has_no_link.swap(true, Relaxed) {
                    tracing::error!(
                        %error,
                        "no direct connections to this shim: check link_listen, or set link_advertise"
                    );
                }
                return None;
            }
        };
        lock(&direct.served).insert(record.instance.clone(), record.clone());
        Some(Box::new(link))
    }

    pub(super) fn withdraw_direct(&self, instance: &str) {
        if let Some(direct) = &self.inner.direct {
            lock(&direct.served).remove(instance);
        }
    }

    /// Takes no more calls over direct connections, and gives the port to another shim. Returns when callers know it,
    /// or after a moment: a call that came after this daemon's end would end as unknown.
    pub async fn close(&self) {
        let Some(direct) = &self.inner.direct else { return };
        direct.closing.send_replace(true);
        let until = Instant::now() + CLOSE_MAX;
        let is_busy = || direct.has_port.load(Relaxed) || !direct.taken.is_empty();
        while is_busy() && Instant::now() < until {
            sleep(CLOSE_PAUSE).await;
        }
    }

    async fn begin_to_take(&self, direct: &Direct) -> io::Result<Link> {
        let DirectSettings { listen, dir, tls, .. } = direct.settings.clone();
        let proof = tls.proof().map_err(io::Error::other)?;
        let address = direct.settings.address();
        let address =
            timeout(ADDRESS_MAX, address).await.unwrap_or(Err(io::ErrorKind::TimedOut.into()))?;
        let shim = direct.shim.clone();
        let port = port::share(PortSettings { listen, dir, shim: shim.clone() })?;
        direct.has_port.store(true, Relaxed);
        tokio::spawn(self.clone().take_connections(port));
        Ok(Link { address, shim, proof })
    }

    /// Announces the node's key while this daemon runs, and closes connections that nobody uses.
    pub(super) async fn keep_link(self) {
        let Some(direct) = &self.inner.direct else { return };
        let mut sweep = interval(SWEEP_EVERY);
        let announcing = async {
            // The authority says which nodes there are, otherwise.
            let Ok(NodeProof::Key(key)) = direct.settings.tls.proof() else { return };
            let mut epoch = 0;
            loop {
                let session = tokio::select! {
                    session = self.inner.link.session_after(epoch) => session,
                    () = sleep(nodes::HEARTBEAT), if epoch > 0 => match self.inner.link.session_now() {
                        Ok(session) => session,
                        Err(_away) => continue,
                    },
                };
                match nodes::announce(&session, &key, &self.inner.node).await {
                    Ok(()) => epoch = session.epoch,
                    Err(error) => {
                        tracing::warn!(%error, "the node's key is not announced");
                        sleep(ANNOUNCE_PAUSE).await;
                    }
                }
            }
        };
        let sweeping = async {
            loop {
                sweep.tick().await;
                direct.peers.sweep();
            }
        };
        tokio::join!(announcing, sweeping);
    }
}
