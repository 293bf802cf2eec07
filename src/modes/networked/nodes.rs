//! The keys of nodes, which their shims announce: who has a key here may call over direct connections.

use std::time::Duration;

use super::error::NetworkError;
use super::session::RedisSession;

/// How often a shim announces its node's key.
pub const HEARTBEAT: Duration = Duration::from_secs(20);
/// How long it is valid without that.
const BELIEVED: Duration = Duration::from_secs(60);
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
/// When Redis does not say.
pub async fn of_key(session: &RedisSession, key: &[u8]) -> Result<Option<String>, NetworkError> {
    if key.len() > KEY_MAX {
        return Ok(None);
    }
    let mut cmd = redis::cmd("GET");
    cmd.arg(node_key(key));
    session.run("GET", &cmd).await
}
