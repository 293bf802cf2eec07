//! Destinations on the network and host names (`wire::egress`): first four bytes of an address, then an entry.
#![no_main]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cwasi_fuzz::memory::bounded;
use cwasi_wire::egress::{
    Egress, EgressEntry, EgressHost, HOST_NAME_MAX, Ports, host_name, is_special,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: (u32, &str)| {
    let (address, text) = data;
    let v4 = Ipv4Addr::from(address);
    let bits = u128::from(address);
    let nat64 = Ipv6Addr::from(0x0064_ff9b_u128 << 96 | bits);
    for other in [IpAddr::from(v4.to_ipv6_mapped()), IpAddr::from(nat64)] {
        assert!(is_special(other) || !is_special(v4.into()), "{v4} by way of {other}");
    }
    if let Some(name) = bounded(text.as_bytes(), 4, || host_name(text)) {
        assert!(name.len() <= HOST_NAME_MAX && !name.ends_with('.'));
        assert_eq!(host_name(&name).as_ref(), Some(&name));
        assert!(name.parse::<IpAddr>().is_err(), "{name} is an address");
    }
    let Ok(entry) = bounded(text.as_bytes(), 16, || text.parse::<EgressEntry>()) else { return };
    let shown = entry.to_string();
    assert_eq!(shown.parse().as_ref(), Ok(&entry), "{shown}");
    let port = match entry.ports {
        Ports::Any => 1,
        Ports::One(port) => port,
    };
    assert!(port > 0);
    let (denies, host) = (entry.denies, entry.host.clone());
    let egress = Egress { entries: vec![entry], ..Egress::default() };
    let (any, mapped) = (IpAddr::from(v4), IpAddr::from(v4.to_ipv6_mapped()));
    assert_eq!(egress.allows_address(any, port), egress.allows_address(mapped, port));
    assert!(!egress.allows_address(any, port) || egress.covers_address(any));
    if denies {
        assert!(!egress.allows_address(any, port) && !egress.may_look_up("a.b"));
        return;
    }
    match host {
        EgressHost::Any => assert!(egress.allows_address(any, port) && egress.may_look_up("a.b")),
        EgressHost::Name(name) => {
            assert!(egress.allows_name(&name, port) && !egress.covers_address(any));
            assert!(!egress.may_look_up(&format!("x.{name}")));
        }
        EgressHost::Below(name) => {
            assert!(egress.may_look_up(&format!("x.{name}")) && !egress.may_look_up(&name));
            assert!(!egress.may_look_up(&format!("x{name}")));
        }
        EgressHost::Network(network) => {
            assert!(egress.allows_address(network.addr(), port) && !egress.may_look_up("a.b"));
            // Unless it is IPv4 by another spelling, which is compared as IPv4.
            let last = network.broadcast();
            assert!(egress.allows_address(last, port) || last != last.to_canonical());
        }
    }
});
