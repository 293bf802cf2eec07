//! Streams: one-way messages in Redis, kept until a handler has returned.
//!
//! Each function has one stream, with one consumer group for all its instances and the node's name as consumer. An
//! entry is pending from its first delivery until [`done`]. Another consumer [`reclaim`]s the pending entries of a dead
//! one.

use std::time::Duration;

use redis::streams::{StreamAutoClaimReply, StreamId, StreamReadReply};

use super::error::NetworkError;
use super::session::RedisSession;
use crate::wire::ids::Identity;

/// Entries of one stream; more are refused.
pub const ENTRIES_MAX: u64 = 100_000;
/// Dead letters of one function that are kept, and for how long after the last one: of a handler that always fails they
/// would fill Redis.
const DEAD_MAX: u64 = 1_000;
const DEAD_KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// The one consumer group of every stream.
const GROUP: &str = "cwasi";
/// Field of an entry with its envelope, and with its payload.
const ENVELOPE: &str = "e";
const PAYLOAD: &str = "p";
/// Field of a dead letter with what its last handler said.
const REASON: &str = "r";

/// One entry as delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamEntry {
    /// Its id in the stream.
    pub id: String,
    /// Encoded `Event`.
    pub envelope: Vec<u8>,
    /// The user's bytes.
    pub payload: Vec<u8>,
}

/// A function's stream.
#[must_use]
pub fn stream_key(identity: &Identity) -> String {
    format!("cwasi:ev:{}", identity.short())
}

/// Where a function's messages go that its handler failed to handle.
#[must_use]
pub fn dead_key(identity: &Identity) -> String {
    format!("cwasi:dead:{}", identity.short())
}

/// How many entries a stream holds, handled ones excluded.
///
/// # Errors
/// When Redis does not say.
pub async fn length(session: &RedisSession, stream: &str) -> Result<u64, NetworkError> {
    let mut cmd = redis::cmd("XLEN");
    cmd.arg(stream);
    session.run("XLEN", &cmd).await
}

/// Appends an entry. When this returns, Redis has it. The consumer group is made before the first one, so that entries
/// which fill Redis' memory can be read.
///
/// # Errors
/// [`NetworkError::Away`]: it may have it all the same.
pub async fn append(
    session: &RedisSession,
    stream: &str,
    envelope: &[u8],
    payload: &[u8],
) -> Result<(), NetworkError> {
    let mut cmd = redis::cmd("XADD");
    cmd.arg(stream).arg("NOMKSTREAM").arg("*");
    cmd.arg(ENVELOPE).arg(envelope).arg(PAYLOAD).arg(payload);
    if session.run::<Option<String>>("XADD", &cmd).await?.is_some() {
        return Ok(());
    }
    make_group(session, stream).await?;
    match session.run::<Option<String>>("XADD", &cmd).await? {
        Some(_) => Ok(()),
        None => {
            let reason = "the stream was removed at the same moment".to_owned();
            Err(NetworkError::NotNow { command: "XADD", reason })
        }
    }
}

/// Makes the consumer group, from the stream's beginning.
///
/// # Errors
/// When Redis refuses; that it is there already is fine.
async fn make_group(session: &RedisSession, stream: &str) -> Result<(), NetworkError> {
    let mut cmd = redis::cmd("XGROUP");
    cmd.arg("CREATE").arg(stream).arg(GROUP).arg("0").arg("MKSTREAM");
    match session.run::<()>("XGROUP CREATE", &cmd).await {
        Err(NetworkError::Command { reason, .. }) if reason.contains("BUSYGROUP") => Ok(()),
        made => made,
    }
}

/// New entries for `consumer`. Returns none, and makes the consumer group again, when Redis has lost it.
///
/// # Errors
/// When Redis does not say.
pub async fn next(
    session: &RedisSession,
    stream: &str,
    consumer: &str,
    count: usize,
) -> Result<Vec<StreamEntry>, NetworkError> {
    let mut cmd = redis::cmd("XREADGROUP");
    cmd.arg("GROUP").arg(GROUP).arg(consumer).arg("COUNT").arg(count);
    cmd.arg("STREAMS").arg(stream).arg(">");
    let reply: Result<Option<StreamReadReply>, _> = session.run("XREADGROUP", &cmd).await;
    let Some(reply) = or_make_group(session, stream, reply).await? else { return Ok(Vec::new()) };
    let keys = reply.map(|reply| reply.keys).unwrap_or_default();
    Ok(keys.into_iter().flat_map(|key| key.ids).map(entry).collect())
}

/// Where [`reclaim`] begins, and begins again.
pub const BEGINNING: &str = "0-0";

/// Entries that were delivered and neither handled nor [`keep`]t for `idle`; none, and a new group, when Redis has lost
/// it.
///
/// Redis looks at ten times `count` pending entries from `cursor` on, which is then where the next look begins:
/// entries in front that are being handled would hide a dead consumer's.
///
/// # Errors
/// When Redis does not say.
pub async fn reclaim(
    session: &RedisSession,
    stream: &str,
    consumer: &str,
    idle: Duration,
    count: usize,
    cursor: &mut String,
) -> Result<Vec<StreamEntry>, NetworkError> {
    let mut cmd = redis::cmd("XAUTOCLAIM");
    let idle_ms = u64::try_from(idle.as_millis()).unwrap_or(u64::MAX);
    cmd.arg(stream).arg(GROUP).arg(consumer).arg(idle_ms).arg(&*cursor).arg("COUNT").arg(count);
    let reply: Result<StreamAutoClaimReply, _> = session.run("XAUTOCLAIM", &cmd).await;
    let Some(reply) = or_make_group(session, stream, reply).await? else {
        BEGINNING.clone_into(cursor);
        return Ok(Vec::new());
    };
    *cursor = reply.next_stream_id;
    Ok(reply.claimed.into_iter().map(entry).collect())
}

/// A reply, or a new group where Redis has none (`FLUSHALL`, a restart).
async fn or_make_group<T>(
    session: &RedisSession,
    stream: &str,
    reply: Result<T, NetworkError>,
) -> Result<Option<T>, NetworkError> {
    match reply {
        Err(NetworkError::Command { reason, .. }) if reason.contains("NOGROUP") => {
            make_group(session, stream).await?;
            Ok(None)
        }
        reply => reply.map(Some),
    }
}

/// Says that an entry is still being handled.
///
/// # Errors
/// When Redis does not take it.
pub async fn keep(
    session: &RedisSession,
    stream: &str,
    consumer: &str,
    id: &str,
) -> Result<(), NetworkError> {
    let mut cmd = redis::cmd("XCLAIM");
    cmd.arg(stream).arg(GROUP).arg(consumer).arg(0).arg(id).arg("JUSTID");
    session.run::<Vec<String>>("XCLAIM", &cmd).await.map(drop)
}

/// How often an entry was delivered; 0 when it is not pending.
///
/// # Errors
/// When Redis does not say.
pub async fn deliveries(
    session: &RedisSession,
    stream: &str,
    id: &str,
) -> Result<u64, NetworkError> {
    let mut cmd = redis::cmd("XPENDING");
    cmd.arg(stream).arg(GROUP).arg(id).arg(id).arg(1);
    let rows: Vec<(String, String, u64, u64)> = session.run("XPENDING", &cmd).await?;
    Ok(rows.first().map_or(0, |row| row.3))
}

/// Removes an entry that was handled, from the stream first. A shim that dies in between leaves a pending mark without
/// an entry, which [`reclaim`] removes, and not an entry that stays for ever.
///
/// # Errors
/// When Redis does not take it; it will be handled again.
pub async fn done(session: &RedisSession, stream: &str, id: &str) -> Result<(), NetworkError> {
    for name in ["XDEL", "XACK"] {
        let mut cmd = redis::cmd(name);
        cmd.arg(stream);
        if name == "XACK" {
            cmd.arg(GROUP);
        }
        cmd.arg(id);
        session.run::<u64>(name, &cmd).await?;
    }
    Ok(())
}

/// Moves an entry to the dead letters, with the reason. First there, then away: twice rather than never.
///
/// # Errors
/// When Redis does not take it; it will be handled again.
pub async fn bury(
    session: &RedisSession,
    identity: &Identity,
    entry: &StreamEntry,
    reason: &str,
) -> Result<(), NetworkError> {
    let mut cmd = redis::cmd("XADD");
    let key = dead_key(identity);
    cmd.arg(&key).arg("MAXLEN").arg("~").arg(DEAD_MAX).arg("*");
    cmd.arg(ENVELOPE).arg(&entry.envelope).arg(PAYLOAD).arg(&entry.payload);
    cmd.arg(REASON).arg(reason);
    session.run::<String>("XADD", &cmd).await?;
    let mut cmd = redis::cmd("EXPIRE");
    cmd.arg(&key).arg(DEAD_KEPT.as_secs());
    session.run::<u64>("EXPIRE", &cmd).await?;
    done(session, &stream_key(identity), &entry.id).await
}

fn entry(id: StreamId) -> StreamEntry {
    let field = |name: &str| id.get::<Vec<u8>>(name).unwrap_or_default();
    StreamEntry { envelope: field(ENVELOPE), payload: field(PAYLOAD), id: id.id.clone() }
}
