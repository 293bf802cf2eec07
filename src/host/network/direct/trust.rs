//! Which nodes may call over direct connections: those whose keys are announced in Redis, or, without Redis, those of
//! `link_peers`. Who may write into Redis is trusted, as with calls over Redis.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use super::super::refresh::{Background, LookUp};
use super::{Direct, lock};
use cwasi_networked::{NetworkError, RedisLink, nodes};

/// How long an answer of Redis counts. While Redis is away, it counts on.
const BELIEVED: Duration = Duration::from_secs(30);
/// After this long, Redis is worth a short wait.
const OLD: Duration = Duration::from_secs(60);
/// Longest wait for Redis when a node is known from before.
const OLD_MAX: Duration = Duration::from_millis(250);
/// Most nodes; beyond it, all are asked about again.
const NODES_MAX: usize = 4096;

#[derive(Debug)]
struct KnownNode {
    name: String,
    since: Instant,
    background: Background,
}

/// Names of nodes by their keys; clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownNodes(Arc<Mutex<HashMap<Vec<u8>, KnownNode>>>);

impl Direct {
    /// The name of the node with this key; `None` for a node of `link_peers`, whose configuration says its name.
    ///
    /// # Errors
    /// Why it may not call, for the other side.
    pub(super) async fn node_of(
        &self,
        redis: &RedisLink,
        key: &[u8],
    ) -> Result<Option<String>, String> {
        if !self.has_peers() {
            return self.nodes.of_key(redis, key).await.map(Some);
        }
        let is_peer = self.settings.peers.iter().any(|peer| peer.key == key);
        is_peer.then_some(None).ok_or_else(|| "the caller's key is not in link_peers".to_owned())
    }
}

impl KnownNodes {
    /// The node with this key. One that is known is looked up again in the background, so that a Redis that hangs
    /// delays no call of it.
    ///
    /// # Errors
    /// Why it is not known, for the other side.
    pub(super) async fn of_key(&self, redis: &RedisLink, key: &[u8]) -> Result<String, String> {
        if let Some((name, look_up)) = self.known(redis, key) {
            let Some((look_up, patience)) = look_up else { return Ok(name) };
            if !look_up.ends_within(patience).await {
                return Ok(name);
            }
        } else {
            let asked = self.ask(redis, key).await;
            asked.map_err(|error| format!("the caller's key is not known yet: {error}"))?;
        }
        let found = lock(&self.0).get(key).map(|node| node.name.clone());
        found.ok_or_else(|| "no node has announced the caller's key".to_owned())
    }

    /// What is known of this key, and its look-up with the longest wait for it, if that is due.
    fn known(&self, redis: &RedisLink, key: &[u8]) -> Option<(String, Option<(LookUp, Duration)>)> {
        let mut nodes = lock(&self.0);
        let node = nodes.get_mut(key)?;
        let (name, age) = (node.name.clone(), node.since.elapsed());
        if age < BELIEVED {
            return Some((name, None));
        }
        let patience = if age < OLD { Duration::ZERO } else { OLD_MAX };
        let (known, redis, key) = (self.clone(), redis.clone(), key.to_vec());
        let look_up = node.background.begin(async move {
            if let Err(error) = known.ask(&redis, &key).await {
                tracing::debug!(%error, "a node's key is not looked up");
            }
        });
        Some((name, Some((look_up, patience))))
    }

    /// Asks Redis, and keeps what it says.
    async fn ask(&self, redis: &RedisLink, key: &[u8]) -> Result<(), NetworkError> {
        let session = redis.session_now()?;
        let name = tokio::select! {
            asked = nodes::of_key(&session, key) => asked?,
            reason = redis.ended(session.epoch) => return Err(NetworkError::Away { reason }),
        };
        let mut nodes = lock(&self.0);
        let Some(name) = name else {
            nodes.remove(key);
            return Ok(());
        };
        if nodes.len() >= NODES_MAX {
            nodes.clear();
        }
        let since = Instant::now();
        match nodes.get_mut(key) {
            // Its look-up may be this one.
            Some(node) => (node.name, node.since) = (name, since),
            None => {
                let background = Background::default();
                nodes.insert(key.to_vec(), KnownNode { name, since, background });
            }
        }
        Ok(())
    }
}
