//! Each option, read and set.

use std::net::{TcpListener, UdpSocket};
use std::os::fd::AsFd as _;

use super::super::refusals::tests::lines;
use super::super::tests::{Memory, sockets};
use super::*;

/// Numbers of the engine's options.
const REFUSED: [u32; 6] = [0, 3, 4, 8, 10, 14];
const READ_ONLY: [u32; 3] = [1, 2, 13];
const BUFFER: u32 = 5;
const KEEP_ALIVE: u32 = 7;
const LINGER: u32 = 9;
const TIMEOUT: u32 = 11;

/// Sets an option to these bytes.
fn set(name: u32, value: &[u8]) -> Result<(), WasiErrno> {
    set_at(&UdpSocket::bind("127.0.0.1:0").unwrap(), (SOL_SOCKET, name), value)
}

fn set_at(socket: &UdpSocket, option: (u32, u32), value: &[u8]) -> Result<(), WasiErrno> {
    let mut memory = Memory::new();
    memory.put(64, value);
    let len = u32::try_from(value.len()).unwrap();
    sockets(&[]).set_option(&memory, socket.as_fd(), option, (GuestPtr(64), len))
}

/// An option's bytes, in a place with as much room.
fn get(socket: BorrowedFd<'_>, name: u32, room: u32) -> Result<Vec<u8>, WasiErrno> {
    let mut memory = Memory::new();
    memory.words(60, &[room, 0x7fff_ffff]);
    let places = (GuestPtr(64), GuestPtr(60));
    sockets(&[]).get_option(&mut memory, socket, (SOL_SOCKET, name), places)?;
    let len = u32_at(memory.slice(GuestPtr(60), 4).unwrap());
    Ok(memory.slice(GuestPtr(64), len).unwrap().to_vec())
}

#[test]
fn other_options_are_refused_and_logged() {
    for name in REFUSED {
        assert_eq!(set(name, &[1; 16]), Err(WasiErrno::NOPROTOOPT), "{}", NAMES[name as usize]);
        assert!(lines()[0].contains(NAMES[name as usize]));
    }
    let own = UdpSocket::bind("127.0.0.1:0").unwrap();
    assert_eq!(get(own.as_fd(), 14, 16), Err(WasiErrno::NOPROTOOPT));
    for name in READ_ONLY {
        assert_eq!(set(name, &[1; 16]), Err(WasiErrno::NOPROTOOPT), "{}", NAMES[name as usize]);
    }
    // SO_MARK, SO_PRIORITY and the like have no number; nor has any level but the sockets' own.
    for option in [(SOL_SOCKET, 15), (SOL_SOCKET, 36), (SOL_SOCKET, u32::MAX), (1, 7), (6, 1)] {
        assert_eq!(set_at(&own, option, &[1; 16]), Err(WasiErrno::NOPROTOOPT), "{option:?}");
    }
}

#[test]
fn listed_options_reach_the_socket() {
    let own = UdpSocket::bind("127.0.0.1:0").unwrap();
    let set = |name, value: &[u8]| set_at(&own, (SOL_SOCKET, name), value);
    assert_eq!(set(KEEP_ALIVE, &1_u32.to_le_bytes()), Ok(()));
    assert_eq!(get(own.as_fd(), KEEP_ALIVE, 4), Ok(int(1)));
    assert_eq!(set(BUFFER, &8192_u32.to_le_bytes()), Ok(()));
    // The kernel doubles it for its own use.
    assert_eq!(get(own.as_fd(), BUFFER, 4), Ok(int(16384)));
    let time = [2_i64.to_le_bytes(), 500_000_i64.to_le_bytes()].concat();
    assert_eq!(set(TIMEOUT, &time), Ok(()));
    let read = own.read_timeout().unwrap().unwrap();
    // In the kernel's ticks.
    assert_eq!(read.as_secs(), 2, "{read:?}");
    assert_eq!(get(own.as_fd(), TIMEOUT, 16).unwrap()[..8], time[..8]);
    assert_eq!(set(TIMEOUT, &[0; 16]), Ok(()));
    assert_eq!(own.read_timeout().unwrap(), None);
    assert_eq!(get(own.as_fd(), 1, 4), Ok(int(DATAGRAM)));
    assert_eq!(get(TcpListener::bind("127.0.0.1:0").unwrap().as_fd(), 13, 4), Ok(int(1)));
}

#[test]
fn a_close_does_not_wait() {
    let linger = |on: i32, seconds: i32| set(LINGER, &[int(on), int(seconds)].concat());
    assert_eq!(linger(1, 60), Err(WasiErrno::NOPROTOOPT));
    assert_eq!(linger(1, -1), Err(WasiErrno::NOPROTOOPT));
    assert_eq!(linger(1, 0), Ok(()));
    assert_eq!(linger(0, 60), Ok(()));
}

/// A guest's bytes are no error, and no index.
#[test]
fn an_error_is_the_sockets_own() {
    let own = UdpSocket::bind("127.0.0.1:0").unwrap();
    assert_eq!(get(own.as_fd(), 2, 0), Err(WasiErrno::INVAL));
    assert_eq!(get(own.as_fd(), 2, 3), Err(WasiErrno::INVAL));
    assert_eq!(get(own.as_fd(), 2, 4), Ok(int(0)));
    // A port without a listener.
    let gone = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    own.connect(gone).unwrap();
    own.send(b"x").unwrap();
    let refused = int(WasiErrno::from(Errno::ECONNREFUSED).0.into());
    assert_eq!(get(own.as_fd(), 2, 64), Ok(refused));
    assert_eq!(get(own.as_fd(), 2, 64), Ok(int(0)), "read once");
}

#[test]
fn values_outside_memory_are_faults() {
    let own = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut memory = Memory::new();
    memory.words(60, &[4]);
    let sockets = sockets(&[]);
    let keep_alive = (SOL_SOCKET, KEEP_ALIVE);
    for at in [4093, u32::MAX] {
        let set = sockets.set_option(&memory, own.as_fd(), keep_alive, (GuestPtr(at), 4));
        assert_eq!(set, Err(WasiErrno::FAULT));
        for places in [(GuestPtr(at), GuestPtr(60)), (GuestPtr(64), GuestPtr(at))] {
            let got = sockets.get_option(&mut memory, own.as_fd(), keep_alive, places);
            assert_eq!(got, Err(WasiErrno::FAULT));
        }
    }
}
