//! Locations: which instances of a function exist on which node. Their shims refresh them.
//!
//! A set names a function's instances. One key for each instance holds its location and expires, so the instances of a
//! dead shim vanish. A reader that finds a name without a location removes the name.

use std::time::Duration;

use super::error::NetworkError;
use super::session::RedisSession;
use super::{instances_key, location_key};
use cwasi_wire::ids::Identity;
use cwasi_wire::network::Location;

/// How often a shim refreshes an instance's location.
pub const HEARTBEAT: Duration = Duration::from_secs(2);
/// How long a location is valid without a refresh.
pub const BELIEVED: Duration = Duration::from_secs(6);
/// After this long, every shim that can reach Redis has announced its instances again.
pub const ANNOUNCED_AGAIN: Duration = Duration::from_secs(3);
/// Key that tells the age of this database: set with the first announcement, lost with everything else.
const SINCE_KEY: &str = "cwasi:since";
/// When that key expires. Databases that are older count as new for a moment, which only makes callers wait.
const SINCE_KEPT: Duration = Duration::from_secs(30 * 24 * 3600);
/// Most instances of one function that are read.
pub const INSTANCES_MAX: usize = 256;

/// Keys that one step of a scan looks at.
const SCAN_STEP: u32 = 1000;

/// Announces an instance as callable, for [`BELIEVED`].
///
/// # Errors
/// When Redis does not take it.
pub async fn announce(session: &RedisSession, location: &Location) -> Result<(), NetworkError> {
    let (key, set) = (location_key(&location.instance), instances_key(&location.identity));
    let mut cmd = redis::cmd("SET");
    cmd.arg(&key).arg(location.encode()).arg("PX").arg(milliseconds(BELIEVED));
    match session.run::<()>("SET", &cmd).await {
        // Refreshing an existing key needs no memory.
        Err(error @ NetworkError::OutOfMemory { .. }) => {
            let kept = expire(session, &key, BELIEVED).await?;
            expire(session, &set, BELIEVED * 2).await?;
            return if kept { Ok(()) } else { Err(error) };
        }
        stored => stored?,
    }
    let mut cmd = redis::cmd("SADD");
    cmd.arg(&set).arg(&location.instance);
    session.run::<()>("SADD", &cmd).await?;
    expire(session, &set, BELIEVED * 2).await?;
    begin(session).await
}

/// Has a key expire; false when it does not exist.
pub(super) async fn expire(
    session: &RedisSession,
    key: &str,
    after: Duration,
) -> Result<bool, NetworkError> {
    let mut cmd = redis::cmd("PEXPIRE");
    cmd.arg(key).arg(milliseconds(after));
    session.run("PEXPIRE", &cmd).await
}

/// Notes when this database was first written to.
pub(super) async fn begin(session: &RedisSession) -> Result<(), NetworkError> {
    let mut cmd = redis::cmd("SET");
    cmd.arg(SINCE_KEY).arg(1).arg("NX").arg("PX").arg(milliseconds(SINCE_KEPT));
    session.run("SET", &cmd).await
}

/// How long ago this database was first written to: it was empty before, whatever shims had announced.
///
/// # Errors
/// When Redis does not say.
pub async fn age(session: &RedisSession) -> Result<Duration, NetworkError> {
    match begin(session).await {
        // Then it is full, and not new.
        Err(NetworkError::OutOfMemory { .. }) => return Ok(Duration::MAX),
        begun => begun?,
    }
    let mut cmd = redis::cmd("PTTL");
    cmd.arg(SINCE_KEY);
    let left: i64 = session.run("PTTL", &cmd).await?;
    // Negative: removed in between.
    let left = u64::try_from(left).map_or(SINCE_KEPT, Duration::from_millis);
    Ok(SINCE_KEPT.saturating_sub(left))
}

/// Removes an instance that can no longer be called. Its own shim does so, or a caller whose message had no receiver.
///
/// # Errors
/// When Redis does not take it; the location then expires.
pub async fn withdraw(
    session: &RedisSession,
    identity: &Identity,
    instance: &str,
) -> Result<(), NetworkError> {
    let mut cmd = redis::cmd("UNLINK");
    cmd.arg(location_key(instance));
    session.run::<()>("UNLINK", &cmd).await?;
    let mut cmd = redis::cmd("SREM");
    cmd.arg(instances_key(identity)).arg(instance);
    session.run::<()>("SREM", &cmd).await
}

/// A function's locations, in order of instance ids.
///
/// # Errors
/// When Redis does not say.
pub async fn look_up(
    session: &RedisSession,
    identity: &Identity,
) -> Result<Vec<Location>, NetworkError> {
    let set = instances_key(identity);
    let mut cmd = redis::cmd("SMEMBERS");
    cmd.arg(&set);
    let mut names: Vec<String> = session.run("SMEMBERS", &cmd).await?;
    if names.is_empty() {
        return Ok(Vec::new());
    }
    names.sort();
    names.truncate(INSTANCES_MAX);
    let mut cmd = redis::cmd("MGET");
    for name in &names {
        cmd.arg(location_key(name));
    }
    let values: Vec<Option<Vec<u8>>> = session.run("MGET", &cmd).await?;
    let mut found = Vec::new();
    for (name, value) in names.iter().zip(values) {
        let Some(value) = value else {
            let mut cmd = redis::cmd("SREM");
            cmd.arg(&set).arg(name);
            session.run::<()>("SREM", &cmd).await?;
            continue;
        };
        match Location::decode(&value) {
            Ok(location) if location.identity == *identity && location.instance == *name => {
                found.push(location);
            }
            Ok(other) => tracing::warn!(name, found = other.instance, "location is another's"),
            Err(error) => tracing::warn!(name, %error, "location left out"),
        }
    }
    Ok(found)
}

/// The locations of instances of all functions, `most` at most.
///
/// # Errors
/// When Redis does not say.
pub async fn all(session: &RedisSession, most: usize) -> Result<Vec<Location>, NetworkError> {
    let (mut found, mut cursor) = (Vec::new(), 0_u64);
    loop {
        let mut cmd = redis::cmd("SCAN");
        cmd.arg(cursor).arg("MATCH").arg(location_key("*")).arg("COUNT").arg(SCAN_STEP);
        let (next, keys): (u64, Vec<String>) = session.run("SCAN", &cmd).await?;
        if !keys.is_empty() {
            let mut cmd = redis::cmd("MGET");
            cmd.arg(keys);
            let values: Vec<Option<Vec<u8>>> = session.run("MGET", &cmd).await?;
            found.extend(values.into_iter().flatten().filter_map(|it| Location::decode(&it).ok()));
        }
        if next == 0 || found.len() >= most {
            found.truncate(most);
            return Ok(found);
        }
        cursor = next;
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
