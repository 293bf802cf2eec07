//! How calls to other hosts travel: over direct connections between shims, or over Redis. Runs in the shim daemon.

use std::net::{Ipv4Addr, SocketAddr};

use serde::{Deserialize, Serialize};

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

/// Checks `link_advertise`.
pub(super) fn check_advertised(address: &str) -> Result<(), String> {
    let port = address.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    let is_valid = port.is_some_and(|(_, port)| port.parse::<u16>().is_ok_and(|port| port > 0));
    let wrong =
        || format!("link_advertise = {address:?} must be HOST:PORT, as other nodes reach it");
    is_valid.then_some(()).ok_or_else(wrong)
}
