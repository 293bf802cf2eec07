//! A function's consumer group in one stream, and the entries that it takes. Runs in the shim daemon.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::Value;

use super::super::error::NetworkError;
use super::super::session::RedisSession;
use super::super::stream_key;
use super::replies::{claimed, delivered};
use super::{GROUP, StreamEntry, add_group, expire, make_group};
use cwasi_wire::ids::Identity;

/// Begins a group with the next entry.
const NOW: &str = "$";
/// Where [`StreamReader::reclaim`] begins, and begins again.
pub const BEGINNING: &str = "0-0";

/// The group of one function in one stream.
#[derive(Debug)]
pub struct StreamReader {
    key: String,
    group: String,
    /// The stream of the function's one-way messages, not one of others.
    is_ours: bool,
    /// Id after which a new group begins if Redis loses this one; `None` as long as there was none.
    last: Mutex<Option<String>>,
}

impl StreamReader {
    /// Reads the one-way messages of a function.
    #[must_use]
    pub fn of_messages(function: &Identity) -> Self {
        let (key, group) = (stream_key(function), GROUP.to_owned());
        Self { key, group, is_ours: true, last: Mutex::default() }
    }

    /// Reads a stream of others for a function. The group is `cwasi:` and the function's identity.
    #[must_use]
    pub fn of_trigger(function: &Identity, stream: &str) -> Self {
        let (key, group) = (stream.to_owned(), format!("cwasi:{function}"));
        Self { key, group, is_ours: false, last: Mutex::default() }
    }

    /// Key of the stream.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Name of the consumer group.
    #[must_use]
    pub fn group(&self) -> &str {
        &self.group
    }

    pub(super) const fn is_ours(&self) -> bool {
        self.is_ours
    }

    /// Makes the group, and the stream. The group of a trigger reads what comes from now on. If the group was there
    /// before, it reads on: Redis has lost the group, and most likely the stream with it.
    ///
    /// # Errors
    /// When Redis refuses; that the group is there already is fine.
    pub async fn make_group(&self, session: &RedisSession) -> Result<(), NetworkError> {
        if self.is_ours {
            return make_group(session, &self.key).await;
        }
        let after = self.last().clone();
        add_group(session, &self.key, &self.group, after.as_deref().unwrap_or(NOW)).await?;
        self.is_there();
        Ok(())
    }

    fn last(&self) -> MutexGuard<'_, Option<String>> {
        // A single assignment: a panic elsewhere leaves it whole.
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the group is there.
    fn is_there(&self) {
        self.last().get_or_insert_with(|| BEGINNING.to_owned());
    }

    /// Keeps a stream of ours for this long from now on. Those of others are theirs.
    ///
    /// # Errors
    /// When Redis does not take it.
    pub async fn prolong(
        &self,
        session: &RedisSession,
        kept: Duration,
    ) -> Result<(), NetworkError> {
        if self.is_ours { expire(session, &self.key, kept).await } else { Ok(()) }
    }

    /// New entries for `consumer`. Returns none, and makes the consumer group again, when Redis has lost it.
    ///
    /// # Errors
    /// When Redis does not say.
    pub async fn next(
        &self,
        session: &RedisSession,
        consumer: &str,
        count: usize,
    ) -> Result<Vec<StreamEntry>, NetworkError> {
        let mut cmd = redis::cmd("XREADGROUP");
        cmd.arg("GROUP").arg(&self.group).arg(consumer).arg("COUNT").arg(count);
        cmd.arg("STREAMS").arg(&self.key).arg(">");
        let reply = session.run("XREADGROUP", &cmd).await;
        let entries = self.or_make_group(session, reply).await?.map(delivered).unwrap_or_default();
        if let Some(last) = entries.last() {
            *self.last() = Some(last.id.clone());
        }
        Ok(entries)
    }

    /// Entries that were delivered and neither handled nor [`keep`](Self::keep)t for `idle`; none, and a new group,
    /// when Redis has lost it.
    ///
    /// Redis looks at ten times `count` pending entries from `cursor` on, which is then where the next look begins:
    /// entries in front that are being handled would hide a dead consumer's.
    ///
    /// # Errors
    /// When Redis does not say.
    pub async fn reclaim(
        &self,
        session: &RedisSession,
        consumer: &str,
        idle: Duration,
        count: usize,
        cursor: &mut String,
    ) -> Result<Vec<StreamEntry>, NetworkError> {
        let mut cmd = redis::cmd("XAUTOCLAIM");
        let idle_ms = u64::try_from(idle.as_millis()).unwrap_or(u64::MAX);
        cmd.arg(&self.key).arg(&self.group).arg(consumer).arg(idle_ms).arg(&*cursor);
        cmd.arg("COUNT").arg(count);
        let reply = session.run("XAUTOCLAIM", &cmd).await;
        let (next, entries) = match self.or_make_group(session, reply).await? {
            Some(reply) => claimed(reply),
            None => (None, Vec::new()),
        };
        *cursor = next.unwrap_or_else(|| BEGINNING.to_owned());
        Ok(entries)
    }

    /// A reply, or a new group where Redis has none (`FLUSHALL`, a restart).
    async fn or_make_group(
        &self,
        session: &RedisSession,
        reply: Result<Value, NetworkError>,
    ) -> Result<Option<Value>, NetworkError> {
        match reply {
            Err(NetworkError::Command { reason, .. }) if reason.contains("NOGROUP") => {
                self.make_group(session).await?;
                Ok(None)
            }
            reply => {
                let reply = reply?;
                self.is_there();
                Ok(Some(reply))
            }
        }
    }

    /// Says that an entry is still being handled.
    ///
    /// # Errors
    /// When Redis does not take it.
    pub async fn keep(
        &self,
        session: &RedisSession,
        consumer: &str,
        id: &str,
    ) -> Result<(), NetworkError> {
        let mut cmd = redis::cmd("XCLAIM");
        cmd.arg(&self.key).arg(&self.group).arg(consumer).arg(0).arg(id).arg("JUSTID");
        session.run::<Vec<String>>("XCLAIM", &cmd).await.map(drop)
    }

    /// Takes a delivery back that reached no instance: it does not count, and the entry is delivered again after the
    /// usual pause.
    ///
    /// # Errors
    /// When Redis does not take it.
    pub async fn uncount(
        &self,
        session: &RedisSession,
        consumer: &str,
        (id, deliveries): (&str, u64),
    ) -> Result<(), NetworkError> {
        let mut cmd = redis::cmd("XCLAIM");
        cmd.arg(&self.key).arg(&self.group).arg(consumer).arg(0).arg(id);
        cmd.arg("RETRYCOUNT").arg(deliveries.saturating_sub(1)).arg("JUSTID");
        session.run::<Vec<String>>("XCLAIM", &cmd).await.map(drop)
    }

    /// How often an entry was delivered; 0 when it is not pending.
    ///
    /// # Errors
    /// When Redis does not say.
    pub async fn deliveries(&self, session: &RedisSession, id: &str) -> Result<u64, NetworkError> {
        let mut cmd = redis::cmd("XPENDING");
        cmd.arg(&self.key).arg(&self.group).arg(id).arg(id).arg(1);
        let rows: Vec<(String, String, u64, u64)> = session.run("XPENDING", &cmd).await?;
        Ok(rows.first().map_or(0, |row| row.3))
    }
}
