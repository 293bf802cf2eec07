//! Which nodes may call over direct connections: those whose keys are announced in Redis, or that have a certificate of
//! the node's authority; without Redis, those of `link_peers`. Who may write into Redis is trusted, as with calls over
//! Redis.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use super::super::refresh::{Background, LookUp};
use super::{Direct, lock};
use cwasi_direct::tls::Proven;
use cwasi_networked::{NetworkError, RedisLink, nodes};
use cwasi_wire::network::{Link, NodeProof};

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

/// The node at the other end of a connection.
#[derive(Clone, Debug)]
pub(super) enum PeerNode {
    /// Redis says whose key it has proved.
    Named(String),
    /// Our configuration lists its key, and no name.
    Listed,
    /// It has proved a certificate.
    Certified(Proven),
}

impl PeerNode {
    /// Checks that a call that says to come from this node does.
    ///
    /// # Errors
    /// What is wrong, for the caller.
    pub(super) fn is(&self, node: &str) -> Result<(), String> {
        match self {
            Self::Named(name) if name != node => {
                Err(format!("a call of node {node} came from node {name}"))
            }
            Self::Certified(proven) if !proven.is_certified(node) => {
                Err(format!("a call of node {node} came with a certificate of another node"))
            }
            Self::Named(_) | Self::Listed | Self::Certified(_) => Ok(()),
        }
    }
}

fn not_listed(what: &str) -> String {
    format!("the caller's {what} is not in link_peers")
}

impl Direct {
    /// The node that has proved this. Its calls have to name it ([`PeerNode::is`]).
    ///
    /// # Errors
    /// Why it may not call, for the other side.
    pub(super) async fn node_of(
        &self,
        redis: &RedisLink,
        proven: &Proven,
    ) -> Result<PeerNode, String> {
        match proven {
            Proven::Key(key) if !self.has_peers() => {
                self.nodes.of_key(redis, key).await.map(PeerNode::Named)
            }
            Proven::Key(key) => {
                let is_listed =
                    |peer: &Link| matches!(&peer.proof, NodeProof::Key(it) if it == key);
                let is_peer = self.settings.peers.iter().any(is_listed);
                is_peer.then_some(PeerNode::Listed).ok_or_else(|| not_listed("key"))
            }
            Proven::Certificate(_) if !self.has_peers() => Ok(PeerNode::Certified(proven.clone())),
            Proven::Certificate(_) => {
                let is_listed = |peer: &Link| match &peer.proof {
                    NodeProof::Certificate { node } => proven.is_certified(node),
                    NodeProof::Key(_) => false,
                };
                let is_peer = self.settings.peers.iter().any(is_listed);
                let certified = || PeerNode::Certified(proven.clone());
                is_peer.then(certified).ok_or_else(|| not_listed("certificate"))
            }
        }
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
