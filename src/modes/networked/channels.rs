//! Leases of channels: which shim listens to a channel of others for a function.
//!
//! Redis delivers a channel's message to every listener. So one of a function's instances holds a lease, and its shim
//! alone listens. The lease expires when the shim is gone, and another one takes it.

use std::time::Duration;

use super::error::NetworkError;
use super::session::RedisSession;
use cwasi_wire::ids::{Identity, short_hash};

/// How long a lease is valid without a renewal.
pub const LEASED: Duration = Duration::from_secs(6);
/// How often its holder renews it.
pub const RENEW_EVERY: Duration = Duration::from_secs(2);

/// The lease of one channel for one function.
#[derive(Clone, Debug)]
pub struct ChannelLease {
    key: String,
    holder: String,
}

impl ChannelLease {
    /// The lease as `holder`, an instance of the function, asks for it.
    #[must_use]
    pub fn new(function: &Identity, channel: &str, holder: &str) -> Self {
        let key = format!("cwasi:listen:{}:{}", function.short(), short_hash(&[channel]));
        Self { key, holder: holder.to_owned() }
    }

    /// Takes the lease if no other instance has it; false if one does.
    ///
    /// # Errors
    /// When Redis does not say.
    pub async fn take(&self, session: &RedisSession) -> Result<bool, NetworkError> {
        let mut cmd = redis::cmd("SET");
        cmd.arg(&self.key).arg(&self.holder).arg("NX").arg("PX").arg(milliseconds());
        let set: Option<String> = session.run("SET", &cmd).await?;
        if set.is_some() {
            return Ok(true);
        }
        // It may be ours from before the connection was lost.
        if self.is_ours(session).await? { self.renew(session).await } else { Ok(false) }
    }

    async fn is_ours(&self, session: &RedisSession) -> Result<bool, NetworkError> {
        let mut cmd = redis::cmd("GET");
        cmd.arg(&self.key);
        let holder: Option<String> = session.run("GET", &cmd).await?;
        Ok(holder.as_deref() == Some(&self.holder))
    }

    /// Renews the lease; false if it is not ours any more.
    ///
    /// # Errors
    /// When Redis does not say.
    pub async fn renew(&self, session: &RedisSession) -> Result<bool, NetworkError> {
        // One transaction. If ours has just expired and another has taken it, that one is prolonged, once.
        let mut pipe = redis::pipe();
        pipe.cmd("GET").arg(&self.key).cmd("PEXPIRE").arg(&self.key).arg(milliseconds());
        let (holder, _): (Option<String>, u64) = session.transaction(&mut pipe).await?;
        Ok(holder.as_deref() == Some(&self.holder))
    }

    /// Gives the lease back.
    ///
    /// # Errors
    /// When Redis does not take it; it then expires.
    pub async fn release(&self, session: &RedisSession) -> Result<(), NetworkError> {
        if !self.is_ours(session).await? || !self.renew(session).await? {
            return Ok(());
        }
        let mut cmd = redis::cmd("UNLINK");
        cmd.arg(&self.key);
        session.run::<u64>("UNLINK", &cmd).await.map(drop)
    }
}

fn milliseconds() -> u64 {
    u64::try_from(LEASED.as_millis()).unwrap_or(u64::MAX)
}
