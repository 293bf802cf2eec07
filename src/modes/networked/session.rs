//! A session: one set of connections to Redis, and the commands of a call on it.
//!
//! Runs in the shim. A session ends with its connections and is never repaired. A message that was published on it
//! without an answer may or may not have arrived; the session's user reports that (`unknown`).

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue, Pipeline};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::bulk::BulkPool;
use super::error::NetworkError;
use super::try_key;
use cwasi_wire::network::TryId;

/// How long a try's key stays unless it is removed: longer than any connection can hold back a message,
/// because the link is cut after a few seconds without an answer to its pings.
const TRY_KEPT: Duration = Duration::from_secs(600);

/// The first decision about a try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// This side decided, just now.
    Ours,
    /// The other side decided before, under this name.
    Theirs(String),
}

/// Commands on one set of connections.
#[derive(Clone, Debug)]
pub struct RedisSession {
    /// Number of this set; never used twice by one link.
    pub epoch: u64,
    pub since: Instant,
    /// There was another one of this link before.
    again: bool,
    control: MultiplexedConnection,
    /// Signalled when the server is no master any more, although its connections are up.
    demoted: Arc<Notify>,
    /// For chunks, so that messages do not queue behind them.
    bulk: BulkPool,
}

impl RedisSession {
    pub(super) fn new(
        epoch: u64,
        again: bool,
        control: MultiplexedConnection,
        bulk: BulkPool,
    ) -> Self {
        let demoted = Arc::default();
        Self { epoch, since: Instant::now(), again, control, demoted, bulk }
    }

    /// True when its link was never connected before.
    #[must_use]
    pub const fn is_first(&self) -> bool {
        !self.again
    }

    pub(super) async fn run<T: FromRedisValue>(
        &self,
        command: &'static str,
        cmd: &Cmd,
    ) -> Result<T, NetworkError> {
        let mut connection = self.control.clone();
        let answer = cmd.query_async(&mut connection).await.map_err(NetworkError::of(command));
        if let Err(NetworkError::Replica { .. }) = answer {
            self.demoted.notify_one();
        }
        answer
    }

    /// Runs all commands as one transaction.
    pub(super) async fn transaction<T: FromRedisValue>(
        &self,
        pipe: &mut Pipeline,
    ) -> Result<T, NetworkError> {
        let mut connection = self.control.clone();
        let answer = pipe.atomic().query_async(&mut connection).await;
        let answer = answer.map_err(NetworkError::of_transaction);
        if let Err(NetworkError::Replica { .. }) = answer {
            self.demoted.notify_one();
        }
        answer
    }

    /// Returns when the server has refused a write because it is a replica now.
    pub(super) async fn demoted(&self) {
        self.demoted.notified().await;
    }

    pub(super) const fn bulk(&self) -> &BulkPool {
        &self.bulk
    }

    /// Checks that the connection answers.
    ///
    /// # Errors
    /// When it does not.
    pub async fn ping(&self) -> Result<(), NetworkError> {
        self.run("PING", &redis::cmd("PING")).await
    }

    /// Publishes a message; how many connections it was written to.
    ///
    /// # Errors
    /// When it is not known whether the message had a receiver.
    pub async fn publish(&self, channel: &str, message: &[u8]) -> Result<u64, NetworkError> {
        let mut cmd = redis::cmd("PUBLISH");
        cmd.arg(channel).arg(message);
        self.run("PUBLISH", &cmd).await
    }

    /// How many connections listen to a channel.
    ///
    /// # Errors
    /// When Redis does not answer.
    pub async fn listeners(&self, channel: &str) -> Result<u64, NetworkError> {
        let mut cmd = redis::cmd("PUBSUB");
        cmd.arg("NUMSUB").arg(channel);
        let (_, count): (String, u64) = self.run("PUBSUB NUMSUB", &cmd).await?;
        Ok(count)
    }

    /// Decides about a try, if no decision exists: the callee's shim accepts it under the name of its channel before it
    /// runs, or the caller's shim gives it up.
    /// Exactly one of the two gets [`Decision::Ours`].
    ///
    /// # Errors
    /// When Redis does not answer; then this shim must not act as if it had decided. After a refusal
    /// ([`NetworkError::is_refusal`]) no shim had decided yet.
    pub async fn decide(&self, id: TryId, who: &str) -> Result<Decision, NetworkError> {
        let mut cmd = redis::cmd("SET");
        cmd.arg(try_key(id)).arg(who).arg("NX").arg("EX").arg(TRY_KEPT.as_secs());
        let set: Result<Option<String>, _> = self.run("SET", &cmd).await;
        if let Ok(Some(_)) = set {
            return Ok(Decision::Ours);
        }
        let refused = match set {
            // Without memory, Redis refuses before it checks whether the key exists.
            Err(error) if error.is_refusal() => Some(error),
            set => set.map(|_| None)?,
        };
        let mut cmd = redis::cmd("GET");
        cmd.arg(try_key(id));
        let who: Option<String> = self.run("GET", &cmd).await?;
        match (who, refused) {
            (None, Some(error)) => Err(error),
            // Removed in between: by the caller, whose try has ended.
            (who, _) => Ok(Decision::Theirs(who.unwrap_or_default())),
        }
    }

    /// Removes the key of a try that has ended.
    ///
    /// # Errors
    /// When Redis does not answer; the key then expires.
    pub async fn forget_try(&self, id: TryId) -> Result<(), NetworkError> {
        let mut cmd = redis::cmd("UNLINK");
        cmd.arg(try_key(id));
        self.run("UNLINK", &cmd).await
    }
}
