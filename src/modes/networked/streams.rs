//! Streams: messages in Redis, kept until a handler has returned.
//!
//! Each function has one stream for the one-way messages that functions send to it, and reads streams of others, its
//! triggers. In each of them it has one consumer group for all its instances, with the node's name as consumer. An
//! entry is pending from its first delivery until it is done. Another consumer reclaims the pending entries of a dead
//! one.
//!
//! - [`reader`]: a function's group in a stream: takes entries. [`ends`]: what becomes of them.
//! - `replies`: Redis' replies, of which the entries are others' bytes. [`waiting`]: how many entries wait.

pub mod ends;
pub mod reader;
mod replies;
pub mod waiting;

use std::time::Duration;

use super::error::NetworkError;
use super::quota::{self, Charge, Limits};
use super::session::RedisSession;
use super::stream_key;
use cwasi_modes::Overload;
use cwasi_wire::ids::Identity;
use cwasi_wire::network::Location;
pub use ends::dead_key;
pub use reader::{BEGINNING, StreamReader};

/// How long a new stream of ours stays that gets neither a message nor a consumer.
const EMPTY_KEPT: Duration = Duration::from_secs(60 * 60);
/// The one consumer group of every stream of ours.
const GROUP: &str = "cwasi";
/// Field of an entry of ours with its envelope, and with its payload.
const ENVELOPE: &str = "e";
const PAYLOAD: &str = "p";

/// One entry as delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamEntry {
    pub id: String,
    /// Names and values, in their order.
    pub fields: Vec<(Vec<u8>, Vec<u8>)>,
}

impl StreamEntry {
    /// The value of a field; the last one, if it is there more than once.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&[u8]> {
        let found = self.fields.iter().rfind(|(field, _)| field == name.as_bytes());
        found.map(|(_, value)| value.as_slice())
    }

    /// Encoded `Event` of a one-way message.
    #[must_use]
    pub fn envelope(&self) -> &[u8] {
        self.field(ENVELOPE).unwrap_or_default()
    }

    /// The user's bytes of a one-way message.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.field(PAYLOAD).unwrap_or_default()
    }
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
    /// Redis' memory can be read. Returns the callee's announcement if messages start its first instance.
    ///
    /// # Errors
    /// When Redis does not answer; the message is not stored.
    pub async fn admit(
        &self,
        session: &RedisSession,
        limits: &Limits,
    ) -> Result<Result<Option<Location>, Overload>, NetworkError> {
        let names = (self.sender, self.callee);
        let admission = match quota::admit(session, names, &self.charge(), limits).await? {
            Err(full) => return Ok(Err(full)),
            Ok(admission) => admission,
        };
        if !admission.is_made {
            make_group(session, &stream_key(self.callee)).await?;
        }
        Ok(Ok(admission.on_demand))
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

/// Makes the consumer group of a stream of ours, from the stream's beginning.
///
/// # Errors
/// When Redis refuses; that it is there already is fine.
async fn make_group(session: &RedisSession, stream: &str) -> Result<(), NetworkError> {
    if add_group(session, stream, GROUP, "0").await? {
        expire(session, stream, EMPTY_KEPT).await?;
    }
    Ok(())
}

/// Makes a consumer group that reads what comes after `after`, and the stream; false if the group is there already.
async fn add_group(
    session: &RedisSession,
    stream: &str,
    group: &str,
    after: &str,
) -> Result<bool, NetworkError> {
    let mut cmd = redis::cmd("XGROUP");
    cmd.arg("CREATE").arg(stream).arg(group).arg(after).arg("MKSTREAM");
    match session.run::<()>("XGROUP CREATE", &cmd).await {
        Err(NetworkError::Command { reason, .. }) if reason.contains("BUSYGROUP") => Ok(false),
        made => made.map(|()| true),
    }
}

/// Keeps a stream of ours for this long from now on.
async fn expire(session: &RedisSession, stream: &str, kept: Duration) -> Result<(), NetworkError> {
    let mut cmd = redis::cmd("EXPIRE");
    cmd.arg(stream).arg(kept.as_secs());
    session.run::<u64>("EXPIRE", &cmd).await.map(drop)
}
