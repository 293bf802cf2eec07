//! How a node takes and makes direct connections, from its configuration.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::SystemTime;

use tokio::net::UdpSocket;

use super::super::node_name;
use cwasi_config::NodeConfig;
use cwasi_config::link::{LinkMode, LinkPeer, PeerName};
use cwasi_direct::certificates::{CertificateError, CertificateSettings, end_of};
use cwasi_direct::key::{KeyError, NodeKey, public_of};
use cwasi_direct::tls::{ANY_SHIM, Tls};
use cwasi_networked::RedisTarget;
use cwasi_wire::network::{Link, NodeProof};

/// Folder of the node's shims in its state directory.
const FOLDER: &str = "link";

/// How this node takes and makes direct connections.
#[derive(Clone, Debug)]
pub struct DirectSettings {
    pub tls: Tls,
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
        let peers = config.link_peers.iter().map(|LinkPeer { address, name }| Link {
            address: address.clone(),
            shim: ANY_SHIM.to_owned(),
            proof: match name {
                PeerName::Key(key) => NodeProof::Key(public_of(key)),
                PeerName::Node(node) => NodeProof::Certificate { node: node.clone() },
            },
        });
        Some(Self {
            tls: tls_of(config)?,
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

/// What the node proves on its connections; `None` if it makes none.
fn tls_of(config: &NodeConfig) -> Option<Tls> {
    if let Some(certificate) = certificate_of(config) {
        return Some(Tls::with_certificate(certificate));
    }
    let tls = key_of(config).map_err(|error| error.to_string());
    match tls.and_then(|key| Tls::new(key).map_err(|error| error.to_string())) {
        Ok(tls) => Some(tls),
        // A process of another user than root has none.
        Err(error) if config.link_peers.is_empty() => {
            tracing::info!(error, "no direct connections");
            None
        }
        // There is no other path, so each call says why there is none.
        Err(error) => {
            tracing::error!(error, "link_peers cannot be used: no calls to other nodes");
            Some(Tls::without_proof(error))
        }
    }
}

/// The node's key; the first process makes it.
fn key_of(config: &NodeConfig) -> Result<NodeKey, KeyError> {
    match &config.link_key {
        Some(path) => NodeKey::in_file(path),
        None => NodeKey::of_node(&config.state_dir),
    }
}

fn certificate_of(config: &NodeConfig) -> Option<CertificateSettings> {
    let files = (config.link_ca.clone(), config.link_cert.clone(), config.link_key.clone());
    let (Some(ca), Some(certificate), Some(key)) = files else { return None };
    Some(CertificateSettings { ca, certificate, key, node: node_name(&config.node) })
}

/// When the node's certificate ends; `None` if it proves a key.
///
/// # Errors
/// When it has a certificate that cannot be used now.
pub fn link_end(config: &NodeConfig) -> Result<Option<SystemTime>, CertificateError> {
    certificate_of(config).as_ref().map(end_of).transpose()
}

/// What other nodes without Redis write into their `link_peers` for this one. Makes its key, if there is none.
///
/// # Errors
/// When its key cannot be used.
pub fn link_entry(config: &NodeConfig) -> Result<String, KeyError> {
    let (node, port) = (node_name(&config.node), config.link_listen.port());
    let address = match &config.link_advertise {
        Some(address) => address.clone(),
        None if config.link_listen.ip().is_unspecified() => format!("{node}:{port}"),
        None => config.link_listen.to_string(),
    };
    let name = match config.link_ca {
        Some(_) => node,
        None => hex::encode(key_of(config)?.raw()),
    };
    Ok(format!("{address}#{name}"))
}
