//! The keys of nodes, which their shims announce: who has a key here may call over direct connections.

use std::time::Duration;

use super::error::NetworkError;
use super::locations;
use super::session::RedisSession;

/// How often a shim announces its node's key.
pub const HEARTBEAT: Duration = Duration::from_secs(20);
/// How long it is valid without that.
const BELIEVED: Duration = Duration::from_secs(60);
/// After this long, every shim has announced its node's key again to a Redis that lost its data. A shim that connects
/// does so at once.
const ANNOUNCED_AGAIN: Duration =
    Duration::from_secs(HEARTBEAT.as_secs() + locations::ANNOUNCED_AGAIN.as_secs());
/// Longest public key in bytes.
const KEY_MAX: usize = 256;

fn node_key(key: &[u8]) -> String {
    format!("cwasi:node:{}", hex::encode(key))
}

/// Announces the public key of the node with this name.
///
/// # Errors
/// When Redis does not take it.
pub async fn announce(session: &RedisSession, key: &[u8], node: &str) -> Result<(), NetworkError> {
    let mut cmd = redis::cmd("SET");
    cmd.arg(node_key(key)).arg(node).arg("PX").arg(BELIEVED.as_millis() as u64);
    session.run("SET", &cmd).await
}

/// The name of the node with this public key.
///
/// # Errors
/// When Redis does not say. [`NetworkError::Returning`] while the key may be announced again.
pub async fn of_key(session: &RedisSession, key: &[u8]) -> Result<Option<String>, NetworkError> {
    if key.len() > KEY_MAX {
        return Ok(None);
    }
    let mut cmd = redis::cmd("GET");
    cmd.arg(node_key(key));
    let name: Option<String> = session.run("GET", &cmd).await?;
    if name.is_none() && is_returning(session).await? {
        return Err(NetworkError::Returning);
    }
    Ok(name)
}

/// True while keys that nodes had announced may be missing: they expired while Redis was away, or it lost its data.
async fn is_returning(session: &RedisSession) -> Result<bool, NetworkError> {
    let is_back = !session.is_first() && session.since.elapsed() < locations::ANNOUNCED_AGAIN;
    Ok(is_back || locations::age(session).await? < ANNOUNCED_AGAIN)
}
