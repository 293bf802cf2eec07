//! The rules of `cwasi.network`: allowed destinations, and the socket functions that need the annotation. Used by
//! shim daemon and workers. Pure.
//!
//! Entries name addresses, networks or host names, each with a port. Those with `!` deny, whatever the others allow.
//! This file decides about names and about addresses; the resolver maps names to addresses (`vm::sockets`).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net};
use serde::{Deserialize, Serialize};

/// Names of hosts, in a container.
pub const HOSTS_FILE: &str = "/etc/hosts";
/// Name servers, in a container.
pub const RESOLVER_FILE: &str = "/etc/resolv.conf";
/// Most entries of one function.
pub const ENTRIES_MAX: usize = 64;
/// Longest host name in bytes.
pub const HOST_NAME_MAX: usize = 253;
/// Longest part of a host name in bytes.
const LABEL_MAX: usize = 63;

/// The socket functions of WASI preview 1. They act on sockets that a guest has, and a guest without
/// [`SOCKET_EXTENSIONS`] has none: any module may import them.
pub const SOCKET_FUNCTIONS: [(&str, &[u32]); 4] =
    [("sock_accept", &[3]), ("sock_recv", &[6]), ("sock_send", &[5]), ("sock_shutdown", &[2])];

/// The engine's own socket functions, with the numbers of `i32` parameters that they have; two numbers are two
/// versions. The engine takes a function of another type for the newer version and reads parameters that the guest did
/// not pass, so no other type may come through.
pub const SOCKET_EXTENSIONS: [(&str, &[u32]); 23] = [
    ("sock_open", &[3]),
    ("sock_open_v2", &[3]),
    ("sock_bind", &[3]),
    ("sock_bind_v2", &[3]),
    ("sock_connect", &[3]),
    ("sock_connect_v2", &[3]),
    ("sock_listen", &[2]),
    ("sock_listen_v2", &[2]),
    ("sock_accept", &[2]),
    ("sock_accept_v2", &[3]),
    ("sock_recv_v2", &[6]),
    ("sock_recv_from", &[7, 8]),
    ("sock_recv_from_v2", &[8]),
    ("sock_send_v2", &[5]),
    ("sock_send_to", &[7]),
    ("sock_send_to_v2", &[7]),
    ("sock_getsockopt", &[5]),
    ("sock_setsockopt", &[5]),
    ("sock_getlocaladdr", &[4, 3]),
    ("sock_getlocaladdr_v2", &[3]),
    ("sock_getpeeraddr", &[4, 3]),
    ("sock_getpeeraddr_v2", &[3]),
    ("sock_getaddrinfo", &[8]),
];

/// Whether a function of WASI by this name has to do with sockets.
#[must_use]
pub fn is_socket_function(name: &str) -> bool {
    name.starts_with("sock_")
}

/// Whether a module that imports a function by this name needs `cwasi.network`.
#[must_use]
pub fn needs_egress(name: &str) -> bool {
    is_socket_function(name) && !SOCKET_FUNCTIONS.iter().any(|(known, _)| *known == name)
}

/// Where a function may connect and send to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Egress {
    /// The allowed destinations; all others are refused.
    pub entries: Vec<EgressEntry>,
    /// `/etc/hosts` of the container is a mount, and not a file of the image.
    pub trusts_hosts: bool,
    /// `/etc/resolv.conf` likewise.
    pub trusts_resolver: bool,
}

impl Egress {
    /// Whether an address may be reached, whatever its name.
    #[must_use]
    pub fn allows_address(&self, address: IpAddr, port: u16) -> bool {
        let mut allowing = self.allowing();
        !self.denies(address, port)
            && allowing.any(|entry| entry.ports.has(port) && entry.host.has_address(address))
    }

    /// Whether an address may not be reached, by whatever name.
    #[must_use]
    pub fn denies(&self, address: IpAddr, port: u16) -> bool {
        let mut denying = self.entries.iter().filter(|entry| entry.denies);
        denying.any(|entry| entry.ports.has(port) && entry.host.has_address(address))
    }

    fn allowing(&self) -> impl Iterator<Item = &EgressEntry> {
        self.entries.iter().filter(|entry| !entry.denies)
    }

    /// Whether the addresses of a name may be reached on this port, but for those that [`Self::denies`] names.
    #[must_use]
    pub fn allows_name(&self, name: &str, port: u16) -> bool {
        self.allowing().any(|entry| entry.ports.has(port) && entry.host.has_name(name))
    }

    /// Whether a name may be looked up: some port of it may be reached.
    #[must_use]
    pub fn may_look_up(&self, name: &str) -> bool {
        self.allowing().any(|entry| entry.host.has_name(name))
    }

    /// Whether an entry covers the address by address, on whatever port.
    #[must_use]
    pub fn covers_address(&self, address: IpAddr) -> bool {
        self.allowing().any(|entry| entry.host.has_address(address))
    }
}

/// One destination: `host:port`, or `!address:port`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EgressEntry {
    /// True if it takes away what other entries allow.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub denies: bool,
    pub host: EgressHost,
    /// Which of their ports.
    pub ports: Ports,
}

/// Hosts of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EgressHost {
    /// `*`: all names and addresses.
    Any,
    /// A name in lower case.
    Name(String),
    /// `*.domain`: every name that ends with a dot and this one, but not this one.
    Below(String),
    /// One address, or the addresses of a network.
    Network(IpNet),
}

/// Ports of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ports {
    /// `*`
    Any,
    One(u16),
}

impl EgressHost {
    fn has_address(&self, address: IpAddr) -> bool {
        match self {
            Self::Any => true,
            Self::Network(network) => network.contains(&address.to_canonical()),
            Self::Name(_) | Self::Below(_) => false,
        }
    }

    fn has_name(&self, name: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Name(allowed) => allowed == name,
            Self::Below(domain) => name
                .strip_suffix(domain)
                .and_then(|rest| rest.strip_suffix('.'))
                .is_some_and(|rest| !rest.is_empty()),
            Self::Network(_) => false,
        }
    }
}

impl Ports {
    const fn has(self, port: u16) -> bool {
        match self {
            Self::Any => true,
            Self::One(one) => one == port,
        }
    }
}

/// A host name in lower case, without a dot at its end; `None` when it is none.
#[must_use]
pub fn host_name(text: &str) -> Option<String> {
    let name = text.strip_suffix('.').unwrap_or(text);
    let label = |label: &str| {
        let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        (1..=LABEL_MAX).contains(&label.len())
            && label.chars().all(inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let fits = name.len() <= HOST_NAME_MAX && name.split('.').all(label);
    // Resolvers take `0x7f.1` and `127.1` for addresses: no name ends with a number.
    let numeric = |last: &str| last.chars().all(|c| c.is_ascii_digit()) || last.starts_with("0x");
    let lower = name.to_ascii_lowercase();
    let is_name = fits && !lower.rsplit('.').next().is_some_and(numeric);
    is_name.then_some(lower)
}

/// Metadata services of clouds that are not at a link-local address: Azure's, Alibaba's, AWS' and Google's for IPv6.
const METADATA: [IpAddr; 4] = [
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
];

/// An address that leads to the host itself, its links, many hosts or a cloud's metadata service. Names of others do
/// not stand for one.
#[must_use]
pub fn is_special(address: IpAddr) -> bool {
    let address = address.to_canonical();
    METADATA.contains(&address)
        || match address {
            IpAddr::V4(v4) => {
                let this_network = Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 8);
                this_network.contains(&v4)
                    || v4.is_loopback()
                    || v4.is_link_local()
                    || v4.is_multicast()
                    || v4.is_broadcast()
            }
            IpAddr::V6(v6) => {
                // The deprecated `::a.b.c.d` is an IPv4 address by another spelling.
                let compatible = v6.segments()[..6] == [0; 6];
                compatible
                    || v6.is_unicast_link_local()
                    || v6.is_multicast()
                    || v6 == Ipv6Addr::LOCALHOST
                    || translated(v6).is_some_and(|v4| is_special(v4.into()))
            }
        }
}

/// The IPv4 address that a gateway makes of one of IPv6: NAT64 (RFC 6052), 6to4 (RFC 3056).
fn translated(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let v4 = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match address.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => Some(v4(high, low)),
        _ => None,
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// Nothing that can be read.
    #[error("is not a name, *.domain, address or network")]
    Host,
    /// Between brackets only IPv6 is.
    #[error("has brackets that hold no IPv6 address or network")]
    Brackets,
    /// A port that is none.
    #[error("has the port `{0}`; ports are 1 to 65535 or *")]
    Port(String),
    /// A name without a port.
    #[error("has no port: name:443, or name:* for every port")]
    NoPort,
    #[error("is IPv4 in the notation of IPv6: write it as IPv4, such as 10.0.0.0/8")]
    Mapped,
    /// A network that is named by an address in it.
    #[error("has bits behind its prefix: the network is {0}")]
    HostBits(IpNet),
    /// A name has any address that its server says.
    #[error("denies a name: only addresses and networks can be denied, such as !10.0.0.1:80")]
    DeniedName,
}

impl FromStr for EgressEntry {
    type Err = EntryError;

    fn from_str(text: &str) -> Result<Self, EntryError> {
        let Some(denied) = text.strip_prefix('!') else { return destination(text) };
        let entry = destination(denied)?;
        match entry.host {
            EgressHost::Network(_) => Ok(Self { denies: true, ..entry }),
            _ => Err(EntryError::DeniedName),
        }
    }
}

/// An entry without its `!`.
fn destination(text: &str) -> Result<EgressEntry, EntryError> {
    if let Some(rest) = text.strip_prefix('[') {
        let (inside, behind) = rest.split_once(']').ok_or(EntryError::Brackets)?;
        let (prefix, port) = match behind.split_once(':') {
            None => (behind, None),
            Some((prefix, port)) => (prefix, Some(port)),
        };
        let network = network(&format!("{inside}{prefix}"))?;
        return match network {
            Some(IpNet::V6(_)) => entry(network.map(EgressHost::Network), port),
            _ => Err(EntryError::Brackets),
        };
    }
    // IPv6 without brackets has colons of its own, and no port.
    if let Some(network @ IpNet::V6(_)) = network(text)? {
        return entry(Some(EgressHost::Network(network)), None);
    }
    let (host, port) = match text.rsplit_once(':') {
        None => (text, None),
        Some((host, port)) => (host, Some(port)),
    };
    match (host, network(host)?) {
        (_, Some(IpNet::V6(_))) => Err(EntryError::Host),
        (_, Some(network)) => entry(Some(EgressHost::Network(network)), port),
        ("*", _) => entry(Some(EgressHost::Any), port),
        (host, _) => match host.strip_prefix("*.") {
            Some(domain) => entry(host_name(domain).map(EgressHost::Below), port),
            None => entry(host_name(host).map(EgressHost::Name), port),
        },
    }
}

fn entry(host: Option<EgressHost>, port: Option<&str>) -> Result<EgressEntry, EntryError> {
    let host = host.ok_or(EntryError::Host)?;
    let ports = match (port, &host) {
        (None, EgressHost::Network(_)) | (Some("*"), _) => Ports::Any,
        (None, _) => return Err(EntryError::NoPort),
        (Some(port), _) => {
            let number = port.parse().ok().filter(|number| *number > 0);
            Ports::One(number.ok_or_else(|| EntryError::Port(port.to_owned()))?)
        }
    };
    Ok(EgressEntry { denies: false, host, ports })
}

/// An address or a network; `None` when the text is neither.
fn network(text: &str) -> Result<Option<IpNet>, EntryError> {
    let address = text.parse::<IpAddr>().map(IpNet::from);
    let Ok(network) = address.or_else(|_| text.parse::<IpNet>()) else { return Ok(None) };
    if network.addr().to_canonical() != network.addr() {
        // Addresses are compared as IPv4: it would never match.
        return Err(EntryError::Mapped);
    }
    if network.trunc() != network {
        return Err(EntryError::HostBits(network.trunc()));
    }
    Ok(Some(network))
}

impl fmt::Display for EgressEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.denies {
            f.write_str("!")?;
        }
        match &self.host {
            EgressHost::Any => f.write_str("*")?,
            EgressHost::Name(name) => f.write_str(name)?,
            EgressHost::Below(domain) => write!(f, "*.{domain}")?,
            EgressHost::Network(IpNet::V4(network)) => write!(f, "{network}")?,
            EgressHost::Network(IpNet::V6(network)) => write!(f, "[{network}]")?,
        }
        match self.ports {
            Ports::Any => f.write_str(":*"),
            Ports::One(port) => write!(f, ":{port}"),
        }
    }
}

#[cfg(test)]
#[path = "egress/tests.rs"]
mod tests;
