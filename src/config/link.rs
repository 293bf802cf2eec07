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

/// Most `link_peers`: each of them is asked for each name.
const PEERS_MAX: usize = 32;

/// A node that is reached without Redis: `HOST:PORT#KEY`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct LinkPeer {
    /// `host:port`.
    pub address: String,
    /// Its public key (Ed25519).
    pub key: [u8; 32],
}

impl TryFrom<String> for LinkPeer {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let read = || {
            let (address, digits) = text.split_once('#').filter(|(it, _)| is_address(it))?;
            let mut key = [0; 32];
            hex::decode_to_slice(digits, &mut key).ok()?;
            Some(Self { address: address.to_owned(), key })
        };
        let wrong = || {
            format!(
                "link_peers has {text:?}, which must be HOST:PORT#KEY: `cwasi doctor` on that node says it"
            )
        };
        read().ok_or_else(wrong)
    }
}

impl From<LinkPeer> for String {
    fn from(LinkPeer { address, key }: LinkPeer) -> Self {
        format!("{address}#{}", hex::encode(key))
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
    if let Some(path) = config.link_key.as_ref().filter(|path| !path.is_absolute()) {
        return Err(format!("link_key = {} must be an absolute path", path.display()));
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
        let expected = LinkPeer { address: "edge:9470".to_owned(), key: [10; 32] };
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
}
