//! Streams: one-way messages in Redis, kept until a handler has returned.
//!
//! Each function has one stream, with one consumer group for all its instances and the node's name as consumer. An
//! entry is pending from its first delivery until [`done`]. Another consumer [`reclaim`]s the pending entries of a dead
//! one.

use std::time::Duration;

use redis::streams::{StreamAutoClaimReply, StreamId, StreamReadReply};

use super::error::NetworkError;
use super::quota::{self, Charge, Limits};
use super::session::RedisSession;
use super::stream_key;
use cwasi_modes::Overload;
use cwasi_wire::ids::Identity;

/// Dead letters of one function that are kept, and for how long after the last one: of a handler that always fails they
/// would fill Redis.
const DEAD_MAX: u64 = 1_000;
const DEAD_KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Bytes of one function's dead letters in Redis, about.
const DEAD_BYTES_MAX: u64 = 8 << 20;
/// Halvings that reduce [`DEAD_MAX`] letters to none.
const HALVINGS_MAX: u32 = DEAD_MAX.ilog2() + 1;
/// How long a new stream stays that gets neither a message nor a consumer.
const EMPTY_KEPT: Duration = Duration::from_secs(60 * 60);
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
    pub id: String,
    /// Encoded `Event`.
    pub envelope: Vec<u8>,
    /// The user's bytes.
    pub payload: Vec<u8>,
}

/// Where a function's messages go that its handler failed to handle.
#[must_use]
pub fn dead_key(identity: &Identity) -> String {
    format!("cwasi:dead:{}", identity.short())
}

/// A message on its way into its callee's stream.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// The function that sends it.
    pub sender: &'a Identity,
    /// The function that handles it.
    pub callee: &'a Identity,
    /// Encoded `Event`.
    pub envelope: &'a [u8],
    /// The user's bytes.
    pub payload: &'a [u8],
}

impl Message<'_> {
    fn charge(&self) -> Charge {
        Charge::of(self.sender, self.callee, self.envelope.len() + self.payload.len())
    }

    /// Makes room: the limits have some, and the stream is there, with its consumer group, so that entries which fill
    /// Redis' memory can be read.
    ///
    /// # Errors
    /// When Redis does not answer; the message is not stored.
    pub async fn admit(
        &self,
        session: &RedisSession,
        limits: &Limits,
    ) -> Result<Result<(), Overload>, NetworkError> {
        let names = (self.sender, self.callee);
        match quota::admit(session, names, &self.charge(), limits).await? {
            Err(full) => return Ok(Err(full)),
            Ok(true) => {}
            Ok(false) => make_group(session, &stream_key(self.callee)).await?,
        }
        Ok(Ok(()))
    }

    /// Appends the message. When this returns, Redis has it.
    ///
    /// # Errors
    /// [`NetworkError::Away`]: it may have it all the same.
    pub async fn append(
        &self,
        session: &RedisSession,
        limits: &Limits,
    ) -> Result<(), NetworkError> {
        let (stream, charge) = (stream_key(self.callee), self.charge());
        let mut pipe = redis::pipe();
        pipe.cmd("XADD").arg(&stream).arg("NOMKSTREAM").arg("*");
        pipe.arg(ENVELOPE).arg(self.envelope).arg(PAYLOAD).arg(self.payload);
        charge.add_to(&mut pipe, 1);
        for key in [&stream, &charge.key] {
            pipe.cmd("EXPIRE").arg(key).arg(limits.kept.as_secs()).ignore();
        }
        let (id, _): (Option<String>, i64) = session.transaction(&mut pipe).await?;
        if id.is_some() {
            return Ok(());
        }
        charge.subtract(session).await;
        let reason = "the stream was removed at the same moment".to_owned();
        Err(NetworkError::NotNow { command: "XADD", reason })
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
        Err(error) => Err(error),
        Ok(()) => prolong(session, stream, EMPTY_KEPT).await,
    }
}

/// Keeps a stream for this long from now on.
///
/// # Errors
/// When Redis does not take it.
pub async fn prolong(
    session: &RedisSession,
    stream: &str,
    kept: Duration,
) -> Result<(), NetworkError> {
    let mut cmd = redis::cmd("EXPIRE");
    cmd.arg(stream).arg(kept.as_secs());
    session.run::<u64>("EXPIRE", &cmd).await.map(drop)
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

/// Removes an entry that was handled, and its bytes from its sender's; `sender` is unknown when it cannot be read.
///
/// # Errors
/// When Redis does not take it; it will be handled again.
pub async fn done(
    session: &RedisSession,
    callee: &Identity,
    sender: Option<&Identity>,
    entry: &StreamEntry,
) -> Result<(), NetworkError> {
    let stream = stream_key(callee);
    if let Some(sender) = sender {
        let charge = Charge::of(sender, callee, entry.envelope.len() + entry.payload.len());
        let mut pipe = redis::pipe();
        pipe.cmd("XDEL").arg(&stream).arg(&entry.id);
        pipe.cmd("XACK").arg(&stream).arg(GROUP).arg(&entry.id);
        charge.add_to(&mut pipe, -1);
        match session.transaction::<(u64, u64, i64)>(&mut pipe).await {
            Ok((removed, _, left)) => {
                charge.settle(session, removed > 0, left).await;
                return Ok(());
            }
            // Without memory, Redis lets nothing be counted. What is handled leaves all the same.
            Err(error) if error.is_refusal() => {
                tracing::debug!(stream, %error, "a handled message is not counted");
            }
            Err(error) => return Err(error),
        }
    }
    remove(session, &stream, &entry.id).await
}

/// Removes an entry, from the stream first. A shim that dies in between leaves a pending mark without an entry, which
/// [`reclaim`] removes, and not an entry that stays for ever.
async fn remove(session: &RedisSession, stream: &str, id: &str) -> Result<(), NetworkError> {
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
pub async fn dead_letter(
    session: &RedisSession,
    callee: &Identity,
    sender: Option<&Identity>,
    entry: &StreamEntry,
    reason: &str,
) -> Result<(), NetworkError> {
    let mut cmd = redis::cmd("XADD");
    let key = dead_key(callee);
    cmd.arg(&key).arg("MAXLEN").arg("~").arg(DEAD_MAX).arg("*");
    cmd.arg(ENVELOPE).arg(&entry.envelope).arg(PAYLOAD).arg(&entry.payload);
    cmd.arg(REASON).arg(reason);
    session.run::<String>("XADD", &cmd).await?;
    prolong(session, &key, DEAD_KEPT).await?;
    trim(session, &key).await?;
    done(session, callee, sender, entry).await
}

/// Removes the older half of a function's dead letters as long as all have too many bytes.
async fn trim(session: &RedisSession, key: &str) -> Result<(), NetworkError> {
    for _ in 0..HALVINGS_MAX {
        let mut cmd = redis::cmd("MEMORY");
        cmd.arg("USAGE").arg(key).arg("SAMPLES").arg(0);
        let usage: Option<u64> = session.run("MEMORY USAGE", &cmd).await?;
        if usage.is_none_or(|usage| usage <= DEAD_BYTES_MAX) {
            break;
        }
        let mut cmd = redis::cmd("XLEN");
        cmd.arg(key);
        let length: u64 = session.run("XLEN", &cmd).await?;
        let mut cmd = redis::cmd("XTRIM");
        cmd.arg(key).arg("MAXLEN").arg(length.div_ceil(2));
        session.run::<u64>("XTRIM", &cmd).await?;
    }
    Ok(())
}

fn entry(id: StreamId) -> StreamEntry {
    let field = |name: &str| id.get::<Vec<u8>>(name).unwrap_or_default();
    StreamEntry { envelope: field(ENVELOPE), payload: field(PAYLOAD), id: id.id.clone() }
}
