//! The directory of nodes without Redis: a shim asks each node of `link_peers` which instances of a function it has,
//! and any shim of that node answers from the node's registry. Runs in the shim daemon.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, timeout_at};

use super::super::{Inner, Network};
use super::Direct;
use cwasi_coordinator::registry::Record;
use cwasi_direct::connection::{ConnectionError, Kind, read_message, write_message};
use cwasi_direct::peers::{Lease, PeerError};
use cwasi_direct::tls::{server_name, shim_of};
use cwasi_networked::NetworkError;
use cwasi_networked::locations::INSTANCES_MAX;
use cwasi_wire::ids::Identity;
use cwasi_wire::network::{Link, Location, LocationList, NodeProof, Question, decode, encode};

/// Longest wait for the answer of a node.
const ASK_MAX: Duration = Duration::from_secs(2);

impl Direct {
    /// The instances of a function on the nodes of `link_peers`, in order of their ids.
    pub(in super::super) async fn look_up(
        &self,
        callee: &Identity,
    ) -> Result<Vec<Location>, NetworkError> {
        let asked = self.settings.peers.iter().map(|peer| self.ask(peer, callee));
        let (mut found, mut failed) = (Vec::new(), None);
        for answer in join_all(asked).await {
            match answer {
                Ok(locations) => found.extend(locations),
                // The machine is there, and has no function that others can call.
                Err(error @ PeerError::Closed { .. }) => tracing::debug!(%error, "no instances"),
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) if found.is_empty() => {
                Err(NetworkError::Peer { reason: error.to_string() })
            }
            _ => {
                found.sort_by(|one, other| one.instance.cmp(&other.instance));
                found.truncate(INSTANCES_MAX);
                Ok(found)
            }
        }
    }

    /// Asks one node.
    async fn ask(&self, peer: &Link, callee: &Identity) -> Result<Vec<Location>, PeerError> {
        let until = Instant::now() + ASK_MAX;
        let lease = self.peers.take(peer, until, true).await?;
        let asked = self.ask_on(lease, peer, callee, until).await;
        let listed = match asked {
            Ok(listed) => listed,
            // The shim that was asked before may just have ended.
            Err(_) => {
                let lease = self.peers.take_new(peer, until).await?;
                let failed = |reason: String| {
                    let address = peer.address.clone();
                    PeerError::Shim { address, reason }
                };
                self.ask_on(lease, peer, callee, until).await.map_err(failed)?
            }
        };
        let ours = listed.into_locations().filter(|location| location.identity == *callee);
        Ok(ours.filter_map(|location| reached_at(peer, location)).collect())
    }

    async fn ask_on(
        &self,
        mut lease: Lease,
        peer: &Link,
        callee: &Identity,
        until: Instant,
    ) -> Result<LocationList, String> {
        let question = encode(&Question::about(callee));
        let asking = async {
            write_message(&mut lease.stream, Kind::Question, &question).await?;
            read_message(&mut lease.stream).await
        };
        let answer = match timeout_at(until, asking).await {
            Ok(answer) => answer.map_err(|error| error.to_string())?,
            Err(_elapsed) => return Err("it does not answer a question".to_owned()),
        };
        match answer {
            Some((Kind::Locations, message)) => {
                self.peers.put_back(peer, lease);
                decode(&message).map_err(|error| error.to_string())
            }
            Some((Kind::Refusal, reason)) => Err(String::from_utf8_lossy(&reason).into_owned()),
            Some((kind, _)) => Err(format!("it answers a question with {kind:?}")),
            None => Err("it has ended".to_owned()),
        }
    }
}

/// A location of this node, at the address and with the proof that the configuration says.
fn reached_at(peer: &Link, location: Location) -> Option<Location> {
    let shim = location.link?.shim;
    shim_of(&server_name(&shim))?;
    // Its errors and metrics would name another node.
    if let NodeProof::Certificate { node } = &peer.proof
        && *node != location.node
    {
        return None;
    }
    let link = Link { shim, ..peer.clone() };
    Some(Location { link: Some(Box::new(link)), ..location })
}

impl Inner {
    /// The answer to a question of another node.
    pub(super) async fn answer_question(&self, message: &[u8]) -> Result<Vec<u8>, ConnectionError> {
        let unexpected = |error: &dyn std::error::Error| ConnectionError::Unexpected {
            what: format!("a question: {error}"),
        };
        let question: Question = decode(message).map_err(|error| unexpected(&error))?;
        let (registry, identity) = (self.registry.clone(), question.identity());
        // It reads files.
        let found = tokio::task::spawn_blocking(move || registry.instances(&identity)).await;
        let found = found.map_err(|error| unexpected(&error))?;
        let records = found.map_err(|error| unexpected(&error))?;
        let linked = records.into_iter().filter(|record| !record.link.is_empty());
        let locations: Vec<_> = linked.map(|record| self.location_of(record)).collect();
        Ok(encode(&LocationList::of(&locations)))
    }

    /// The node that asks knows the address and the proof.
    fn location_of(&self, record: Record) -> Location {
        let proof = NodeProof::Certificate { node: self.node.clone() };
        let link = Link { address: String::new(), shim: record.link, proof };
        Location {
            identity: record.identity,
            node: self.node.clone(),
            instance: record.instance,
            allow: record.allow,
            max_payload: record.max_payload,
            max_head: record.max_head,
            http: record.http,
            link: Some(Box::new(link)),
        }
    }
}

impl Network {
    /// The nodes of `link_peers`, and whether they answer.
    pub async fn examine_peers(&self) -> Vec<(String, Result<(), PeerError>)> {
        let Some(direct) = &self.inner.direct else { return Vec::new() };
        let absent = Identity {
            namespace: "cwasi".into(),
            pod_namespace: String::new(),
            function: "doctor".into(),
        };
        let asked = direct.settings.peers.iter().map(|peer| async {
            let answer = direct.ask(peer, &absent).await;
            (peer.address.clone(), answer.map(drop))
        });
        join_all(asked).await
    }
}
