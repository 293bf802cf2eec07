//! Demand: functions that are started on demand, and the calls that they have.
//!
//! A controller announces a function that may have no instance (on Kubernetes `cwasi-operator`, for `scale.min: 0`).
//! Shims hold the calls of an announced function until an instance is there. They publish how many calls wait and run,
//! and the controller starts and ends instances. The announcement expires, so that calls fail again when the controller
//! is gone for good. The counts are not kept: the next message repeats them.

use std::time::Duration;

use super::announcement_key;
use super::error::NetworkError;
use super::locations::expire;
use super::session::RedisSession;
use cwasi_wire::ids::Identity;
use cwasi_wire::network::{Demand, Location};

/// Channel of all functions' demand.
pub const CHANNEL: &str = "cwasi:demand";
/// How often a shim repeats that calls wait.
pub const REPEAT: Duration = Duration::from_secs(1);
/// How long a count is valid without a repetition. Instances repeat theirs with their location's heartbeat.
pub const BELIEVED: Duration = Duration::from_secs(6);
/// How long an announcement is valid without a repetition.
pub const ANNOUNCED_FOR: Duration = Duration::from_secs(600);
/// How often a controller repeats its announcements: Redis may have lost them.
pub const ANNOUNCE_EVERY: Duration = Duration::from_secs(10);

/// Announces a function that is started on demand: a location without node and instance.
///
/// # Errors
/// When Redis does not take it.
pub async fn announce(session: &RedisSession, function: &Location) -> Result<(), NetworkError> {
    let key = announcement_key(&function.identity);
    let mut cmd = redis::cmd("SET");
    cmd.arg(&key).arg(function.encode()).arg("EX").arg(ANNOUNCED_FOR.as_secs());
    match session.run("SET", &cmd).await {
        // Refreshing an existing key needs no memory.
        Err(error @ NetworkError::OutOfMemory { .. }) => {
            let kept = expire(session, &key, ANNOUNCED_FOR).await?;
            if kept { Ok(()) } else { Err(error) }
        }
        stored => stored,
    }
}

/// Repeats a function's announcement, if there is one, as it is.
///
/// # Errors
/// When Redis does not take it.
pub async fn keep(session: &RedisSession, identity: &Identity) -> Result<(), NetworkError> {
    expire(session, &announcement_key(identity), ANNOUNCED_FOR).await.map(drop)
}

/// Withdraws a function: its calls fail again while it has no instance.
///
/// # Errors
/// When Redis does not take it; the announcement then expires.
pub async fn withdraw(session: &RedisSession, identity: &Identity) -> Result<(), NetworkError> {
    let mut cmd = redis::cmd("UNLINK");
    cmd.arg(announcement_key(identity));
    session.run("UNLINK", &cmd).await
}

/// A function's announcement; `None` if it is not started on demand.
///
/// # Errors
/// When Redis does not say.
pub async fn look_up(
    session: &RedisSession,
    identity: &Identity,
) -> Result<Option<Location>, NetworkError> {
    let mut cmd = redis::cmd("GET");
    cmd.arg(announcement_key(identity));
    let value: Option<Vec<u8>> = session.run("GET", &cmd).await?;
    Ok(value.and_then(|value| read(identity, &value)))
}

/// The announcement in the value of its key.
pub(super) fn read(identity: &Identity, value: &[u8]) -> Option<Location> {
    match Location::decode(value) {
        Ok(location) if location.identity == *identity => Some(location),
        Ok(other) => {
            tracing::warn!(%identity, found = %other.identity, "announcement is another's");
            None
        }
        Err(error) => {
            tracing::warn!(%identity, %error, "announcement left out");
            None
        }
    }
}

/// Publishes a function's demand.
///
/// # Errors
/// When it is not known whether it was published.
pub async fn publish(session: &RedisSession, demand: &Demand) -> Result<(), NetworkError> {
    session.publish(CHANNEL, &demand.encode()).await.map(drop)
}
