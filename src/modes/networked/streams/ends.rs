//! What becomes of an entry: done, or a dead letter. Runs in the shim daemon.
//!
//! An entry of ours leaves its stream then. One of others stays: its group has it no more, and the stream is theirs.

use std::time::Duration;

use super::super::error::NetworkError;
use super::super::quota::Charge;
use super::super::session::RedisSession;
use super::reader::StreamReader;
use super::{ENVELOPE, PAYLOAD, StreamEntry, expire};
use cwasi_wire::ids::Identity;

/// Dead letters of one function that are kept, and for how long after the last one: of a handler that always fails they
/// would fill Redis.
const DEAD_MAX: u64 = 1_000;
const DEAD_KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Bytes of one function's dead letters in Redis, about.
const DEAD_BYTES_MAX: u64 = 8 << 20;
/// Longest entry of others that is copied into its dead letter, behind our fields: as long as a one-way message.
const COPIED_MAX: usize = 1 << 20;
/// Halvings that reduce [`DEAD_MAX`] letters to none.
const HALVINGS_MAX: u32 = DEAD_MAX.ilog2() + 1;
/// Fields of a dead letter: what its last handler said, and for an entry of others the stream and the entry's id.
const REASON: &str = "r";
const STREAM: &str = "s";
const ID: &str = "i";

/// Where a function's messages go that its handler failed to handle.
#[must_use]
pub fn dead_key(identity: &Identity) -> String {
    format!("cwasi:dead:{}", identity.short())
}

/// Who handles entries, and who sent them.
#[derive(Clone, Copy, Debug)]
pub struct Ended<'a> {
    pub callee: &'a Identity,
    /// `None` if it cannot be read, and for entries of others.
    pub sender: Option<&'a Identity>,
}

impl StreamReader {
    /// Removes an entry that was handled, and its bytes from its sender's.
    ///
    /// # Errors
    /// When Redis does not take it; it will be handled again.
    pub async fn done(
        &self,
        session: &RedisSession,
        ended: Ended<'_>,
        entry: &StreamEntry,
    ) -> Result<(), NetworkError> {
        if !self.is_ours() {
            return self.acknowledge(session, &entry.id).await;
        }
        if let Some(sender) = ended.sender {
            let length = entry.envelope().len() + entry.payload().len();
            let charge = Charge::of(sender, ended.callee, length);
            let mut pipe = redis::pipe();
            pipe.cmd("XDEL").arg(self.key()).arg(&entry.id);
            pipe.cmd("XACK").arg(self.key()).arg(self.group()).arg(&entry.id);
            charge.add_to(&mut pipe, -1);
            match session.transaction::<(u64, u64, i64)>(&mut pipe).await {
                Ok((removed, _, left)) => {
                    charge.settle(session, removed > 0, left).await;
                    return Ok(());
                }
                // Without memory, Redis lets nothing be counted. What is handled leaves all the same.
                Err(error) if error.is_refusal() => {
                    tracing::debug!(stream = self.key(), %error, "a handled message is not counted");
                }
                Err(error) => return Err(error),
            }
        }
        // From the stream first. A shim that dies in between leaves a pending mark without an entry, which `reclaim`
        // removes, and not an entry that stays for ever.
        let mut cmd = redis::cmd("XDEL");
        cmd.arg(self.key()).arg(&entry.id);
        session.run::<u64>("XDEL", &cmd).await?;
        self.acknowledge(session, &entry.id).await
    }

    async fn acknowledge(&self, session: &RedisSession, id: &str) -> Result<(), NetworkError> {
        let mut cmd = redis::cmd("XACK");
        cmd.arg(self.key()).arg(self.group()).arg(id);
        session.run::<u64>("XACK", &cmd).await.map(drop)
    }

    /// Moves an entry to the dead letters, with the reason. First there, then away: twice rather than never.
    ///
    /// # Errors
    /// When Redis does not take it; it will be handled again.
    pub async fn dead_letter(
        &self,
        session: &RedisSession,
        ended: Ended<'_>,
        entry: &StreamEntry,
        reason: &str,
    ) -> Result<(), NetworkError> {
        let mut cmd = redis::cmd("XADD");
        let key = dead_key(ended.callee);
        cmd.arg(&key).arg("MAXLEN").arg("~").arg(DEAD_MAX).arg("*");
        if self.is_ours() {
            cmd.arg(ENVELOPE).arg(entry.envelope()).arg(PAYLOAD).arg(entry.payload());
            cmd.arg(REASON).arg(reason);
        } else {
            cmd.arg(REASON).arg(reason).arg(STREAM).arg(self.key()).arg(ID).arg(&entry.id);
            let length: usize =
                entry.fields.iter().map(|(name, value)| name.len() + value.len()).sum();
            let copied = if length <= COPIED_MAX { entry.fields.as_slice() } else { &[] };
            for (name, value) in copied {
                cmd.arg(name).arg(value);
            }
        }
        session.run::<String>("XADD", &cmd).await?;
        expire(session, &key, DEAD_KEPT).await?;
        trim(session, &key).await?;
        self.done(session, ended, entry).await
    }
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
