//! The calls of functions that are started on demand, as shims publish them. Every process of the operator has them, the
//! leader or not: KEDA asks any. Nothing is kept: after a restart the next messages repeat it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use cwasi_networked::{Listener, demand};
use cwasi_wire::ids::Identity;
use cwasi_wire::network::Demand;
use tokio::sync::watch;
use tracing::{debug, warn};

/// Most counts that are kept: of all shims and instances of a cluster.
const COUNTS_MAX: usize = 100_000;

/// Last message of one shim or instance about a function.
#[derive(Debug)]
struct Count {
    waiting: u64,
    running: u64,
    read: Instant,
    /// Last time that calls began.
    began: Option<Instant>,
}

impl Count {
    fn is_valid(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.read) < demand::BELIEVED
    }

    fn is_active(&self, now: Instant) -> bool {
        let began =
            self.began.is_some_and(|began| now.saturating_duration_since(began) < demand::BELIEVED);
        began || (self.is_valid(now) && self.waiting + self.running > 0)
    }
}

/// Counts by function and source.
#[derive(Debug)]
pub struct DemandTable {
    counts: Mutex<HashMap<Identity, HashMap<String, Count>>>,
    changed: watch::Sender<()>,
}

impl Default for DemandTable {
    fn default() -> Self {
        Self { counts: Mutex::default(), changed: watch::Sender::new(()) }
    }
}

impl DemandTable {
    fn lock(&self) -> MutexGuard<'_, HashMap<Identity, HashMap<String, Count>>> {
        // Single insertions and removals: a panic elsewhere leaves it consistent.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records all messages, until the link ends.
    pub async fn listen(&self, mut messages: Listener) {
        while let Some(message) = messages.next().await {
            match Demand::decode(&message) {
                Ok(demand) => self.record(demand, Instant::now()),
                Err(error) => warn!(%error, "unreadable demand"),
            }
        }
    }

    /// Records a message that was read at `now`.
    pub fn record(&self, demand: Demand, now: Instant) {
        let Demand { identity, source, waiting, running, began } = demand;
        debug!(%identity, source, waiting, running, began, "demand");
        let mut counts = self.lock();
        let is_valid = |count: &Count| count.is_valid(now) || count.is_active(now);
        let size = |counts: &HashMap<Identity, HashMap<String, Count>>| {
            counts.values().map(HashMap::len).sum::<usize>()
        };
        let mut sources = counts.remove(&identity).unwrap_or_default();
        sources.retain(|_, count| is_valid(count));
        if !sources.contains_key(&source) && size(&counts) + sources.len() >= COUNTS_MAX {
            counts.retain(|_, sources| {
                sources.retain(|_, count| is_valid(count));
                !sources.is_empty()
            });
        }
        let began = if began { Some(now) } else { sources.get(&source).and_then(|it| it.began) };
        if waiting == 0 && running == 0 && began.is_none() {
            sources.remove(&source);
        } else if sources.contains_key(&source) || size(&counts) + sources.len() < COUNTS_MAX {
            sources.insert(source, Count { waiting, running, read: now, began });
        } else {
            debug!(%identity, source, "too many sources: this one does not count");
        }
        if !sources.is_empty() {
            counts.insert(identity, sources);
        }
        drop(counts);
        self.changed.send_replace(());
    }

    /// Calls that wait and run.
    #[must_use]
    pub fn calls(&self, function: &Identity, now: Instant) -> u64 {
        let counts = self.lock();
        let valid = counts.get(function).into_iter().flat_map(HashMap::values);
        let valid = valid.filter(|count| count.is_valid(now));
        valid.fold(0, |sum, it| sum.saturating_add(it.waiting).saturating_add(it.running))
    }

    /// True if a call waits or runs, or began a moment ago.
    #[must_use]
    pub fn is_active(&self, function: &Identity, now: Instant) -> bool {
        let counts = self.lock();
        counts.get(function).into_iter().flat_map(HashMap::values).any(|it| it.is_active(now))
    }

    /// Signals every message.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn identity() -> Identity {
        Identity { namespace: "k8s.io".into(), pod_namespace: "n".into(), function: "f".into() }
    }

    fn demand(source: &str, waiting: u64, running: u64, began: bool) -> Demand {
        Demand { identity: identity(), source: source.into(), waiting, running, began }
    }

    #[test]
    fn calls_of_all_sources_are_added() {
        let (table, now) = (DemandTable::default(), Instant::now());
        assert!(!table.is_active(&identity(), now));
        table.record(demand("a", 2, 0, false), now);
        table.record(demand("b", 3, 0, false), now);
        table.record(demand("i", 0, 4, true), now);
        assert_eq!((table.calls(&identity(), now), table.is_active(&identity(), now)), (9, true));
        // A message replaces the one before.
        table.record(demand("a", 0, 0, false), now);
        assert_eq!(table.calls(&identity(), now), 7);
        let other = Identity { function: "g".into(), ..identity() };
        assert_eq!((table.calls(&other, now), table.is_active(&other, now)), (0, false));
    }

    #[test]
    fn what_is_not_repeated_is_forgotten() {
        let (table, now) = (DemandTable::default(), Instant::now());
        table.record(demand("a", 2, 0, false), now);
        let later = now + demand::BELIEVED;
        assert_eq!(
            (table.calls(&identity(), later), table.is_active(&identity(), later)),
            (0, false)
        );
        table.record(demand("b", 0, 0, false), later);
        assert!(table.lock().is_empty());
    }

    /// A function with many short calls runs none at most moments.
    #[test]
    fn short_calls_keep_a_function_active() {
        let (table, now) = (DemandTable::default(), Instant::now());
        table.record(demand("i", 0, 0, true), now);
        let soon = now + demand::BELIEVED - Duration::from_millis(1);
        assert_eq!((table.calls(&identity(), soon), table.is_active(&identity(), soon)), (0, true));
        assert!(!table.is_active(&identity(), now + demand::BELIEVED));
    }
}
