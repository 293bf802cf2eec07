//! HTTP connections that ask for nothing, beside a client and another tenant.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};

use cwasi_testbed::port::free_port;

use super::neighbour::Neighbour;
use crate::scene;

/// More than the connections that one function's port serves (512), less than twice as many.
const IDLE: usize = 600;
/// One that is neither among the oldest nor beyond the bound.
const KEPT: usize = 300;

/// True if the server has closed the connection.
fn is_closed(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    match (&*stream).read(&mut [0]) {
        Ok(0) => true,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
        Ok(_) => panic!("a response without a request"),
    }
}

fn request(port: u16) -> String {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    let head = "POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 5\r\n\r\n";
    write!(stream, "{head}hello").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn idle_connections_keep_no_client_out() {
    let scene = scene("fair-idle");
    let neighbour = Neighbour::beside(&scene);
    let port = free_port(Ipv4Addr::LOCALHOST.into());
    let run = scene.guest("svc", "server").annotation("cwasi.role", "secondary");
    let run = run.annotation("cwasi.http", &port.to_string()).flag("--net-host");
    scene.start(run);
    let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    let idle: Vec<TcpStream> = (0..IDLE).map(|_| connect()).collect();
    // As a probe does, one connection for each request.
    for _ in 0..3 {
        let answer = request(port);
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("hello"), "{answer}");
    }
    // They were answered because the oldest made room, not because all have timed out.
    assert!(is_closed(&idle[0]) && !is_closed(&idle[KEPT]) && !is_closed(&idle[IDLE - 1]));
    neighbour.calls(3);
    // The neighbour's check for leftovers is the first, and finds those of all.
    scene.remove_containers();
}
