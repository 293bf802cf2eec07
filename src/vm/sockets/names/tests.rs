//! Files of names and name servers.

use super::*;

fn resolver(hosts: &str, servers: &str) -> (tempfile::TempDir, Resolver) {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        Some(path)
    };
    let resolver = Resolver { hosts: file("hosts", hosts), servers: file("servers", servers) };
    (dir, resolver)
}

fn addresses(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn the_file_of_hosts_comes_first() {
    let hosts =
        "# a comment\n10.0.0.1 db db.example # another\nfd00::1\tDB\nnonsense db\n10.0.0.2 x\n";
    let (_dir, resolver) = resolver(hosts, "");
    let both = [RecordKind::A, RecordKind::Aaaa];
    assert_eq!(
        resolver.look_up("db", &both, LOOK_UP_MAX),
        Ok(ResolvedAddresses::Hosts(addresses(&["10.0.0.1", "fd00::1"])))
    );
    assert_eq!(
        resolver.look_up("db", &[RecordKind::Aaaa], LOOK_UP_MAX),
        Ok(ResolvedAddresses::Hosts(addresses(&["fd00::1"])))
    );
    assert_eq!(
        resolver.look_up("db.example", &both, LOOK_UP_MAX),
        Ok(ResolvedAddresses::Hosts(addresses(&["10.0.0.1"])))
    );
    assert_eq!(resolver.look_up("comment", &both, LOOK_UP_MAX), Err(LookUpError::NoServers));
    let own = ResolvedAddresses::Hosts(addresses(&["127.0.0.1", "::1"]));
    assert_eq!(resolver.look_up("localhost", &both, LOOK_UP_MAX), Ok(own));
}

#[test]
fn files_that_are_none_say_nothing() {
    let dir = tempfile::tempdir().unwrap();
    for path in [dir.path(), Path::new("/dev/zero"), Path::new("/nowhere")] {
        assert_eq!(text(path), "", "{}", path.display());
    }
}

#[test]
fn name_servers_and_their_options_are_read_within_bounds() {
    let servers = Servers::read(
        "nameserver 10.0.0.1\nnameserver fe80::1%eth0\nnameserver ::1\nsearch a.test b.test\n\
         options ndots:5 timeout:999 attempts:0 rotate\nnameserver 10.0.0.2\nnameserver 10.0.0.3\n",
    );
    assert_eq!(servers.addresses, addresses(&["10.0.0.1", "::1", "10.0.0.2"]));
    assert_eq!((servers.ndots, servers.attempts), (5, 1));
    assert_eq!(servers.timeout, Duration::from_secs(TIMEOUT_MAX_S));
    assert_eq!(servers.candidates("x.y"), ["x.y.a.test", "x.y.b.test", "x.y"]);
    assert_eq!(servers.candidates("1.2.3.4.5.x")[0], "1.2.3.4.5.x");
}
