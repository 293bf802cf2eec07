//! Entries of `cwasi.network` by which no action reaches the executor's own API.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use nix::ifaddrs::getifaddrs;

/// Most entries for single addresses: an annotation has 64. Of more, the port is denied everywhere.
const ENTRIES_MAX: usize = 48;

/// Denies every address at which the listener is reached now.
///
/// # Errors
/// When the system does not list its addresses.
pub(super) fn denials(listener: SocketAddr) -> io::Result<Vec<String>> {
    let own = if listener.ip().is_unspecified() { addresses_of_host()? } else { Vec::new() };
    Ok(entries(listener, own))
}

fn entries(listener: SocketAddr, of_host: Vec<IpAddr>) -> Vec<String> {
    let at = listener.ip().to_canonical();
    let mut denied: BTreeSet<String> = BTreeSet::new();
    // The kernel takes the unspecified address as a destination for the loopback one.
    let always = [at, Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    denied.extend(always.into_iter().chain(of_host).map(|address| network(address.to_canonical())));
    if at.is_unspecified() {
        // All of it leads to this host.
        denied.insert("127.0.0.0/8".to_owned());
    }
    if denied.len() > ENTRIES_MAX {
        denied = ["0.0.0.0/0", "[::/0]"].map(str::to_owned).into();
    }
    denied.into_iter().map(|network| format!("!{network}:{}", listener.port())).collect()
}

fn network(address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => v4.to_string(),
        IpAddr::V6(v6) => format!("[{v6}]"),
    }
}

/// The addresses of all interfaces.
fn addresses_of_host() -> io::Result<Vec<IpAddr>> {
    let address = |interface: nix::ifaddrs::InterfaceAddress| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| v6.ip().into()))
    };
    Ok(getifaddrs()?.filter_map(address).collect())
}

#[cfg(test)]
mod tests {
    use cwasi_wire::egress::Egress;

    use super::*;

    fn egress(entries: &[String]) -> Egress {
        let everywhere = ["0.0.0.0/0", "::/0"].map(str::to_owned);
        let entries = everywhere.iter().chain(entries).map(|entry| entry.parse().unwrap());
        Egress { entries: entries.collect(), ..Egress::default() }
    }

    fn denied(egress: &Egress, address: &str) -> bool {
        !egress.allows_address(address.parse().unwrap(), 9000)
    }

    #[test]
    fn every_address_of_the_executor_is_denied() {
        let loopback = egress(&entries("127.0.0.1:9000".parse().unwrap(), Vec::new()));
        for own in ["127.0.0.1", "::ffff:127.0.0.1", "0.0.0.0", "::"] {
            assert!(denied(&loopback, own), "{own}");
        }
        assert!(!denied(&loopback, "192.0.2.1"));
        assert!(loopback.allows_address(Ipv4Addr::LOCALHOST.into(), 9001));

        let of_host = vec!["192.0.2.1".parse().unwrap(), "fe80::1".parse().unwrap()];
        let all = egress(&entries("[::]:9000".parse().unwrap(), of_host));
        for own in ["127.0.0.1", "127.0.0.9", "0.0.0.0", "192.0.2.1", "fe80::1", "::"] {
            assert!(denied(&all, own), "{own}");
        }
        assert!(!denied(&all, "192.0.2.2"));

        let many = (0..60).map(|number| Ipv4Addr::new(192, 0, 2, number).into()).collect();
        let many = entries("0.0.0.0:9000".parse().unwrap(), many);
        assert_eq!(many.len(), 2);
        assert!(denied(&egress(&many), "198.51.100.1"));
    }

    #[test]
    fn the_hosts_interfaces_are_listed() {
        let found = addresses_of_host().unwrap();
        let listed = denials("0.0.0.0:9000".parse().unwrap()).unwrap();
        let all = egress(&listed);
        assert!(found.iter().all(|address| !all.allows_address(*address, 9000)), "{found:?}");
    }
}
