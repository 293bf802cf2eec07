//! A client on the network. Does what its arguments say, one after the other, and prints a line for each: the argument,
//! ` -> `, and what came of it or `errno N`.
//!
//! - `look=NAME`: looks a name up; prints its addresses, sorted.
//! - `tcp=ADDRESS`, `tcp=NAME:PORT`: connects; prints what the server says.
//! - `redis=COMMAND`: sends a command to the service `cache`, whose address is in the environment; prints the answer.
//! - `env=NAME`: prints a variable.
//! - `udp=ADDRESS`: sends a datagram; prints the answer.
//!
//! Runs inside a guest. Uses the crate that Rust functions for this engine use, and the engine's functions themselves
//! where that crate knows IPv4 only.

mod addresses;

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::FromRawFd as _;
use std::time::Duration;

use wasmedge_wasi_socket::{TcpStream, UdpSocket};

/// Longest answer in bytes.
const ANSWER_MAX: usize = 256;
/// Longest wait for one.
const ANSWER_WAIT: Duration = Duration::from_secs(20);

fn main() {
    for order in std::env::args().skip(1) {
        let outcome = match order.split_once('=') {
            Some(("look", name)) => addresses::look_up(name).map(listed),
            Some(("tcp", to)) => over_tcp(to),
            Some(("udp", to)) => over_udp(to),
            Some(("redis", command)) => of_redis(command),
            Some(("env", name)) => std::env::var(name).map_err(io::Error::other),
            _ => Ok("no such order".to_owned()),
        };
        let said = outcome.unwrap_or_else(|error| match error.raw_os_error() {
            Some(errno) => format!("errno {errno}"),
            None => error.to_string(),
        });
        println!("{order} -> {said}");
    }
}

fn listed(mut addresses: Vec<IpAddr>) -> String {
    addresses.sort();
    let texts: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
    texts.join(" ")
}

fn connect(to: &str) -> io::Result<TcpStream> {
    let mut stream = match to.parse::<SocketAddr>() {
        // SAFETY:
        // - a socket of this function's own.
        Ok(address) => unsafe { TcpStream::from_raw_fd(addresses::connect(address)?) },
        Err(_name) => TcpStream::connect(to)?,
    };
    stream.as_mut().set_recv_timeout(Some(ANSWER_WAIT))?;
    Ok(stream)
}

fn of_redis(command: &str) -> io::Result<String> {
    let of_service =
        |part: &str| std::env::var(format!("CACHE_SERVICE_{part}")).map_err(io::Error::other);
    let mut stream = connect(&format!("{}:{}", of_service("HOST")?, of_service("PORT")?))?;
    stream.write_all(format!("{command}\r\n").as_bytes())?;
    let mut answer = [0; ANSWER_MAX];
    let len = stream.read(&mut answer)?;
    let lines = String::from_utf8_lossy(&answer[..len]);
    Ok(lines.lines().collect::<Vec<_>>().join(" "))
}

fn over_tcp(to: &str) -> io::Result<String> {
    let mut stream = connect(to)?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

fn over_udp(to: &str) -> io::Result<String> {
    let to: SocketAddr = to.parse().map_err(io::Error::other)?;
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    socket.send_to(b"ping", to)?;
    let mut answer = [0; ANSWER_MAX];
    // The crate reads the sender from a place that it has not declared as changing: for IPv4 it is always 0.0.0.0.
    let (len, _sender) = socket.recv_from(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer[..len]).into_owned())
}
