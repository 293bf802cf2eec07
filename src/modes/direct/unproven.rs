//! Connections that have not proved their node, within a bound. A new one gets the place of another one that has had
//! time to prove it, so that strangers who say nothing keep no node out.
//!
//! Addresses from which a node was proved are *known*. Which connection makes room:
//!
//! | the new one is | it gets the place of |
//! |---|---|
//! | unknown, and its address has half of all places | the oldest one of its address, after its grace |
//! | unknown | the oldest unknown one of the address with most of them, after its grace |
//! | known | the oldest unknown one, at once; if all are known, one of the address with most of them, after its grace |
//!
//! The grace is the time that a peer's proof takes at most, usually. Otherwise the new one waits until a
//! place is free, and those behind it wait in the listener's backlog.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// Known addresses that are kept; the oldest is forgotten.
const KNOWN_MAX: usize = 1024;
/// Bits of an IPv6 address that a host does not choose itself.
const PREFIX: u128 = !(u64::MAX as u128);

/// Places of connections; clones share them.
#[derive(Clone, Debug)]
pub struct Unproven(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    most: usize,
    grace: Duration,
    table: Mutex<Table>,
    /// A place is free.
    freed: Notify,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    /// By age: numbers only go up.
    places: BTreeMap<u64, Entry>,
    known: BTreeSet<IpAddr>,
    /// In the order in which they became known.
    known_since: VecDeque<IpAddr>,
}

#[derive(Debug)]
struct Entry {
    from: IpAddr,
    since: Instant,
    lost: Arc<Notify>,
}

/// What becomes of a new connection.
#[derive(Debug, PartialEq, Eq)]
enum Room {
    Free,
    /// The place of this one.
    Of(u64),
    /// None before this time, unless one is freed.
    At(Instant),
}

/// One connection's place; free when dropped.
#[derive(Debug)]
pub struct Place {
    of: Unproven,
    number: u64,
    from: IpAddr,
    lost: Arc<Notify>,
}

impl Unproven {
    /// At most `most` at a time; one makes room for an equal one after `grace`.
    #[must_use]
    pub fn new(most: usize, grace: Duration) -> Self {
        let (table, freed) = (Mutex::default(), Notify::new());
        Self(Arc::new(Inner { most: most.max(1), grace, table, freed }))
    }

    /// A place for a connection from this address, when there is one.
    pub async fn place(&self, from: IpAddr) -> Place {
        let from = host_of(from);
        loop {
            let freed = self.0.freed.notified();
            tokio::pin!(freed);
            // Registered before the check, so that no place is missed.
            freed.as_mut().enable();
            let at = match self.try_place(from, Instant::now()) {
                Ok(place) => return place,
                Err(at) => at,
            };
            tokio::select! {
                () = freed => {}
                () = sleep_until(at) => {}
            }
        }
    }

    fn try_place(&self, from: IpAddr, now: Instant) -> Result<Place, Instant> {
        let mut table = self.0.table();
        match table.room(from, (self.0.most, self.0.grace), now) {
            Room::Free => {}
            Room::Of(number) => {
                if let Some(entry) = table.places.remove(&number) {
                    entry.lost.notify_one();
                }
            }
            Room::At(at) => return Err(at),
        }
        let (number, lost) = (table.next, Arc::new(Notify::new()));
        table.next += 1;
        table.places.insert(number, Entry { from, since: now, lost: Arc::clone(&lost) });
        Ok(Place { of: self.clone(), number, from, lost })
    }
}

impl Inner {
    fn table(&self) -> MutexGuard<'_, Table> {
        // Single insertions and removals: a panic elsewhere leaves it consistent.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Room for a connection from this address.
    fn room(&self, from: IpAddr, (most, grace): (usize, Duration), now: Instant) -> Room {
        let is_known = self.known.contains(&from);
        let own = self.places.iter().filter(|(_, entry)| entry.from == from);
        if !is_known && own.clone().count() >= most.div_ceil(2) {
            return later(own.map(|(number, entry)| (*number, entry)).next(), grace, now);
        }
        if self.places.len() < most {
            return Room::Free;
        }
        let mut unknown = self.places.iter().filter(|it| !self.known.contains(&it.1.from));
        if is_known && let Some((number, _)) = unknown.next() {
            return Room::Of(*number);
        }
        // The address with most places: its oldest one.
        let mut addresses: HashMap<IpAddr, (usize, u64)> = HashMap::new();
        for (number, entry) in &self.places {
            if is_known || !self.known.contains(&entry.from) {
                addresses.entry(entry.from).or_insert((0, *number)).0 += 1;
            }
        }
        let oldest =
            addresses.into_values().max_by_key(|(count, oldest)| (*count, u64::MAX - oldest));
        later(oldest.and_then(|(_, number)| Some((number, self.places.get(&number)?))), grace, now)
    }

    fn know(&mut self, from: IpAddr) {
        if self.known.insert(from) {
            self.known_since.push_back(from);
        }
        if self.known.len() > KNOWN_MAX
            && let Some(first) = self.known_since.pop_front()
        {
            self.known.remove(&first);
        }
    }
}

/// The place of this connection, if it has had its time. Without one, a freed place is waited for.
fn later(oldest: Option<(u64, &Entry)>, grace: Duration, now: Instant) -> Room {
    match oldest {
        Some((number, entry)) if entry.since + grace <= now => Room::Of(number),
        Some((_, entry)) => Room::At(entry.since + grace),
        None => Room::At(now + grace),
    }
}

/// What one host can have only one of, more or less.
fn host_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & PREFIX).into(),
        address => address,
    }
}

impl Place {
    /// Waits until another connection has got this place.
    pub async fn lost(&self) {
        self.lost.notified().await;
    }

    /// Frees the place of a connection that has proved its node, whose address is known from now on.
    pub fn proven(self) {
        self.of.0.table().know(self.from);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.of.0.table().places.remove(&self.number);
        self.of.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_millis(100);

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn has_lost(places: &Unproven, place: &Place) -> bool {
        !places.0.table().places.contains_key(&place.number)
    }

    #[tokio::test]
    async fn the_oldest_of_the_greediest_stranger_makes_room_after_its_time() {
        let places = Unproven::new(4, GRACE);
        let now = Instant::now();
        let take = |last, now| places.try_place(address(last), now);
        let (other, first) = (take(1, now).unwrap(), take(2, now).unwrap());
        let second = take(2, now).unwrap();
        // One address has half of the places.
        assert_eq!(take(2, now).unwrap_err(), now + GRACE);
        let third = take(3, now).unwrap();
        assert_eq!(take(4, now).unwrap_err(), now + GRACE);
        let newcomer = take(4, now + GRACE).unwrap();
        assert!(has_lost(&places, &first));
        first.lost().await;
        assert!([&other, &second, &third, &newcomer].iter().all(|it| !has_lost(&places, it)));
        drop(first);
        assert_eq!(places.0.table().places.len(), 4, "it had no place to give back");
    }

    #[tokio::test]
    async fn known_nodes_come_first_and_strangers_never_in_their_place() {
        let places = Unproven::new(2, GRACE);
        let now = Instant::now();
        let take = |last, now| places.try_place(address(last), now);
        for last in [1, 2] {
            take(last, now).unwrap().proven();
        }
        let strangers = [take(8, now).unwrap(), take(9, now).unwrap()];
        let known = [take(1, now).unwrap(), take(1, now).unwrap()];
        assert!(strangers.iter().all(|stranger| has_lost(&places, stranger)));
        let later = now + 100 * GRACE;
        assert!(take(8, later).is_err(), "a stranger waits for a free place");
        assert!(take(2, now).is_err());
        let other = take(2, later).unwrap();
        assert!(has_lost(&places, &known[0]) && !has_lost(&places, &known[1]));
        drop(other);
        assert!(take(8, later).is_ok());
    }

    #[tokio::test]
    async fn a_freed_place_is_taken_by_one_that_waits() {
        let places = Unproven::new(1, GRACE);
        places.place(address(1)).await.proven();
        let first = places.place(address(1)).await;
        let (_stranger, ()) = tokio::join!(places.place(address(2)), async { drop(first) });
    }

    #[test]
    fn a_host_with_many_addresses_is_one() {
        let host = |text: &str| host_of(text.parse().unwrap());
        assert_eq!(host("2001:db8::1"), host("2001:db8::2:3:4:5"));
        assert_ne!(host("2001:db8::1"), host("2001:db8:0:1::1"));
        assert_eq!(host("::ffff:10.0.0.1"), address(1));
    }
}
