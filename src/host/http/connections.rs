//! The open connections of a server, within a bound. Runs in `cwasi gateway` and in shims, on tokio.
//!
//! When all slots are taken, a new client gets the slot of a connection whose client keeps the server waiting: for a
//! head, for the rest of a body, or for a response to be read. So idle clients keep no other client out. The server
//! closes the longest waiting connection of the peer that has most of them, so one peer cannot close the others'.
//!
//! Invariant: a connection is closed for another one only while no function runs for it. Both sides change its state by
//! compare-and-swap, so either the request begins or the connection is closed.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use cwasi_sys::clock::monotonic_ns;

/// State of a connection: the server serves its request.
const SERVING: u64 = 0;
/// It is closed to make room. Every other value is the time since which its client is waited for.
const CLOSED: u64 = u64::MAX;

/// The connections; clones share them.
#[derive(Clone, Debug)]
pub struct Connections(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    most: usize,
    table: Mutex<Table>,
    /// A connection has ended, or waits for its client: there may be a slot.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    open: HashMap<u64, Arc<Entry>>,
}

#[derive(Debug)]
struct Entry {
    peer: Option<IpAddr>,
    state: AtomicU64,
    closed: Notify,
}

/// A connection's slot, free again when it is dropped.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    number: u64,
    state: ConnectionState,
}

/// Says whether a connection waits for its client; clones mean the same connection.
#[derive(Clone, Debug)]
pub(super) struct ConnectionState {
    inner: Arc<Inner>,
    entry: Arc<Entry>,
}

impl Connections {
    /// At most `most` at a time, one or more.
    #[must_use]
    pub fn new(most: usize) -> Self {
        let inner = Inner { most: most.max(1), table: Mutex::default(), changed: Notify::new() };
        Self(Arc::new(inner))
    }

    /// A slot for a client, which may be another one's until now. Waits only while functions run for all of them.
    pub(super) async fn slot(&self, peer: Option<IpAddr>) -> ConnectionSlot {
        loop {
            let changed = self.0.changed.notified();
            tokio::pin!(changed);
            // Registered before the check, so that no slot is missed.
            changed.as_mut().enable();
            if let Some(slot) = self.try_slot(peer) {
                return slot;
            }
            changed.await;
        }
    }

    fn try_slot(&self, peer: Option<IpAddr>) -> Option<ConnectionSlot> {
        let mut table = self.0.table();
        if table.open.len() >= self.0.most {
            table.close_one()?;
        }
        let number = table.next;
        table.next += 1;
        let state = AtomicU64::new(monotonic_ns());
        let entry = Arc::new(Entry { peer, state, closed: Notify::new() });
        table.open.insert(number, Arc::clone(&entry));
        let inner = Arc::clone(&self.0);
        Some(ConnectionSlot { number, state: ConnectionState { inner, entry } })
    }

    /// Waits until there are none.
    pub(super) async fn ended(&self) {
        loop {
            let changed = self.0.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.0.table().open.is_empty() {
                return;
            }
            changed.await;
        }
    }
}

impl Inner {
    fn table(&self) -> MutexGuard<'_, Table> {
        // Single insertions and removals: a panic elsewhere leaves it consistent.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Closes the connection that has kept the server waiting for the longest time, of the peer with most of them.
    fn close_one(&mut self) -> Option<()> {
        loop {
            let (since, number) = self.longest_waiting()?;
            let entry = self.open.get(&number)?;
            let closed =
                entry.state.compare_exchange(since, CLOSED, Ordering::SeqCst, Ordering::SeqCst);
            // Its request may have begun just now: then it is another one's turn.
            if closed.is_ok() {
                entry.closed.notify_one();
                self.open.remove(&number);
                return Some(());
            }
        }
    }

    /// Since when it waits, and its number.
    fn longest_waiting(&self) -> Option<(u64, u64)> {
        let mut peers: HashMap<Option<IpAddr>, (usize, u64, u64)> = HashMap::new();
        for (number, entry) in &self.open {
            let since = entry.state.load(Ordering::SeqCst);
            if since == SERVING {
                continue;
            }
            let (count, oldest, oldest_number) =
                peers.entry(entry.peer).or_insert((0, since, *number));
            *count += 1;
            if since < *oldest {
                (*oldest, *oldest_number) = (since, *number);
            }
        }
        let most = peers.values().max_by_key(|(count, since, _)| (*count, u64::MAX - since));
        most.map(|(_, since, number)| (*since, *number))
    }
}

impl ConnectionSlot {
    pub(super) fn state(&self) -> ConnectionState {
        self.state.clone()
    }

    /// Waits until the connection is to be closed for another one.
    pub(super) async fn closed(&self) {
        self.state.entry.closed.notified().await;
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.state.inner.table().open.remove(&self.number);
        self.state.inner.changed.notify_waiters();
    }
}

impl ConnectionState {
    /// The server serves a whole request now. False if the connection is being closed.
    pub(super) fn start_serving(&self) -> bool {
        let change = |state| (state != CLOSED).then_some(SERVING);
        self.entry.state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change).is_ok()
    }

    /// From now on the client is waited for.
    pub(super) fn wait_for_client(&self) {
        let now = monotonic_ns().clamp(1, CLOSED - 1);
        let change = |state| (state != CLOSED).then_some(now);
        // Closed meanwhile: it stays so.
        let _closed = self.entry.state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change);
        self.inner.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([10, 0, 0, last]))
    }

    fn is_closed(slot: &ConnectionSlot) -> bool {
        slot.state.entry.state.load(Ordering::SeqCst) == CLOSED
    }

    #[test]
    fn the_greediest_peers_oldest_connection_is_closed() {
        let connections = Connections::new(4);
        let slot = |last| connections.try_slot(peer(last)).unwrap();
        let (other, busy, first, second) = (slot(1), slot(2), slot(2), slot(2));
        assert!(busy.state().start_serving());
        let newcomer = slot(3);
        assert!(is_closed(&first) && !first.state().start_serving());
        assert!(!is_closed(&other) && !is_closed(&busy) && !is_closed(&second));
        // Each peer has one that waits: the oldest.
        let another = slot(4);
        assert!(is_closed(&other) && !is_closed(&newcomer) && !is_closed(&another));
        drop((other, first));
        assert_eq!(connections.0.table().open.len(), 4);
    }

    #[test]
    fn a_serving_connection_is_not_closed() {
        let connections = Connections::new(2);
        let slots = [1, 2].map(|last| connections.try_slot(peer(last)).unwrap());
        assert!(slots.iter().all(|slot| slot.state().start_serving()));
        assert!(connections.try_slot(peer(3)).is_none());
        slots[1].state().wait_for_client();
        assert!(connections.try_slot(peer(3)).is_some());
        assert!(is_closed(&slots[1]) && !is_closed(&slots[0]));
    }

    #[tokio::test]
    async fn an_idle_connections_slot_is_reused() {
        let connections = Connections::new(1);
        let busy = connections.slot(None).await;
        assert!(busy.state().start_serving());
        let state = busy.state();
        // The first one is polled first, and finds no slot yet.
        let (_slot, ()) = tokio::join!(connections.slot(None), async { state.wait_for_client() });
        assert!(is_closed(&busy));
    }

    #[tokio::test]
    async fn a_freed_slot_is_reused() {
        let connections = Connections::new(1);
        let slot = connections.slot(None).await;
        assert!(slot.state().start_serving());
        let (_next, ()) = tokio::join!(connections.slot(None), async { drop(slot) });
        assert_eq!(connections.0.table().open.len(), 1);
    }
}
