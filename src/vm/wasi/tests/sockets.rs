//! Sockets, whose rules `vm::sockets` tests itself.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};

use cwasi_wire::egress::Egress;

use super::*;

const DATAGRAM: u32 = 1;
const STREAM: u32 = 2;
/// Address of a pointer to [`ADDRESS_BYTES`].
const ADDRESS: u32 = 600;
const ADDRESS_BYTES: u32 = 640;
const PORT: u32 = 608;
const FAMILY: u32 = 612;

fn guest(allowed: &[SocketAddr]) -> Guest {
    let entries = allowed.iter().map(|to| to.to_string().parse().unwrap()).collect();
    let network = SocketNetwork::new(Egress { entries, ..Egress::default() }, None).unwrap();
    Guest::with(Some(&network), [const { None }; 3])
}

impl Guest {
    fn socket(&mut self, to: SocketAddr, kind: u32) -> u32 {
        let family = if to.is_ipv4() { 1 } else { 2 };
        self.wasi.sock_open(&mut self.memory, family, kind, OUT).unwrap();
        self.memory.u32_at(OUT)
    }

    /// Puts an address; returns the port.
    fn address(&mut self, to: SocketAddr) -> u32 {
        let octets = match to.ip() {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        self.memory.words(ADDRESS, &[ADDRESS_BYTES, u32::try_from(octets.len()).unwrap()]);
        self.memory.put(ADDRESS_BYTES, &octets);
        to.port().into()
    }

    fn connect(&mut self, fd: u32, to: SocketAddr) -> WasiResult {
        let port = self.address(to);
        self.wasi.sock_connect(&mut self.memory, fd, ADDRESS, port)
    }
}

#[test]
fn without_a_network_there_are_no_sockets() {
    let mut guest = Guest::new();
    let opened = guest.wasi.sock_open(&mut guest.memory, 1, STREAM, OUT);
    assert_eq!(opened, Err(WasiErrno::NOTSUP));
    let memory = &mut guest.memory;
    for fd in [0, 1, DATA] {
        assert_eq!(guest.wasi.sock_shutdown(memory, fd, 1), Err(WasiErrno::NOTSOCK));
        assert_eq!(guest.wasi.sock_accept(memory, fd, 0, OUT), Err(WasiErrno::NOTSOCK));
        let sent = guest.wasi.sock_send(memory, fd, PARTS, 0, 0, OUT);
        assert_eq!(sent, Err(WasiErrno::NOTSOCK));
        let received = guest.wasi.sock_recv(memory, fd, PARTS, 0, 0, OUT, OUT);
        assert_eq!(received, Err(WasiErrno::NOTSOCK));
    }
    assert_eq!(guest.wasi.sock_shutdown(memory, 99, 1), Err(WasiErrno::BADF));
}

#[test]
fn streams_carry_bytes_both_ways() {
    for loopback in ["127.0.0.1:0", "[::1]:0"] {
        let server = TcpListener::bind(loopback).unwrap();
        let to = server.local_addr().unwrap();
        let mut guest = guest(&[to]);
        let fd = guest.socket(to, STREAM);
        guest.connect(fd, to).unwrap();
        let (mut stream, from) = server.accept().unwrap();
        assert_eq!(guest.write(fd, b"hello"), Ok(5));
        guest.memory.put(BYTES, b" you");
        guest.part(4);
        guest.wasi.sock_send(&mut guest.memory, fd, PARTS, 1, 0, OUT).unwrap();
        let mut bytes = [0; 9];
        stream.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"hello you");
        stream.write_all(b"answer").unwrap();
        guest.part(3);
        // First a look at it only.
        guest.wasi.sock_recv(&mut guest.memory, fd, PARTS, 1, 1, OUT, OUT + 8).unwrap();
        assert_eq!(guest.memory.bytes_at(BYTES, 3), b"ans");
        assert_eq!(guest.read(fd, 99), Ok(b"answer".to_vec()));
        let memory = &mut guest.memory;
        memory.words(ADDRESS, &[ADDRESS_BYTES, 16]);
        guest.wasi.sock_getpeeraddr_v1(memory, fd, ADDRESS, FAMILY, PORT).unwrap();
        let family = if to.is_ipv4() { 4 } else { 6 };
        assert_eq!((memory.u32_at(FAMILY), memory.u32_at(PORT)), (family, to.port().into()));
        memory.words(ADDRESS, &[ADDRESS_BYTES, 128]);
        guest.wasi.sock_getlocaladdr(memory, fd, ADDRESS, PORT).unwrap();
        assert_eq!(memory.u32_at(PORT), u32::from(from.port()));
        assert_eq!(memory.bytes_at(ADDRESS_BYTES, 1), [if to.is_ipv4() { 1 } else { 2 }]);
        guest.wasi.sock_shutdown(memory, fd, 2).unwrap();
        assert_eq!(stream.read(&mut bytes).unwrap(), 0);
        assert_eq!(guest.wasi.sock_shutdown(memory, fd, 4), Err(WasiErrno::INVAL));
        guest.close(fd).unwrap();
        assert_eq!(guest.read(fd, 1), Err(WasiErrno::BADF));
    }
}

#[test]
fn only_what_is_allowed_is_reached() {
    let [allowed, denied] = [0; 2].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    denied.set_nonblocking(true).unwrap();
    let [to, other] = [&allowed, &denied].map(|server| server.local_addr().unwrap());
    let mut guest = guest(&[to]);
    let fd = guest.socket(to, STREAM);
    assert_eq!(guest.connect(fd, other), Err(WasiErrno::ACCES));
    assert!(denied.accept().is_err(), "the server saw something");
    let port = guest.address("127.0.0.1:80".parse().unwrap());
    let bound = guest.wasi.sock_bind(&mut guest.memory, fd, ADDRESS, port);
    assert_eq!(bound, Err(WasiErrno::ACCES));
    let memory = &mut guest.memory;
    assert_eq!(guest.wasi.sock_listen(memory, fd, 1), Err(WasiErrno::ACCES));
    assert_eq!(guest.wasi.sock_accept(memory, fd, 0, OUT), Err(WasiErrno::INVAL));
    assert_eq!(guest.wasi.sock_accept_v1(memory, fd, OUT), Err(WasiErrno::INVAL));
    assert_eq!(guest.wasi.sock_listen(memory, DATA, 1), Err(WasiErrno::NOTSOCK));
    for (family, kind, errno) in [
        (0, STREAM, WasiErrno::INVAL),
        (3, STREAM, WasiErrno::NOSYS),
        (257, STREAM, WasiErrno::INVAL),
        (1, 0, WasiErrno::INVAL),
        (1, 3, WasiErrno::INVAL),
    ] {
        assert_eq!(guest.wasi.sock_open(memory, family, kind, OUT), Err(errno));
    }
    memory.words(OUT, &[2]);
    memory.words(BYTES, &[1]);
    assert_eq!(guest.wasi.sock_getsockopt(memory, fd, 0, 1, BYTES, OUT), Err(WasiErrno::INVAL));
    memory.words(OUT, &[4]);
    guest.wasi.sock_getsockopt(memory, fd, 0, 1, BYTES, OUT).unwrap();
    assert_eq!(memory.u32_at(BYTES), STREAM);
    assert_eq!(guest.wasi.sock_setsockopt(memory, fd, 0, 7, BYTES, 4), Ok(()));
    assert_eq!(guest.wasi.sock_setsockopt(memory, fd, 0, 14, BYTES, 4), Err(WasiErrno::NOPROTOOPT));
}

#[test]
fn datagrams_tell_their_sender() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = server.local_addr().unwrap();
    let mut guest = guest(&[to]);
    let fd = guest.socket(to, DATAGRAM);
    assert_eq!(guest.fd_stat(fd).unwrap().0, 5);
    let port = guest.address("0.0.0.0:0".parse().unwrap());
    guest.wasi.sock_bind(&mut guest.memory, fd, ADDRESS, port).unwrap();
    guest.memory.put(BYTES, b"question");
    guest.part(8);
    let port = guest.address(to);
    let memory = &mut guest.memory;
    guest.wasi.sock_send_to(memory, fd, PARTS, 1, ADDRESS, port, 0, OUT).unwrap();
    let mut bytes = [0; 99];
    let (len, from) = server.recv_from(&mut bytes).unwrap();
    assert_eq!(&bytes[..len], b"question");
    for _ in 0..2 {
        server.send_to(b"long answer", from).unwrap();
    }
    memory.words(PARTS, &[BYTES, 2, BYTES + 100, 2]);
    memory.words(ADDRESS, &[ADDRESS_BYTES, 128]);
    memory.words(PORT, &[0]);
    guest.wasi.sock_recv_from(memory, fd, PARTS, 2, ADDRESS, 0, PORT, OUT, OUT + 4).unwrap();
    assert_eq!((memory.u32_at(OUT), memory.u32_at(OUT + 4) & 0xffff), (4, 1), "cut off");
    assert_eq!(
        (memory.bytes_at(BYTES, 2), memory.bytes_at(BYTES + 100, 2)),
        (b"lo".to_vec(), b"ng".to_vec())
    );
    assert_eq!(memory.bytes_at(ADDRESS_BYTES, 6), [1, 0, 127, 0, 0, 1]);
    assert_eq!(memory.u32_at(PORT), u32::from(to.port()));
    memory.words(ADDRESS, &[ADDRESS_BYTES, 4]);
    guest.wasi.sock_recv_from_v1(memory, fd, PARTS, 2, ADDRESS, 0, OUT, OUT + 4).unwrap();
    assert_eq!(memory.bytes_at(ADDRESS_BYTES, 4), [127, 0, 0, 1]);
    memory.words(ADDRESS, &[ADDRESS_BYTES, 5]);
    let received = guest.wasi.sock_recv_from(memory, fd, PARTS, 2, ADDRESS, 0, PORT, OUT, OUT);
    assert_eq!(received, Err(WasiErrno::INVAL));
    let received = guest.wasi.sock_recv(memory, fd, PARTS, 2, 4, OUT, OUT);
    assert_eq!(received, Err(WasiErrno::INVAL));
    guest.wasi.fd_fdstat_set_flags(memory, fd, NONBLOCK).unwrap();
    let received = guest.wasi.sock_recv(memory, fd, PARTS, 2, 0, OUT, OUT + 4);
    assert_eq!(received, Err(WasiErrno::AGAIN));
    assert_eq!(guest.wasi.fd_fdstat_set_flags(memory, fd, APPEND), Err(WasiErrno::INVAL));
}

#[test]
fn a_reset_stream_raises_no_signal() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = server.local_addr().unwrap();
    let mut guest = guest(&[to]);
    let fd = guest.socket(to, STREAM);
    guest.connect(fd, to).unwrap();
    guest.wasi.sock_shutdown(&mut guest.memory, fd, 3).unwrap();
    assert_eq!(guest.write(fd, b"x"), Err(WasiErrno::PIPE));
}
