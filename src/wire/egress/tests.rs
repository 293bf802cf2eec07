//! Tests of entries, and of the destinations that they allow.

use proptest::prelude::*;

use super::*;

fn egress(entries: &[&str]) -> Egress {
    let entries = entries.iter().map(|text| text.parse().unwrap()).collect();
    Egress { entries, ..Egress::default() }
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn entries_are_read_or_refused_with_a_reason() {
    for (text, shown) in [
        ("db.example:5432", "db.example:5432"),
        ("DB.Example.:5432", "db.example:5432"),
        ("*.example.com:*", "*.example.com:*"),
        ("*:443", "*:443"),
        ("10.0.0.1", "10.0.0.1/32:*"),
        ("10.0.0.1:80", "10.0.0.1/32:80"),
        ("10.0.0.0/8", "10.0.0.0/8:*"),
        ("10.0.0.0/8:80", "10.0.0.0/8:80"),
        ("::1", "[::1/128]:*"),
        ("[::1]:80", "[::1/128]:80"),
        ("2001:db8::/32", "[2001:db8::/32]:*"),
        ("[2001:db8::/32]:443", "[2001:db8::/32]:443"),
        ("[2001:db8::]/32:443", "[2001:db8::/32]:443"),
        ("!10.0.0.1:80", "!10.0.0.1/32:80"),
        ("![::1]:80", "![::1/128]:80"),
    ] {
        match text.parse::<EgressEntry>() {
            Ok(entry) => assert_eq!(entry.to_string(), shown, "{text}"),
            Err(error) => panic!("{text} {error}"),
        }
    }
    for (text, part) in [
        ("", "not a name"),
        ("!db:80", "only addresses and networks"),
        ("!*:80", "only addresses and networks"),
        ("!", "not a name"),
        ("!!10.0.0.1", "not a name"),
        (":80", "not a name"),
        ("db", "no port"),
        ("*", "no port"),
        ("db:0", "port `0`"),
        ("db:65536", "port `65536`"),
        ("db:http", "port `http`"),
        ("http://db:80", "not a name"),
        ("a..b:80", "not a name"),
        ("*.*.b:80", "not a name"),
        ("a*.b:80", "not a name"),
        ("127.1:80", "not a name"),
        ("0x7f000001:80", "not a name"),
        ("10.0.0.1/8:80", "the network is 10.0.0.0/8"),
        ("10.0.0.0/33:80", "not a name"),
        ("[10.0.0.1]:80", "brackets"),
        ("[::1:80", "brackets"),
        ("[db]:80", "brackets"),
        ("::ffff:10.0.0.1", "write it as IPv4"),
        ("[::ffff:0:0/96]:80", "write it as IPv4"),
    ] {
        match text.parse::<EgressEntry>() {
            Ok(entry) => panic!("{text} is read as {entry}"),
            Err(error) => assert!(error.to_string().contains(part), "{text} {error}"),
        }
    }
}

#[test]
fn what_is_denied_is_denied_whatever_else_is_allowed() {
    let egress = egress(&["*:*", "!127.0.0.1:9000", "!10.0.0.0/8", "![::1]:9000"]);
    assert!(egress.allows_address(address("127.0.0.1"), 9001));
    for (denied, port) in
        [("127.0.0.1", 9000), ("::ffff:127.0.0.1", 9000), ("10.1.2.3", 80), ("::1", 9000)]
    {
        assert!(!egress.allows_address(address(denied), port), "{denied}");
        assert!(egress.denies(address(denied), port), "{denied}");
    }
    // An entry that denies allows nothing.
    let egress = super::tests::egress(&["!10.0.0.1:80"]);
    assert!(!egress.allows_address(address("10.0.0.2"), 80));
    assert!(!egress.covers_address(address("10.0.0.1")) && !egress.may_look_up("db"));
}

#[test]
fn names_match_whole_and_no_addresses() {
    let egress = egress(&["db.example:5432", "*.api.example:443", "10.0.0.0/8:80"]);
    assert!(egress.allows_name("db.example", 5432));
    assert!(!egress.allows_name("db.example", 5433));
    for other in ["xdb.example", "a.db.example", "example", "db.example.evil"] {
        assert!(!egress.may_look_up(other), "{other}");
    }
    for below in ["a.api.example", "a.b.api.example"] {
        assert!(egress.allows_name(below, 443), "{below}");
    }
    for other in ["api.example", ".api.example", "aapi.example", "a.api.example.evil"] {
        assert!(!egress.allows_name(other, 443), "{other}");
    }
    assert!(!egress.allows_address(address("192.0.2.1"), 5432));
    assert!(!egress.allows_name("10.0.0.1", 80));
}

#[test]
fn addresses_have_several_spellings() {
    let egress = egress(&["10.0.0.0/8:80", "[fd00::/8]:*"]);
    assert!(egress.allows_address(address("10.255.255.255"), 80));
    assert!(egress.allows_address(address("::ffff:10.1.2.3"), 80));
    assert!(!egress.allows_address(address("10.1.2.3"), 81));
    assert!(!egress.allows_address(address("::ffff:11.1.2.3"), 80));
    // Deprecated, and no spelling of 10.1.2.3 for the kernel.
    assert!(!egress.allows_address(address("::10.1.2.3"), 80));
    assert!(egress.allows_address(address("fdff::1"), 1));
}

#[test]
fn addresses_that_names_of_others_do_not_stand_for() {
    for special in [
        "127.0.0.1",
        "127.255.255.255",
        "0.0.0.0",
        "0.1.2.3",
        "169.254.169.254",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::7f00:1",
        "fe80::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "168.63.129.16",
        "100.100.100.200",
        "fd00:ec2::254",
        "fd20:ce::254",
        "64:ff9b::169.254.169.254",
        "64:ff9b::100.100.100.200",
        "2002:7f00:1::1",
    ] {
        assert!(is_special(address(special)), "{special}");
    }
    for plain in [
        "10.0.0.1",
        "192.168.0.1",
        "1.1.1.1",
        "fd00::1",
        "2001:db8::1",
        "169.253.0.1",
        "64:ff9b::10.0.0.1",
        "2002:a00:1::1",
        "fd00:ec2::253",
    ] {
        assert!(!is_special(address(plain)), "{plain}");
    }
}

#[test]
fn extensions_need_the_annotation_and_the_standard_does_not() {
    for (name, _) in SOCKET_FUNCTIONS {
        assert!(!needs_egress(name), "{name}");
    }
    for name in ["sock_open", "sock_getaddrinfo", "sock_recv_v2", "sock_something_new"] {
        assert!(needs_egress(name), "{name}");
    }
    assert!(!needs_egress("fd_write"));
}

proptest! {
    /// Both ends of a network, and the addresses beside them.
    #[test]
    fn a_network_ends_where_its_prefix_says(bits: u32, length in 1_u8..=32, port: u16) {
        let mask = u32::MAX << (32 - length);
        let (first, last) = (bits & mask, bits | !mask);
        let entry = format!("{}/{length}", Ipv4Addr::from(first));
        let egress = egress(&[&entry]);
        let allows = |bits: u32| egress.allows_address(Ipv4Addr::from(bits).into(), port);
        prop_assert!(allows(first) && allows(last) && allows(bits));
        if let Some(before) = first.checked_sub(1) {
            prop_assert!(!allows(before));
        }
        if let Some(after) = last.checked_add(1) {
            prop_assert!(!allows(after));
        }
    }

    #[test]
    fn a_network_of_ipv6_ends_where_its_prefix_says(bits: u128, length in 1_u8..=128) {
        let mask = u128::MAX << (128 - length);
        let (first, last) = (bits & mask, bits | !mask);
        // What is written like an IPv4 address is one.
        prop_assume!(first >> 48 != 0);
        let entry = format!("[{}/{length}]:*", Ipv6Addr::from(first));
        let egress = egress(&[&entry]);
        let allows = |bits: u128| egress.allows_address(Ipv6Addr::from(bits).into(), 1);
        prop_assert!(allows(first) && allows(last) && allows(bits));
        prop_assert!(first.checked_sub(1).is_none_or(|before| !allows(before)));
        prop_assert!(last.checked_add(1).is_none_or(|after| !allows(after)));
    }

    #[test]
    fn ports_are_exact(given: u16, port: u16) {
        prop_assume!(given > 0);
        let egress = egress(&[&format!("10.0.0.1:{given}"), &format!("db:{given}")]);
        prop_assert_eq!(egress.allows_address(address("10.0.0.1"), port), port == given);
        prop_assert_eq!(egress.allows_name("db", port), port == given);
    }
}
