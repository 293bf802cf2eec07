//! Direct connections: whether this node's port is open, and whether the other nodes' are reached.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use cwasi_config::NodeConfig;
use cwasi_config::link::LinkMode;
use cwasi_host::network::{Network, node_name};
use tokio::net::TcpStream;

use super::{Checks, State};

const WHAT: &str = "link";
/// Longest attempt to connect to the own port.
const CONNECT_MAX: Duration = Duration::from_secs(1);
/// Most instances that are looked at for their nodes.
const INSTANCES_MAX: usize = 1000;

pub(super) async fn examine(checks: &mut Checks, config: &NodeConfig, network: &Network) {
    if config.link == LinkMode::Redis {
        return checks.add(State::Ok, WHAT, "link = \"redis\": calls to other hosts go over Redis");
    }
    own_port(checks, config).await;
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
                let found = format!("calls to node {node} go over Redis: {why}");
                checks.add(State::Note, WHAT, found);
            }
        }
    }
    if !reached.is_empty() {
        checks.add(State::Ok, WHAT, format!("reaches {}", reached.join(", ")));
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
