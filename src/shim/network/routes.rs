//! Locations of callees as Redis lists them, kept for a moment so that a call costs no look-up.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::modes::networked::{NetworkError, Session, locations};
use crate::wire::ids::Identity;
use crate::wire::network::Location;

/// How long a list is used. New replicas get calls after at most this; dead ones cost one refused try.
const FRESH: Duration = Duration::from_secs(1);
/// Functions whose lists are kept; beyond it the cache starts afresh.
const FUNCTIONS_MAX: usize = 1024;

#[derive(Debug)]
struct List {
    read: Instant,
    epoch: u64,
    locations: Vec<Location>,
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

    /// Where `callee` can be called, at most [`FRESH`] old.
    ///
    /// # Errors
    /// When Redis does not say.
    pub async fn of(
        &self,
        session: &Session,
        callee: &Identity,
    ) -> Result<Vec<Location>, NetworkError> {
        if let Some(list) = self.lists().get(callee)
            && list.read.elapsed() < FRESH
            && list.epoch == session.epoch
        {
            return Ok(list.locations.clone());
        }
        let read = Instant::now();
        let locations = locations::look_up(session, callee).await?;
        let list = List { read, epoch: session.epoch, locations: locations.clone() };
        let mut lists = self.lists();
        if lists.len() >= FUNCTIONS_MAX {
            lists.clear();
        }
        lists.insert(callee.clone(), list);
        Ok(locations)
    }

    /// Drops one location that nobody listens at, here and in Redis.
    pub async fn drop_stale(&self, session: &Session, location: &Location) {
        if let Some(list) = self.lists().get_mut(&location.identity) {
            list.locations.retain(|one| one.instance != location.instance);
        }
        let (identity, instance) = (&location.identity, &location.instance);
        match locations::withdraw(session, identity, instance).await {
            Ok(()) => tracing::info!(%identity, instance, "stale location dropped"),
            Err(error) => tracing::debug!(%identity, instance, %error, "stale location expires"),
        }
    }

    /// Looks anew next time.
    pub fn forget(&self, callee: &Identity) {
        self.lists().remove(callee);
    }
}
