//! The open connections of a server, within a bound. Runs in `cwasi gateway` and in shims, on tokio.
//!
//! When all places are taken, a new client gets the place of one that keeps the server waiting: for a head, for the rest
//! of a body, or for a response to be read. So clients that hold connections without using them keep nobody out. The one
//! to close is the longest waiting one of the peer with the most of them, so that one peer cannot push out the others'.
//!
//! Invariant: a connection is closed for another one only while no function runs for it. Both sides change its state by
//! compare-and-swap, so either the request begins or the connection is closed.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::sys::clock::monotonic_ns;

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
    /// A place became free.
    freed: Notify,
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

/// A connection's place, free again when it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    inner: Arc<Inner>,
    number: u64,
    turn: Turn,
}

/// Says whether a connection waits for its client; clones mean the same connection.
#[derive(Clone, Debug)]
pub(super) struct Turn(Arc<Entry>);

impl Connections {
    /// At most `most` at a time, one or more.
    #[must_use]
    pub fn new(most: usize) -> Self {
        let inner = Inner { most: most.max(1), table: Mutex::default(), freed: Notify::new() };
        Self(Arc::new(inner))
    }

    /// A place for a client, which may be another one's until now. Waits only while functions run for all of them.
    pub(super) async fn place(&self, peer: Option<IpAddr>) -> Place {
        loop {
            let freed = self.0.freed.notified();
            tokio::pin!(freed);
            // Registered before the look, so that no place is missed.
            freed.as_mut().enable();
            if let Some(place) = self.try_place(peer) {
                return place;
            }
            freed.await;
        }
    }

    fn try_place(&self, peer: Option<IpAddr>) -> Option<Place> {
        let mut table = self.0.table();
        if table.open.len() >= self.0.most {
            table.close_one()?;
        }
        let number = table.next;
        table.next += 1;
        let state = AtomicU64::new(monotonic_ns());
        let entry = Arc::new(Entry { peer, state, closed: Notify::new() });
        table.open.insert(number, Arc::clone(&entry));
        Some(Place { inner: Arc::clone(&self.0), number, turn: Turn(entry) })
    }

    /// Waits until there are none.
    pub(super) async fn ended(&self) {
        loop {
            let freed = self.0.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if self.0.table().open.is_empty() {
                return;
            }
            freed.await;
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
        let mut waiting: HashMap<Option<IpAddr>, (usize, u64, u64)> = HashMap::new();
        for (number, entry) in &self.open {
            let since = entry.state.load(Ordering::SeqCst);
            if since == SERVING {
                continue;
            }
            let (count, oldest, oldest_number) =
                waiting.entry(entry.peer).or_insert((0, since, *number));
            *count += 1;
            if since < *oldest {
                (*oldest, *oldest_number) = (since, *number);
            }
        }
        let most = waiting.values().max_by_key(|(count, since, _)| (*count, u64::MAX - since));
        let (_, since, number) = *most?;
        let entry = self.open.get(&number)?;
        // Its request may have begun just now.
        entry.state.compare_exchange(since, CLOSED, Ordering::SeqCst, Ordering::SeqCst).ok()?;
        entry.closed.notify_one();
        self.open.remove(&number);
        Some(())
    }
}

impl Place {
    /// The connection's state.
    pub(super) fn turn(&self) -> Turn {
        self.turn.clone()
    }

    /// Waits until the connection is to be closed for another one.
    pub(super) async fn closed(&self) {
        self.turn.0.closed.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.inner.table().open.remove(&self.number);
        self.inner.freed.notify_waiters();
    }
}

impl Turn {
    /// The server serves a whole request now. False if the connection is being closed.
    pub(super) fn begin(&self) -> bool {
        let change = |state| (state != CLOSED).then_some(SERVING);
        self.0.state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change).is_ok()
    }

    /// From now on the client is waited for.
    pub(super) fn wait(&self) {
        let now = monotonic_ns().clamp(1, CLOSED - 1);
        let change = |state| (state != CLOSED).then_some(now);
        // Closed meanwhile: it stays so.
        let _closed = self.0.state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([10, 0, 0, last]))
    }

    fn is_closed(place: &Place) -> bool {
        place.turn.0.state.load(Ordering::SeqCst) == CLOSED
    }

    #[test]
    fn the_oldest_idle_connection_of_the_greediest_peer_makes_room() {
        let connections = Connections::new(4);
        let place = |last| connections.try_place(peer(last)).unwrap();
        let (other, busy, first, second) = (place(1), place(2), place(2), place(2));
        assert!(busy.turn().begin());
        let newcomer = place(3);
        assert!(is_closed(&first) && !first.turn().begin());
        assert!(!is_closed(&other) && !is_closed(&busy) && !is_closed(&second));
        // Each peer has one that waits: the oldest.
        let another = place(4);
        assert!(is_closed(&other) && !is_closed(&newcomer) && !is_closed(&another));
        drop((other, first));
        assert_eq!(connections.0.table().open.len(), 4);
    }

    #[test]
    fn no_running_function_is_given_up_for_a_newcomer() {
        let connections = Connections::new(2);
        let places = [1, 2].map(|last| connections.try_place(peer(last)).unwrap());
        assert!(places.iter().all(|place| place.turn().begin()));
        assert!(connections.try_place(peer(3)).is_none());
        places[1].turn().wait();
        assert!(connections.try_place(peer(3)).is_some());
        assert!(is_closed(&places[1]) && !is_closed(&places[0]));
    }

    #[tokio::test]
    async fn a_freed_place_is_taken_by_who_waits() {
        let connections = Connections::new(1);
        let place = connections.place(None).await;
        assert!(place.turn().begin());
        let (_next, ()) = tokio::join!(connections.place(None), async { drop(place) });
        assert_eq!(connections.0.table().open.len(), 1);
    }
}
