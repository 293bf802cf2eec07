//! How a node takes and makes direct connections, from its configuration.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use tokio::net::UdpSocket;

use super::super::node_name;
use cwasi_config::NodeConfig;
use cwasi_config::link::{LinkMode, LinkPeer};
use cwasi_direct::key::{KeyError, NodeKey, public_of};
use cwasi_direct::tls::ANY_SHIM;
use cwasi_networked::RedisTarget;
use cwasi_wire::network::Link;

/// Folder of the node's shims in its state directory.
const FOLDER: &str = "link";

/// How this node takes and makes direct connections.
#[derive(Clone, Debug)]
pub struct DirectSettings {
    pub key: NodeKey,
    /// Address and port on which it listens.
    pub listen: SocketAddr,
    /// `host:port` that others connect to; `None` = the address from which this host reaches `redis`.
    pub advertise: Option<String>,
    /// Host and port of Redis.
    pub redis: Option<(String, u16)>,
    /// Folder in which the node's shims find each other.
    pub dir: PathBuf,
    /// Calls do not go over Redis, also if there is no connection.
    pub always: bool,
    /// Any shim of each node that is asked in place of Redis; empty with Redis.
    pub peers: Vec<Link>,
}

impl DirectSettings {
    /// Those of the node's configuration; `None` if its calls go over Redis.
    pub(in super::super) fn of_node(
        config: &NodeConfig,
        redis: Option<&RedisTarget>,
    ) -> Option<Self> {
        if config.link == LinkMode::Redis {
            return None;
        }
        let unusable = |error| {
            if config.link_peers.is_empty() {
                // A process of another user than root has none.
                tracing::info!(%error, "no direct connections");
            } else {
                tracing::error!(%error, "link_peers cannot be used: no calls to other nodes");
            }
        };
        let peers = config.link_peers.iter().map(|LinkPeer { address, key }| Link {
            address: address.clone(),
            shim: ANY_SHIM.to_owned(),
            key: public_of(key),
        });
        Some(Self {
            key: key_of(config).map_err(unusable).ok()?,
            listen: config.link_listen,
            advertise: config.link_advertise.clone(),
            redis: redis.and_then(RedisTarget::host_and_port),
            dir: config.state_dir.join(FOLDER),
            always: config.link == LinkMode::Direct || redis.is_none(),
            peers: peers.collect(),
        })
    }

    /// Where others reach this node.
    pub(super) async fn address(&self) -> io::Result<String> {
        if let Some(address) = &self.advertise {
            return Ok(address.clone());
        }
        // Nodes of `link_peers` know it.
        if !self.listen.ip().is_unspecified() || !self.peers.is_empty() {
            return Ok(self.listen.to_string());
        }
        let Some((host, port)) = &self.redis else {
            return Err(io::Error::other("link_advertise is not set"));
        };
        // Nothing is sent: the system says which address it would use.
        let mut found = Err(io::ErrorKind::AddrNotAvailable.into());
        for any in [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)] {
            let socket = UdpSocket::bind((any, 0)).await?;
            found = match socket.connect((host.as_str(), *port)).await {
                Ok(()) => {
                    return Ok(
                        SocketAddr::new(socket.local_addr()?.ip(), self.listen.port()).to_string()
                    );
                }
                Err(error) => Err(error),
            };
        }
        found
    }
}

/// The node's key; the first process makes it.
fn key_of(config: &NodeConfig) -> Result<NodeKey, KeyError> {
    match &config.link_key {
        Some(path) => NodeKey::in_file(path),
        None => NodeKey::of_node(&config.state_dir),
    }
}

/// What other nodes without Redis write into their `link_peers` for this one. Makes its key, if there is none.
///
/// # Errors
/// When its key cannot be used.
pub fn link_entry(config: &NodeConfig) -> Result<String, KeyError> {
    let (key, port) = (key_of(config)?, config.link_listen.port());
    let address = match &config.link_advertise {
        Some(address) => address.clone(),
        None if config.link_listen.ip().is_unspecified() => {
            format!("{}:{port}", node_name(&config.node))
        }
        None => config.link_listen.to_string(),
    };
    Ok(format!("{address}#{}", hex::encode(key.raw())))
}
