//! Direct connections: whether this node's port is open, and whether the other nodes' are reached.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, SystemTime};

use cwasi_config::NodeConfig;
use cwasi_config::link::LinkMode;
use cwasi_host::network::{Network, PeerError, link_end, link_entry, node_name};
use tokio::net::TcpStream;

use super::{Checks, State};

const WHAT: &str = "link";
/// Longest attempt to connect to the own port.
const CONNECT_MAX: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// A certificate that ends earlier is worth a note.
const RENEW_WITHIN: Duration = Duration::from_secs(14 * 24 * 60 * 60);
/// Most instances that are looked at for their nodes.
const INSTANCES_MAX: usize = 1000;

pub(super) async fn examine(checks: &mut Checks, config: &NodeConfig, network: &Network) {
    if config.link == LinkMode::Redis {
        return checks.add(State::Ok, WHAT, "link = \"redis\": calls to other hosts go over Redis");
    }
    own_port(checks, config).await;
    own_proof(checks, config);
    own_entry(checks, config);
    if !network.has_redis() {
        return peers(checks, network).await;
    }
    // Redis has a check of its own.
    let Ok(locations) = network.all_locations(INSTANCES_MAX).await else { return };
    let own = node_name(&config.node);
    // One instance of each other node.
    let others: BTreeMap<_, _> =
        locations.iter().filter(|it| it.node != own).map(|it| (it.node.as_str(), it)).collect();
    let mut reached = Vec::new();
    for (node, location) in others {
        match network.probe(location).await {
            Ok(()) => reached.push(node),
            Err(why) => {
                let found = format!("calls to node {node}: {}", network.instead(&why));
                checks.add(State::Note, WHAT, found);
            }
        }
    }
    if !reached.is_empty() {
        checks.add(State::Ok, WHAT, format!("reaches {}", reached.join(", ")));
    }
}

/// What the node proves itself by, and for how long.
pub(super) fn own_proof(checks: &mut Checks, config: &NodeConfig) {
    let (state, found) = match link_end(config) {
        Ok(None) => (State::Ok, "proves this node by its key (no link_ca)".to_owned()),
        Ok(Some(end)) => {
            let until = humantime::format_rfc3339_seconds(end);
            let left = end.duration_since(SystemTime::now()).unwrap_or_default();
            let found = format!("proves this node by link_cert, until {until}");
            if left < RENEW_WITHIN {
                let days = left.as_secs() / DAY.as_secs();
                (State::Note, format!("{found}: renew it, {days} days are left"))
            } else {
                (State::Ok, found)
            }
        }
        Err(error) => (State::Fault, error.to_string()),
    };
    checks.add(state, WHAT, found);
}

/// What other nodes need to reach this one without Redis. Only a key that is to stay is worth it.
pub(super) fn own_entry(checks: &mut Checks, config: &NodeConfig) {
    if config.link_key.is_none() {
        return;
    }
    match link_entry(config) {
        Ok(entry) => {
            checks.add(State::Ok, WHAT, format!("in link_peers of other nodes: \"{entry}\""));
        }
        Err(error) => checks.add(State::Fault, WHAT, error.to_string()),
    }
}

async fn peers(checks: &mut Checks, network: &Network) {
    for (address, answer) in network.examine_peers().await {
        match answer {
            Ok(()) => checks.add(State::Ok, WHAT, format!("{address} answers")),
            Err(error @ PeerError::Closed { .. }) => {
                let found =
                    format!("{error}: it has no function that others can call, or no cwasi");
                checks.add(State::Note, WHAT, found);
            }
            Err(error) => checks.add(State::Fault, WHAT, error.to_string()),
        }
    }
}

async fn own_port(checks: &mut Checks, config: &NodeConfig) {
    let listen = config.link_listen;
    let own = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let connecting = TcpStream::connect(SocketAddr::new(own, listen.port()));
    match tokio::time::timeout(CONNECT_MAX, connecting).await {
        Ok(Ok(_)) => checks.add(
            State::Ok,
            WHAT,
            format!("listens on {listen}; other nodes need this TCP port open"),
        ),
        Ok(Err(_)) | Err(_) => checks.add(
            State::Note,
            WHAT,
            format!(
                "nobody listens on {listen}: it opens with the first function that others can call"
            ),
        ),
    }
}
