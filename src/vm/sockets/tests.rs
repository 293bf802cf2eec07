//! Tests of the rule, and of hostile calls.

use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd as _;

use cwasi_host_functions::{GuestMemory, GuestPtr};

use super::calls::Results;
use super::refusals::tests::{lines, refusals};
use super::*;

pub struct Memory(Vec<u8>);

impl GuestMemory for Memory {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Memory {
    pub fn new() -> Self {
        Self(vec![0; 4096])
    }

    pub fn put(&mut self, at: u32, bytes: &[u8]) {
        self.write(GuestPtr(at), bytes).unwrap();
    }

    pub fn words(&mut self, at: u32, words: &[u32]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.put(at, &bytes);
    }

    /// An address at 0, its bytes at 64; with the port.
    fn address(&mut self, to: SocketAddr) -> (GuestPtr, u32) {
        let octets = match to.ip() {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        self.words(0, &[64, u32::try_from(octets.len()).unwrap()]);
        self.put(64, &octets);
        (GuestPtr(0), u32::from(to.port()))
    }
}

pub fn sockets(entries: &[String]) -> Sockets {
    let entries = entries.iter().map(|text| text.parse().unwrap()).collect();
    Sockets::new(Egress { entries, ..Egress::default() }, refusals())
}

/// With a file of hosts.
fn sockets_with(entries: &[&str], hosts: &str) -> (tempfile::TempDir, Sockets) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hosts");
    std::fs::write(&path, hosts).unwrap();
    let entries: Vec<String> = entries.iter().map(|&text| text.to_owned()).collect();
    let mut sockets = sockets(&entries);
    sockets.resolver.hosts = Some(path);
    (dir, sockets)
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

#[test]
fn a_name_allows_the_addresses_that_it_was_looked_up_to() {
    let (_dir, sockets) =
        sockets_with(&["db:5432", "*.api.test:443"], "10.0.0.1 db\n10.0.0.2 x.api.test other\n");
    let to = |text| sockets.allows(at(text));
    assert_eq!(to("10.0.0.1:5432"), Err(WasiErrno::ACCES), "not looked up yet");
    assert_eq!(sockets.look_up("DB.", &[RecordKind::A]), Ok(vec!["10.0.0.1".parse().unwrap()]));
    assert_eq!(to("10.0.0.1:5432"), Ok(()));
    assert_eq!(to("[::ffff:10.0.0.1]:5432"), Ok(()));
    assert_eq!(to("10.0.0.1:5433"), Err(WasiErrno::ACCES));
    assert_eq!(to("10.0.0.2:5432"), Err(WasiErrno::ACCES));
    sockets.look_up("x.api.test", &[RecordKind::A]).unwrap();
    assert_eq!(to("10.0.0.2:443"), Ok(()));
    assert_eq!(to("10.0.0.2:5432"), Err(WasiErrno::ACCES));
    // Other names are not even asked for.
    assert_eq!(sockets.look_up("other", &[RecordKind::A]), Err(WasiErrno::ACCES));
    assert_eq!(sockets.look_up("secret.evil.test", &[RecordKind::A]), Err(WasiErrno::ACCES));
    assert_eq!(sockets.look_up("not a name", &[RecordKind::A]), Err(WasiErrno::AI_NO_NAME));
    // One line for each destination, whatever its spelling.
    let lines = lines();
    let logged =
        ["10.0.0.1:5432", "10.0.0.1:5433", "10.0.0.2:5432", "of other ", "secret.evil.test"];
    assert_eq!(lines.len(), logged.len(), "{lines:?}");
    assert!(lines.iter().zip(logged).all(|(line, text)| line.contains(text)), "{lines:?}");
}

#[test]
fn a_denied_address_is_reached_by_no_name() {
    let entries = ["*:80", "!10.0.0.1:80"];
    let (_dir, sockets) = sockets_with(&entries, "10.0.0.1 db\n10.0.0.2 db\n");
    sockets.look_up("db", &[RecordKind::A]).unwrap();
    assert_eq!(sockets.allows(at("10.0.0.1:80")), Err(WasiErrno::ACCES));
    assert_eq!(sockets.allows(at("10.0.0.2:80")), Ok(()));
    let found = sockets.destinations("db", 80, LOOK_UP_MAX);
    assert_eq!(found, Ok(vec![at("10.0.0.2:80")]));
    assert_eq!(sockets.destinations("10.0.0.1", 80, LOOK_UP_MAX), Err(WasiErrno::ACCES));
    let lines = lines();
    assert!(lines.len() == 1 && lines[0].contains("with `!` denies it"), "{lines:?}");
}

#[test]
fn a_request_gets_the_allowed_addresses_of_its_host() {
    let (_dir, sockets) = sockets_with(
        &["db:80", "10.0.0.2:8080", "[fd00::1]:80", "both:443"],
        "10.0.0.1 db\n10.0.0.2 both\n10.0.0.3 both\nfd00::2 db\n",
    );
    let to = |host: &str, port| sockets.destinations(host, port, LOOK_UP_MAX);
    let found = |texts: &[&str]| Ok(texts.iter().map(|text| at(text)).collect::<Vec<_>>());
    assert_eq!(to("DB.", 80), found(&["10.0.0.1:80", "[fd00::2]:80"]));
    assert_eq!(to("both", 443), found(&["10.0.0.2:443", "10.0.0.3:443"]));
    assert_eq!(to("both", 8080), found(&["10.0.0.2:8080"]), "this one by its address");
    assert_eq!(to("fd00::1", 80), found(&["[fd00::1]:80"]));
    assert_eq!(to("10.0.0.1", 80), found(&["10.0.0.1:80"]), "it is known as db's");
    assert_eq!(lines(), [""; 0]);
    assert_eq!(to("db", 81), Err(WasiErrno::ACCES));
    assert_eq!(to("10.0.0.9", 80), Err(WasiErrno::ACCES));
    assert_eq!(to("evil.test", 80), Err(WasiErrno::ACCES));
    assert_eq!(to("not a name", 80), Err(WasiErrno::AI_NO_NAME));
    let advice = ["`db:81`", "`10.0.0.9:80`", "`evil.test:80`"];
    let lines = lines();
    assert_eq!(lines.len(), advice.len(), "{lines:?}");
    assert!(lines.iter().zip(advice).all(|(line, text)| line.contains(text)), "{lines:?}");
}

#[test]
fn a_name_without_a_name_server_is_told() {
    let sockets = sockets(&["db.test:80".to_owned()]);
    assert_eq!(sockets.look_up("db.test", &[RecordKind::A]), Err(WasiErrno::AI_FAIL));
    let lines = lines();
    assert!(lines[0].contains("db.test") && lines[0].contains("/etc/resolv.conf"), "{lines:?}");
}

#[test]
fn name_servers_do_not_name_the_host_itself() {
    let sockets = sockets(&["*.test:80".to_owned(), "169.254.1.1:80".to_owned()]);
    let addresses = |texts: &[&str]| -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    };
    let all = addresses(&["127.0.0.1", "169.254.169.254", "10.0.0.1", "::1", "169.254.1.1"]);
    assert_eq!(sockets.usable("a.test", ResolvedAddresses::Hosts(all.clone())), all);
    assert_eq!(lines(), [""; 0]);
    let found = sockets.usable("a.test", ResolvedAddresses::Servers(all));
    assert_eq!(found, addresses(&["10.0.0.1", "169.254.1.1"]));
    let lines = lines();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[1].contains("169.254.169.254 for a.test"), "{lines:?}");
}

#[test]
fn answers_that_are_remembered_are_bounded() {
    let sockets = sockets(&["*:80".to_owned()]);
    for number in 0..2 * u32::try_from(ANSWERS_MAX).unwrap() {
        sockets.remember("a.test", &[IpAddr::from(number.to_be_bytes())]);
        sockets.remember("a.test", &[IpAddr::from(number.to_be_bytes())]);
    }
    assert_eq!(sockets.answers.borrow().len(), ANSWERS_MAX);
}

#[test]
fn connects_reach_what_is_allowed_and_nothing_else() {
    for loopback in ["127.0.0.1:0", "[::1]:0"] {
        let allowed = TcpListener::bind(loopback).unwrap();
        let denied = TcpListener::bind(loopback).unwrap();
        denied.set_nonblocking(true).unwrap();
        let to = allowed.local_addr().unwrap();
        let sockets = sockets(&[to.to_string()]);
        let mut memory = Memory::new();
        let new = |to: SocketAddr| {
            let family = if to.is_ipv4() {
                nix::sys::socket::AddressFamily::Inet
            } else {
                nix::sys::socket::AddressFamily::Inet6
            };
            let (kind, flags) =
                (nix::sys::socket::SockType::Stream, nix::sys::socket::SockFlag::empty());
            nix::sys::socket::socket(family, kind, flags, None).unwrap()
        };
        let address = memory.address(denied.local_addr().unwrap());
        let refused = sockets.connect(&memory, new(to).as_fd(), address);
        assert_eq!(refused, Err(WasiErrno::ACCES));
        assert!(denied.accept().is_err(), "the server saw something");
        let address = memory.address(to);
        let socket = new(to);
        sockets.connect(&memory, socket.as_fd(), address).unwrap();
        assert!(allowed.accept().is_ok());
        assert!(TcpStream::from(socket).peer_addr().is_ok());
    }
}

#[test]
fn datagrams_go_to_what_is_allowed_and_nowhere_else() {
    let [allowed, denied] = [0; 2].map(|port| UdpSocket::bind(("127.0.0.1", port)).unwrap());
    denied.set_nonblocking(true).unwrap();
    let sockets = sockets(&[allowed.local_addr().unwrap().to_string()]);
    let own = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut memory = Memory::new();
    memory.put(200, b"hello world");
    memory.words(300, &[200, 6, 206, 5]);
    let mut send = |to: &UdpSocket, parts: u32, sent: u32| {
        let address = memory.address(to.local_addr().unwrap());
        let parts = (GuestPtr(300), parts);
        let sent_out = GuestPtr(sent);
        let sent = sockets.send_to(&mut memory, own.as_fd(), parts, address, sent_out);
        sent.map(|()| memory.bytes()[400])
    };
    assert_eq!(send(&denied, 2, 400), Err(WasiErrno::ACCES));
    assert_eq!(send(&allowed, 2, 4094), Err(WasiErrno::FAULT));
    assert_eq!(send(&allowed, 1025, 400), Err(WasiErrno::INVAL));
    assert_eq!(send(&allowed, 2, 400), Ok(11));
    let mut buffer = [0; 32];
    let len = allowed.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..len], b"hello world");
    assert!(denied.recv(&mut buffer).is_err(), "the other one got something");
}

#[test]
fn sockets_are_bound_to_nothing_in_particular() {
    let sockets = sockets(&["*:*".to_owned()]);
    let mut memory = Memory::new();
    let own = std::os::fd::OwnedFd::from(UdpSocket::bind("127.0.0.1:0").unwrap());
    for refused in ["127.0.0.1:0", "0.0.0.0:8080", "[::]:1"] {
        let address = memory.address(at(refused));
        assert_eq!(sockets.bind(&memory, own.as_fd(), address), Err(WasiErrno::ACCES), "{refused}");
    }
    let address = memory.address(at("0.0.0.0:0"));
    // It has an address already: the kernel was asked.
    assert_eq!(sockets.bind(&memory, own.as_fd(), address), Err(WasiErrno::INVAL));
}

#[test]
fn addresses_are_read_once_and_only_in_their_three_forms() {
    let sockets = sockets(&["*:*".to_owned()]);
    let own = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut memory = Memory::new();
    let mut connect = |words: &[u32], at: u32, port: u32| {
        memory.put(64, &[3, 0, 127, 0, 0, 1]);
        memory.words(0, words);
        sockets.connect(&memory, own.as_fd(), (GuestPtr(at), port))
    };
    assert_eq!(connect(&[64, 5], 0, 1), Err(WasiErrno::INVAL));
    assert_eq!(connect(&[64, 0], 0, 1), Err(WasiErrno::INVAL));
    assert_eq!(connect(&[64, u32::MAX], 0, 1), Err(WasiErrno::INVAL));
    // AF_UNIX in the form of any family.
    assert_eq!(connect(&[64, 128], 0, 1), Err(WasiErrno::AFNOSUPPORT));
    assert_eq!(connect(&[4095, 4], 0, 1), Err(WasiErrno::FAULT));
    assert_eq!(connect(&[64, 4], 4092, 1), Err(WasiErrno::FAULT));
    assert_eq!(connect(&[64, 4], u32::MAX, 1), Err(WasiErrno::FAULT));
    assert_eq!(connect(&[66, 4], 0, 65_536), Err(WasiErrno::INVAL));
    assert_eq!(connect(&[66, 4], 0, 9), Ok(()));
}

/// A list of two results at 1000 and 1100; asks for `node` and `service`.
fn get_addr_info(
    sockets: &Sockets,
    memory: &mut Memory,
    node: &[u8],
    service: &[u8],
    hints: [u8; 5],
) -> Result<u32, WasiErrno> {
    memory.put(200, node);
    memory.put(400, service);
    memory.put(500, &hints);
    memory.words(600, &[1000]);
    for (at, next) in [(1000_u32, 1100), (1100, 0)] {
        memory.words(at + 12, &[at + 40]);
        memory.words(at + 24, &[next]);
        memory.words(at + 44, &[26, at + 60]);
    }
    let len = |text: &[u8]| u32::try_from(text.len()).unwrap();
    let texts = ((GuestPtr(200), len(node)), (GuestPtr(400), len(service)));
    let results = Results { list: GuestPtr(600), max: 2, len_out: GuestPtr(700) };
    sockets.get_addr_info(memory, texts, GuestPtr(500), results)?;
    Ok(u32::from_le_bytes(memory.bytes()[700..704].try_into().unwrap()))
}

#[test]
fn look_ups_fill_the_guests_list() {
    let hosts = "10.0.0.1 db\nfd00::1 db\n10.0.0.3 db\n";
    let (_dir, sockets) = sockets_with(&["db:5432"], hosts);
    let mut memory = Memory::new();
    // As some guests do: with a zero behind it.
    let found = get_addr_info(&sockets, &mut memory, b"db\0", b"http\0", [0, 0, 0, 2, 0]);
    assert_eq!(found, Ok(2), "as many as the list has");
    let bytes = memory.bytes();
    assert_eq!(bytes[1002..1005], [1, 2, 1], "IPv4, a stream, TCP");
    assert_eq!((bytes[1040], bytes[1044], bytes[1008]), (1, 14, 16));
    assert_eq!(bytes[1060..1066], [0, 80, 10, 0, 0, 1]);
    assert_eq!((bytes[1140], bytes[1144], bytes[1108]), (2, 26, 28));
    assert_eq!(bytes[1166..1168], [0xfd, 0]);
    for (node, service, hints, errno) in [
        (&b"elsewhere"[..], &b"80"[..], [0; 5], WasiErrno::ACCES),
        (b"", b"", [0; 5], WasiErrno::AI_NO_NAME),
        (b"db", b"gopher", [0; 5], WasiErrno::AI_SERVICE),
        (b"db", b"80", [0, 0, 3, 0, 0], WasiErrno::AI_FAMILY),
        (b"db", b"80", [4, 0, 0, 0, 0], WasiErrno::AI_NO_NAME),
        (b"\xff", b"80", [0; 5], WasiErrno::AI_NO_NAME),
    ] {
        assert_eq!(get_addr_info(&sockets, &mut memory, node, service, hints), Err(errno));
    }
    assert_eq!(get_addr_info(&sockets, &mut memory, b"192.0.2.1", b"1", [0; 5]), Ok(1));
}

proptest::proptest! {
    /// Whatever a guest passes: no panic, and nothing is reached.
    #[test]
    fn no_pointer_gets_past(words: Vec<u32>, at: u32, small: bool, params: [u32; 8]) {
        let sockets = sockets(&[]);
        let mut memory = Memory::new();
        for (index, word) in words.iter().take(512).enumerate() {
            let word = if small { word % 4096 } else { *word };
            memory.words(u32::try_from(index * 4).unwrap(), &[word]);
        }
        let at = if small { at % 4200 } else { at };
        let p = params.map(|param| if small { param % 4200 } else { param });
        let own = UdpSocket::bind("127.0.0.1:0").unwrap();
        proptest::prop_assert!(sockets.connect(&memory, own.as_fd(), (GuestPtr(at), 1)).is_err());
        let (parts, to) = ((GuestPtr(p[0]), p[1]), (GuestPtr(at), 1));
        proptest::prop_assert!(sockets.send_to(&mut memory, own.as_fd(), parts, to, GuestPtr(p[2])).is_err());
        let texts = ((GuestPtr(p[0]), p[1]), (GuestPtr(p[2]), p[3]));
        let results = Results { list: GuestPtr(p[5]), max: p[6], len_out: GuestPtr(p[7]) };
        let _outcome = sockets.get_addr_info(&mut memory, texts, GuestPtr(p[4]), results);
    }
}
