//! Ports for servers of tests.

use std::fs;
use std::net::{IpAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// A free port of an address, below those that the kernel gives to connections: a connection that has the port of a
/// server keeps it from starting again, and one to a server that is away can even get that server's port and reach
/// itself.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn free_port(address: IpAddr) -> u16 {
    /// Lowest one that is tried.
    const FIRST: u32 = 10_000;
    /// Between the first tries of processes that start one after the other.
    const APART: u32 = 97;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let count = first_of_connections() - FIRST;
    let tried = std::process::id().wrapping_mul(APART);
    let tried = tried.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % count;
    (0..count)
        .map(|step| FIRST + (tried + step) % count)
        .filter_map(|port| u16::try_from(port).ok())
        .find(|port| TcpListener::bind((address, *port)).is_ok())
        .expect("a free port")
}

/// Lowest port that the kernel gives to connections.
fn first_of_connections() -> u32 {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let range = range.expect("the kernel says which ports it gives to connections");
    let first = range.split_whitespace().next().and_then(|first| first.parse().ok());
    first.filter(|first| *first > 20_000).unwrap_or(32_768)
}
