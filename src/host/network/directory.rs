//! Where locations of callees come from: Redis, or the nodes of `link_peers` in its place. Runs in the shim daemon.

use std::sync::Arc;
use std::time::Duration;

use super::Inner;
use super::direct::Direct;
use cwasi_networked::locations::{self, ANNOUNCED_AGAIN};
use cwasi_networked::{NetworkError, RedisLink, RedisSession, demand};
use cwasi_wire::ids::Identity;
use cwasi_wire::network::Location;

/// A directory that can be asked now.
#[derive(Clone, Debug)]
pub(super) enum Directory {
    Redis(RedisLink, RedisSession),
    Peers(Arc<Direct>),
}

impl Directory {
    /// Number of what it knows: with a new one it may have lost everything.
    pub(super) const fn epoch(&self) -> u64 {
        match self {
            Self::Redis(_, session) => session.epoch,
            Self::Peers(_) => 1,
        }
    }

    /// The instances of a function.
    pub(super) async fn look_up(&self, callee: &Identity) -> Result<Vec<Location>, NetworkError> {
        match self {
            Self::Redis(_, session) => locations::look_up(session, callee).await,
            Self::Peers(direct) => direct.look_up(callee).await,
        }
    }

    /// The announcement of a function that is started on demand. Only Redis has some.
    pub(super) async fn announcement(
        &self,
        callee: &Identity,
    ) -> Result<Option<Location>, NetworkError> {
        match self {
            Self::Redis(_, session) => demand::look_up(session, callee).await,
            Self::Peers(_) => Ok(None),
        }
    }

    /// Remaining time in which shims may announce their instances again: this shim has just reconnected, so others may,
    /// too, or Redis lost its data.
    pub(super) async fn returning(&self) -> Result<Duration, NetworkError> {
        let Self::Redis(_, session) = self else { return Ok(Duration::ZERO) };
        let back = if session.is_first() { Duration::MAX } else { session.since.elapsed() };
        let since = back.min(locations::age(session).await?);
        Ok(ANNOUNCED_AGAIN.saturating_sub(since))
    }

    /// Waits until it answers no more.
    pub(super) async fn ended(&self) {
        match self {
            Self::Redis(link, session) => drop(link.ended(session.epoch).await),
            Self::Peers(_) => std::future::pending().await,
        }
    }
}

impl Inner {
    /// The directory of a node without Redis.
    pub(super) fn peers(&self) -> Option<Directory> {
        let direct = self.direct.as_ref().filter(|direct| direct.has_peers());
        direct.map(|direct| Directory::Peers(Arc::clone(direct)))
    }

    pub(super) fn redis(&self, session: &RedisSession) -> Directory {
        Directory::Redis(self.link.clone(), session.clone())
    }
}
