//! Locations of callees as Redis lists them, kept for a moment so that a call costs no look-up.
//!
//! An empty list does not mean that there is no such function: Redis may have lost its data (`FLUSHALL`, a restart,
//! a failover), or was away, and shims announce their instances again within [`ANNOUNCED_AGAIN`]. [`Routes::wait_for`]
//! waits for that where it may have happened, and tells a function that was there from one that never was.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::modes::networked::locations::{self, ANNOUNCED_AGAIN};
use crate::modes::networked::{NetworkError, Session};
use crate::wire::ids::Identity;
use crate::wire::network::Location;

/// How long a list is used. New replicas get calls after at most this; dead ones cost one refused try.
const FRESH: Duration = Duration::from_secs(1);
/// How long an empty list is used, and so the pause between two looks of those that wait for an instance.
const EMPTY_FRESH: Duration = Duration::from_millis(100);
/// How long a function whose instances vanished is known to exist.
const KNOWN_FOR: Duration = Duration::from_secs(60);
/// Functions whose lists are kept; beyond it the cache starts afresh.
const FUNCTIONS_MAX: usize = 1024;

/// Where a function can be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listed {
    /// At least one location.
    At(Vec<Location>),
    /// Nowhere now; it had instances so long ago.
    Vanished(Duration),
    /// Nowhere, and nothing says that it ever was anywhere.
    Never,
}

#[derive(Debug)]
struct List {
    read: Instant,
    epoch: u64,
    locations: Vec<Location>,
    /// When it was first found to be empty after it was not.
    vanished: Option<Instant>,
    /// Spreads calls over the instances.
    turn: usize,
}

impl List {
    fn new(epoch: u64) -> Self {
        let read = Instant::now();
        Self { read, epoch, locations: Vec::new(), vanished: None, turn: 0 }
    }

    fn is_fresh(&self, epoch: u64) -> bool {
        let fresh = if self.locations.is_empty() { EMPTY_FRESH } else { FRESH };
        self.epoch == epoch && self.read.elapsed() < fresh
    }

    /// Takes what Redis says now.
    fn take(&mut self, locations: Vec<Location>) {
        if !locations.is_empty() {
            self.vanished = None;
        } else if !self.locations.is_empty() {
            self.vanished = Some(Instant::now());
        }
        self.locations = locations;
    }

    fn vanished(&self) -> Option<Duration> {
        self.vanished.map(|since| since.elapsed()).filter(|since| *since < KNOWN_FOR)
    }

    fn listed(&self) -> Listed {
        if self.locations.is_empty() {
            return self.vanished().map_or(Listed::Never, Listed::Vanished);
        }
        Listed::At(self.locations.clone())
    }
}

/// Lists by function.
#[derive(Debug, Default)]
pub struct Routes {
    lists: Mutex<HashMap<Identity, List>>,
}

impl Routes {
    fn lists(&self) -> MutexGuard<'_, HashMap<Identity, List>> {
        // Single insertions and removals: a panic elsewhere leaves it whole.
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where `callee` can be called. Waits, at most until `deadline`, while its instances may not have been
    /// announced again.
    ///
    /// # Errors
    /// When Redis does not say.
    pub async fn wait_for(
        &self,
        session: &Session,
        callee: &Identity,
        deadline: Instant,
    ) -> Result<Listed, NetworkError> {
        loop {
            let listed = self.of(session, callee).await?;
            let left = match &listed {
                Listed::At(_) => return Ok(listed),
                Listed::Vanished(since) => ANNOUNCED_AGAIN.saturating_sub(*since),
                Listed::Never => returning(session).await?,
            };
            if left.is_zero() || Instant::now() >= deadline {
                return Ok(listed);
            }
            sleep(EMPTY_FRESH.min(left)).await;
        }
    }

    /// Where `callee` can be called, at most [`FRESH`] old.
    async fn of(&self, session: &Session, callee: &Identity) -> Result<Listed, NetworkError> {
        {
            let mut lists = self.lists();
            match lists.get_mut(callee) {
                Some(list) if list.is_fresh(session.epoch) => return Ok(list.listed()),
                // The others that wait need not ask too.
                Some(list) if list.locations.is_empty() => list.read = Instant::now(),
                _ => {}
            }
        }
        let read = Instant::now();
        let locations = locations::look_up(session, callee).await?;
        let mut lists = self.lists();
        if lists.len() >= FUNCTIONS_MAX && !lists.contains_key(callee) {
            lists.clear();
        }
        let list = lists.entry(callee.clone()).or_insert_with(|| List::new(session.epoch));
        (list.read, list.epoch) = (read, session.epoch);
        list.take(locations);
        Ok(list.listed())
    }

    /// A number that changes from call to call of `callee`.
    pub fn turn(&self, callee: &Identity) -> usize {
        let mut lists = self.lists();
        let Some(list) = lists.get_mut(callee) else { return 0 };
        list.turn = list.turn.wrapping_add(1);
        list.turn
    }

    /// Drops one location that nobody listens at, here and in Redis.
    pub async fn drop_stale(&self, session: &Session, location: &Location) {
        if let Some(list) = self.lists().get_mut(&location.identity) {
            let mut left = list.locations.clone();
            left.retain(|one| one.instance != location.instance);
            list.take(left);
        }
        let (identity, instance) = (&location.identity, &location.instance);
        match locations::withdraw(session, identity, instance).await {
            Ok(()) => tracing::info!(%identity, instance, "stale location dropped"),
            Err(error) => tracing::debug!(%identity, instance, %error, "stale location expires"),
        }
    }

    /// Looks anew next time.
    pub fn forget(&self, callee: &Identity) {
        if let Some(list) = self.lists().get_mut(callee) {
            // No session has this number.
            list.epoch = 0;
        }
    }
}

/// How much longer shims may be about to announce their instances again: this one has just come back to Redis, so others
/// may, too; or Redis has lost what they announced.
async fn returning(session: &Session) -> Result<Duration, NetworkError> {
    let back = if session.is_first() { Duration::MAX } else { session.since.elapsed() };
    let since = back.min(locations::age(session).await?);
    Ok(ANNOUNCED_AGAIN.saturating_sub(since))
}
