//! Which nodes may call over direct connections: those whose keys are announced in Redis. Who may write there is
//! trusted, as with calls over Redis.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use super::lock;
use cwasi_networked::{RedisLink, nodes};

/// How long an answer of Redis counts. While Redis is away, it counts on.
const BELIEVED: Duration = Duration::from_secs(30);
/// Most nodes; beyond it, all are asked about again.
const NODES_MAX: usize = 4096;

/// Names of nodes by their keys.
#[derive(Debug, Default)]
pub(super) struct KnownNodes(Mutex<HashMap<Vec<u8>, (String, Instant)>>);

impl KnownNodes {
    /// The node with this key.
    ///
    /// # Errors
    /// Why it is not known, for the other side.
    pub(super) async fn of_key(&self, redis: &RedisLink, key: &[u8]) -> Result<String, String> {
        let known = lock(&self.0).get(key).cloned();
        if let Some((node, since)) = &known
            && since.elapsed() < BELIEVED
        {
            return Ok(node.clone());
        }
        let asked = match redis.session_now() {
            Ok(session) => nodes::of_key(&session, key).await,
            Err(error) => Err(error),
        };
        match (asked, known) {
            (Ok(Some(node)), _) => {
                let mut nodes = lock(&self.0);
                if nodes.len() >= NODES_MAX {
                    nodes.clear();
                }
                nodes.insert(key.to_vec(), (node.clone(), Instant::now()));
                Ok(node)
            }
            (Ok(None), _) => {
                lock(&self.0).remove(key);
                Err("no node has announced the caller's key".to_owned())
            }
            (Err(_away), Some((node, _))) => Ok(node),
            (Err(error), None) => Err(format!("the caller's key is not known yet: {error}")),
        }
    }
}
