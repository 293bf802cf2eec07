//! Ports for servers of tests.

use std::fs::{self, File};
use std::net::{IpAddr, TcpListener};
use std::sync::{Mutex, PoisonError};

/// Lowest port.
const FIRST: u32 = 10_000;
/// Ports that a process of tests takes at a time.
const BLOCK: u32 = 100;

/// The ports that this process has: none of another process of tests.
struct Reserved {
    next: u32,
    end: u32,
    /// Their locked files; the locks end with the process.
    locked: Vec<File>,
}

static RESERVED: Mutex<Reserved> = Mutex::new(Reserved { next: 0, end: 0, locked: Vec::new() });

impl Reserved {
    /// Takes the first block that no process has. A lock on a file holds in each network namespace.
    fn extend(&mut self) {
        let folder = std::env::temp_dir().join("cwasi-test-ports");
        fs::create_dir_all(&folder).expect("a folder for locks");
        let mut blocks = (FIRST..first_of_connections() - BLOCK).step_by(BLOCK as usize);
        let lock = |first: u32| {
            let file = File::create(folder.join(first.to_string())).ok()?;
            file.try_lock().is_ok().then_some((first, file))
        };
        let (first, file) = blocks.find_map(lock).expect("a block of free ports");
        (self.next, self.end) = (first, first + BLOCK);
        self.locked.push(file);
    }
}

/// A free port of an address, which no other process of tests gets meanwhile. It is below those that the kernel gives
/// to connections: a connection that has the port of a server keeps it from starting again, and one to a server that is
/// away can even get that server's port and reach itself.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn free_port(address: IpAddr) -> u16 {
    let mut reserved = RESERVED.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if reserved.next == reserved.end {
            reserved.extend();
        }
        let port = u16::try_from(reserved.next).expect("ports have 16 bits");
        reserved.next += 1;
        // A server outside of the tests may have it.
        if TcpListener::bind((address, port)).is_ok() {
            return port;
        }
    }
}

/// Lowest port that the kernel gives to connections.
fn first_of_connections() -> u32 {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let range = range.expect("the kernel says which ports it gives to connections");
    let first = range.split_whitespace().next().and_then(|first| first.parse().ok());
    first.filter(|first| *first > 20_000).unwrap_or(32_768)
}
