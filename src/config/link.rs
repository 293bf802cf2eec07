//! How calls to other hosts travel: over direct connections between shims, or over Redis. Runs in the shim daemon.

use std::net::{Ipv4Addr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::NodeConfig;

/// TCP port of a node without `link_listen`.
pub const LINK_PORT: u16 = 9470;
/// Address on which a node listens without `link_listen`.
pub const LINK_LISTEN: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), LINK_PORT);

/// Path of calls in the mode `networked`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkMode {
    /// Direct where both nodes offer it and a connection comes up, otherwise over Redis.
    #[default]
    Auto,
    /// Direct, or not at all.
    Direct,
    /// Over Redis. The node takes no direct connections.
    Redis,
}

/// What an entry of `link_peers` has to be.
const PEER_FORM: &str =
    "must be HOST:PORT#KEY, or HOST:PORT#NODE with link_ca: `cwasi doctor` on that node says it";
/// Most `link_peers`: each of them is asked for each name.
const PEERS_MAX: usize = 32;

/// A node that is reached without Redis: `HOST:PORT#KEY`, or with `link_ca` `HOST:PORT#NODE`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct LinkPeer {
    /// `host:port`.
    pub address: String,
    pub name: PeerName,
}

/// What that node has to prove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerName {
    /// Its public key (Ed25519).
    Key([u8; 32]),
    /// Its name (`node`), by a certificate. No name has 64 digits without a dot: it would be no DNS name.
    Node(String),
}

impl TryFrom<String> for LinkPeer {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let parts = text.split_once('#');
        let Some((address, name)) =
            parts.filter(|(address, name)| is_address(address) && !name.is_empty())
        else {
            return Err(format!("link_peers has {text:?}, which {PEER_FORM}"));
        };
        let mut key = [0; 32];
        let name = match hex::decode_to_slice(name, &mut key) {
            Ok(()) => PeerName::Key(key),
            Err(_) => PeerName::Node(name.to_owned()),
        };
        Ok(Self { address: address.to_owned(), name })
    }
}

impl From<LinkPeer> for String {
    fn from(LinkPeer { address, name }: LinkPeer) -> Self {
        match name {
            PeerName::Key(key) => format!("{address}#{}", hex::encode(key)),
            PeerName::Node(node) => format!("{address}#{node}"),
        }
    }
}

fn is_address(address: &str) -> bool {
    let port = address.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    port.is_some_and(|(_, port)| port.parse::<u16>().is_ok_and(|port| port > 0))
}

/// Checks the settings of direct connections.
pub(super) fn check(config: &NodeConfig) -> Result<(), String> {
    if let Some(address) = config.link_advertise.as_deref().filter(|it| !is_address(it)) {
        let wrong = "must be HOST:PORT, as other nodes reach it";
        return Err(format!("link_advertise = {address:?} {wrong}"));
    }
    let NodeConfig { link_ca, link_cert, link_key, .. } = config;
    for (setting, path) in [("link_ca", link_ca), ("link_cert", link_cert), ("link_key", link_key)]
    {
        if let Some(path) = path.as_ref().filter(|path| !path.is_absolute()) {
            return Err(format!("{setting} = {} must be an absolute path", path.display()));
        }
    }
    if link_ca.is_some() != link_cert.is_some() || (link_ca.is_some() && link_key.is_none()) {
        return Err("link_ca and link_cert need each other, and link_key".to_owned());
    }
    let is_other = |peer: &&LinkPeer| link_ca.is_some() == matches!(peer.name, PeerName::Key(_));
    if let Some(peer) = config.link_peers.iter().find(is_other) {
        let entry = String::from(peer.clone());
        return Err(format!("link_peers has {entry:?}, which {PEER_FORM}"));
    }
    if config.link_peers.is_empty() {
        return Ok(());
    }
    let wrong = if config.redis_url.is_some() {
        "link_peers is for nodes without redis_url: with it, nodes find each other in Redis"
    } else if config.link == LinkMode::Redis {
        "link_peers needs direct connections: remove link = \"redis\""
    } else if config.link_key.is_none() {
        "link_peers needs link_key: a file on a disk, such as \"/etc/cwasi/link.key\", so that the node keeps its key"
    } else if config.link_peers.len() > PEERS_MAX {
        "link_peers has more than 32 nodes: use redis_url"
    } else {
        return Ok(());
    };
    Err(wrong.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_need_a_key_that_stays_and_no_redis() {
        let peer = format!("edge:9470#{}", "0a".repeat(32));
        let load = |more: &str| {
            let body = format!("link_peers = [{peer:?}]\n{more}");
            NodeConfig::load(Some(&body), None)
        };
        let key = "link_key = \"/etc/cwasi/link.key\"";
        let config = load(key).unwrap();
        let name = PeerName::Key([10; 32]);
        let expected = LinkPeer { address: "edge:9470".to_owned(), name };
        assert_eq!(config.link_peers, [expected]);
        assert_eq!(String::from(config.link_peers[0].clone()), peer);
        for (more, part) in [
            (String::new(), "link_peers needs link_key"),
            (format!("{key}\nlink = \"redis\""), "link_peers needs direct connections"),
            (format!("{key}\nredis_url = \"redis://h\""), "for nodes without redis_url"),
        ] {
            let error = load(&more).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_certificate_needs_its_authority_and_its_key() {
        let files = "link_ca = \"/ca.pem\"\nlink_cert = \"/c.pem\"\nlink_key = \"/k.pem\"";
        let load = |body: &str| NodeConfig::load(Some(body), None);
        let config = load(&format!("{files}\nlink_peers = [\"10.0.0.7:9470#cloud\"]")).unwrap();
        assert_eq!(config.link_peers[0].name, PeerName::Node("cloud".to_owned()));
        assert_eq!(String::from(config.link_peers[0].clone()), "10.0.0.7:9470#cloud");
        for missing in 0..3 {
            let lines = files.lines().enumerate().filter(|(line, _)| *line != missing);
            let body: String = lines.map(|(_, line)| format!("{line}\n")).collect();
            let error = load(&body).unwrap_err().to_string();
            assert!(
                error.contains("link_ca and link_cert need each other, and link_key"),
                "{error}"
            );
        }
        for (name, files) in
            [("cloud".to_owned(), "link_key = \"/k.pem\""), ("0a".repeat(32), files)]
        {
            let error = load(&format!("{files}\nlink_peers = [\"e:9470#{name}\"]")).unwrap_err();
            assert!(
                error.to_string().contains("must be HOST:PORT#KEY, or HOST:PORT#NODE with link_ca")
            );
        }
    }
}
