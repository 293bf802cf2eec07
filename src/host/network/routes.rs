//! Locations of callees from the [`Directory`], cached for a moment. Runs in the shim daemon.
//!
//! An empty list does not prove that a function does not exist: Redis may have lost its data (`FLUSHALL`, a restart,
//! a failover) or was away. Shims announce their instances again within [`ANNOUNCED_AGAIN`]. [`Routes::wait_for`]
//! waits for that, and tells a vanished function from one that never existed, and from one that is started on demand.
//! Until then, a list from before stays: calls go on to its instances, of which those that have ended refuse them unrun.
//!
//! Redis may also hang. [`Routes::listed`] is for calls that can do without it: they go on with an old list while it is
//! looked up again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::directory::Directory;
use super::refresh::{Background, LookUp};
use cwasi_networked::locations::{self, ANNOUNCED_AGAIN};
use cwasi_networked::{NetworkError, RedisSession};
use cwasi_wire::ids::Identity;
use cwasi_wire::network::Location;

/// Lifetime of a list. New replicas get calls after at most this time; dead ones cost one refused try.
const FRESH: Duration = Duration::from_secs(1);
/// After this long, a look-up is worth a short wait: the locations were announced for less time than that.
const OLD: Duration = locations::BELIEVED;
/// Longest wait for the look-up of an old list that is usable.
const OLD_MAX: Duration = Duration::from_millis(250);
/// Lifetime of an empty list, and so the pause between two look-ups of waiting calls.
const EMPTY_FRESH: Duration = Duration::from_millis(100);
/// The same for a function that is started on demand, whose calls wait for its first instance.
const ON_DEMAND_FRESH: Duration = Duration::from_millis(25);
/// Time for which a function without instances counts as existing.
const KNOWN_FOR: Duration = Duration::from_secs(60);
/// Epoch of a list that no call may use: no session has this number.
const FORGOTTEN: u64 = 0;
/// Most cached functions; beyond it the cache is cleared.
const FUNCTIONS_MAX: usize = 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FunctionLocations {
    /// At least one location.
    At(Vec<Location>),
    /// None now; one is started when it is called. Its announcement.
    OnDemand(Location),
    /// None now; its instances vanished so long ago.
    Vanished(Duration),
    /// None, and none is known from before.
    Never,
}

#[derive(Debug)]
struct List {
    read: Instant,
    epoch: u64,
    locations: Vec<Location>,
    /// The function's announcement, if there is no location.
    announcement: Option<Location>,
    /// The directory has lost it; others may be announced in its place.
    is_kept: bool,
    /// Time at which it became empty.
    vanished: Option<Instant>,
    /// Counter that spreads calls over the instances.
    turn: usize,
    background: Background,
}

/// No clock: each decision gets the time.
impl List {
    fn new(epoch: u64, now: Instant) -> Self {
        Self {
            read: now,
            epoch,
            locations: Vec::new(),
            announcement: None,
            is_kept: false,
            vanished: None,
            turn: 0,
            background: Background::default(),
        }
    }

    fn is_fresh(&self, epoch: u64, now: Instant) -> bool {
        let fresh = match &self.announcement {
            _ if !self.locations.is_empty() => FRESH,
            Some(_) => ON_DEMAND_FRESH,
            None => EMPTY_FRESH,
        };
        self.epoch == epoch && self.age(now) < fresh
    }

    fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.read)
    }

    /// Stores the directory's current list.
    fn take(&mut self, locations: Vec<Location>, now: Instant) {
        if !locations.is_empty() {
            self.vanished = None;
        } else if !self.locations.is_empty() {
            self.vanished = Some(now);
        }
        self.locations = locations;
        self.is_kept = false;
    }

    /// Drops one location.
    fn drop_instance(&mut self, instance: &str, now: Instant) {
        let mut left = self.locations.clone();
        left.retain(|one| one.instance != instance);
        self.take(left, now);
    }

    fn vanished(&self, now: Instant) -> Option<Duration> {
        let since = self.vanished.map(|since| now.saturating_duration_since(since));
        since.filter(|since| *since < KNOWN_FOR)
    }

    fn listed(&self, now: Instant) -> FunctionLocations {
        if !self.locations.is_empty() {
            return FunctionLocations::At(self.locations.clone());
        }
        if let Some(announcement) = &self.announcement {
            return FunctionLocations::OnDemand(announcement.clone());
        }
        self.vanished(now).map_or(FunctionLocations::Never, FunctionLocations::Vanished)
    }
}

/// A list that is to be looked up again, and is usable until then.
struct Stale {
    usable: Vec<Location>,
    look_up: LookUp,
    patience: Duration,
}

/// Lists of locations; clones share them.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    lists: Arc<Mutex<HashMap<Identity, List>>>,
}

impl Routes {
    fn lists(&self) -> MutexGuard<'_, HashMap<Identity, List>> {
        // Single insertions and removals: a panic elsewhere leaves it consistent.
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`Self::wait_for`], for a call that may go to any location that is `usable`: one that is reached without
    /// Redis. While there are some, it does not wait for Redis, or only for a moment.
    ///
    /// # Errors
    /// When Redis does not answer.
    pub async fn listed(
        &self,
        directory: &Directory,
        callee: &Identity,
        deadline: Instant,
        usable: impl Fn(&Location) -> bool,
    ) -> Result<FunctionLocations, NetworkError> {
        if let Some(Stale { usable, look_up, patience }) = self.stale(directory, callee, usable)
            && !look_up.ends_within(patience).await
        {
            return Ok(FunctionLocations::At(usable));
        }
        self.wait_for(directory, callee, deadline).await
    }

    /// The list if it is not fresh and has usable locations; its look-up has begun.
    fn stale(
        &self,
        directory: &Directory,
        callee: &Identity,
        usable: impl Fn(&Location) -> bool,
    ) -> Option<Stale> {
        let now = Instant::now();
        let mut lists = self.lists();
        let list = lists.get_mut(callee)?;
        if list.is_fresh(directory.epoch(), now) || list.epoch == FORGOTTEN {
            return None;
        }
        let usable: Vec<_> = list.locations.iter().filter(|it| usable(it)).cloned().collect();
        if usable.is_empty() {
            return None;
        }
        let patience = if list.age(now) < OLD { Duration::ZERO } else { OLD_MAX };
        let (routes, directory, callee) = (self.clone(), directory.clone(), callee.clone());
        let look_up = list.background.begin(async move {
            tokio::select! {
                listed = routes.of(&directory, &callee) => if let Err(error) = listed {
                    tracing::debug!(%callee, %error, "its locations are not looked up");
                },
                () = directory.ended() => {}
            }
        });
        Some(Stale { usable, look_up, patience })
    }

    /// Locations of `callee`. Waits, at most until `deadline`, while its instances may be announced again.
    ///
    /// # Errors
    /// When the directory does not answer.
    pub async fn wait_for(
        &self,
        directory: &Directory,
        callee: &Identity,
        deadline: Instant,
    ) -> Result<FunctionLocations, NetworkError> {
        loop {
            let listed = self.of(directory, callee).await?;
            let left = match &listed {
                FunctionLocations::At(_) | FunctionLocations::OnDemand(_) => return Ok(listed),
                FunctionLocations::Vanished(since) => ANNOUNCED_AGAIN.saturating_sub(*since),
                FunctionLocations::Never => directory.returning().await?,
            };
            if left.is_zero() || Instant::now() >= deadline {
                return Ok(listed);
            }
            sleep(EMPTY_FRESH.min(left)).await;
        }
    }

    /// Locations of `callee`, at most [`FRESH`] old.
    pub(super) async fn of(
        &self,
        directory: &Directory,
        callee: &Identity,
    ) -> Result<FunctionLocations, NetworkError> {
        let (epoch, read) = (directory.epoch(), Instant::now());
        {
            let mut lists = self.lists();
            match lists.get_mut(callee) {
                Some(list) if list.is_fresh(epoch, read) => return Ok(list.listed(read)),
                // Other waiting calls need not ask, too.
                Some(list) if list.locations.is_empty() => list.read = read,
                _ => {}
            }
        }
        let locations = directory.look_up(callee).await?;
        let is_kept = locations.is_empty()
            && self.last_known(callee).is_some_and(|known| !known.is_empty())
            && !directory.returning().await?.is_zero();
        if is_kept && let Some(list) = self.lists().get_mut(callee) {
            (list.read, list.epoch, list.is_kept) = (read, epoch, true);
            return Ok(list.listed(Instant::now()));
        }
        let announcement = match &locations[..] {
            [] => directory.announcement(callee).await?,
            _ => None,
        };
        let now = Instant::now();
        let mut lists = self.lists();
        if lists.len() >= FUNCTIONS_MAX && !lists.contains_key(callee) {
            lists.clear();
        }
        let list = lists.entry(callee.clone()).or_insert_with(|| List::new(epoch, now));
        (list.read, list.epoch) = (read, epoch);
        list.take(locations, now);
        list.announcement = announcement;
        Ok(list.listed(now))
    }

    /// The list as the directory last gave it, however old it is.
    pub fn last_known(&self, callee: &Identity) -> Option<Vec<Location>> {
        self.lists().get(callee).map(|list| list.locations.clone())
    }

    /// A number that changes from call to call of `callee`.
    pub fn turn(&self, callee: &Identity) -> usize {
        let mut lists = self.lists();
        let Some(list) = lists.get_mut(callee) else { return 0 };
        list.turn = list.turn.wrapping_add(1);
        list.turn
    }

    /// Drops one location without a listener, here and in Redis.
    pub async fn drop_stale(&self, session: &RedisSession, location: &Location) {
        if let Some(list) = self.lists().get_mut(&location.identity) {
            list.drop_instance(&location.instance, Instant::now());
        }
        let (identity, instance) = (&location.identity, &location.instance);
        match locations::withdraw(session, identity, instance).await {
            Ok(()) => tracing::info!(%identity, instance, "stale location dropped"),
            Err(error) => tracing::debug!(%identity, instance, %error, "stale location expires"),
        }
    }

    /// Drops one location that did not accept a call, if the directory has lost it: it may have ended since.
    pub fn drop_kept(&self, location: &Location) {
        if let Some(list) = self.lists().get_mut(&location.identity)
            && list.is_kept
        {
            list.drop_instance(&location.instance, Instant::now());
            list.is_kept = true;
        }
    }

    /// Looks the callee up again next time.
    pub fn forget(&self, callee: &Identity) {
        if let Some(list) = self.lists().get_mut(callee) {
            list.epoch = FORGOTTEN;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EPOCH: u64 = 1;

    fn location() -> Location {
        let identity =
            Identity { namespace: "n".into(), pod_namespace: String::new(), function: "f".into() };
        Location {
            identity,
            node: "node".into(),
            instance: "i".into(),
            allow: Vec::new(),
            max_payload: 1,
            max_head: 1,
            http: false,
            link: None,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5000))]

        /// A function counts as vanished from the moment at which its last instance went, for a minute; it never
        /// existed before and after. A list is believed for a second, an empty one for a tenth.
        #[test]
        fn a_list_says_since_when_a_function_is_gone(
            steps in prop::collection::vec((any::<bool>(), 0..40_000_u64), 0..40),
        ) {
            let begin = Instant::now();
            let (mut list, mut now) = (List::new(EPOCH, begin), begin);
            let mut went = None;
            for (exists, pause) in steps {
                let was_there = !list.locations.is_empty();
                went = match (was_there, exists) {
                    (_, true) => None,
                    (true, false) => Some(now),
                    (false, false) => went,
                };
                list.take(exists.then(location).into_iter().collect(), now);
                list.read = now;
                now += Duration::from_millis(pause);
                let fresh = if exists { FRESH } else { EMPTY_FRESH };
                prop_assert_eq!(list.is_fresh(EPOCH, now), Duration::from_millis(pause) < fresh);
                prop_assert!(!list.is_fresh(EPOCH + 1, now), "another session");
                let gone = went.map(|at| now - at).filter(|since| *since < KNOWN_FOR);
                prop_assert_eq!(list.listed(now), match gone {
                    _ if exists => FunctionLocations::At(vec![location()]),
                    Some(since) => FunctionLocations::Vanished(since),
                    None => FunctionLocations::Never,
                });
            }
        }
    }
}
