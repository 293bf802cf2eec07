//! The engine's functions for addresses of both families, by hand.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ptr;

/// Most addresses of one name.
const ADDRESSES_MAX: usize = 64;
/// Length of the longest address with port, flow and scope.
const DATA_MAX: usize = 26;
const INET4: u8 = 1;
const INET6: u8 = 2;
const STREAM: u32 = 2;

#[repr(C)]
struct Bytes {
    start: *const u8,
    len: usize,
}

#[repr(C)]
struct SocketAddress {
    family: u8,
    len: u32,
    data: *mut u8,
}

#[derive(Clone)]
#[repr(C)]
struct AddressInfo {
    flags: u16,
    family: u8,
    kind: u8,
    protocol: u8,
    len: u32,
    address: *mut SocketAddress,
    canonical: *mut u8,
    canonical_len: u32,
    next: *mut AddressInfo,
}

impl AddressInfo {
    const ANY: Self = Self {
        flags: 0,
        family: 0,
        kind: 0,
        protocol: 0,
        len: 0,
        address: ptr::null_mut(),
        canonical: ptr::null_mut(),
        canonical_len: 0,
        next: ptr::null_mut(),
    };
}

#[link(wasm_import_module = "wasi_snapshot_preview1")]
unsafe extern "C" {
    fn sock_open(family: u32, kind: u32, fd: *mut i32) -> i32;
    fn sock_connect(fd: i32, address: *const Bytes, port: u32) -> i32;
    fn sock_getaddrinfo(
        node: *const u8,
        node_len: u32,
        service: *const u8,
        service_len: u32,
        hints: *const AddressInfo,
        list: *mut *mut AddressInfo,
        max: u32,
        len: *mut u32,
    ) -> i32;
}

fn check(errno: i32) -> io::Result<()> {
    if errno == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(errno)) }
}

/// A socket that is connected.
pub fn connect(to: SocketAddr) -> io::Result<i32> {
    let (family, bytes) = match to.ip() {
        IpAddr::V4(v4) => (INET4, v4.octets().to_vec()),
        IpAddr::V6(v6) => (INET6, v6.octets().to_vec()),
    };
    let mut fd = -1;
    // SAFETY:
    // - a place for the number.
    check(unsafe { sock_open(family.into(), STREAM, &raw mut fd) })?;
    let address = Bytes { start: bytes.as_ptr(), len: bytes.len() };
    // SAFETY:
    // - the address and its bytes are read during the call.
    check(unsafe { sock_connect(fd, &raw const address, to.port().into()) })?;
    Ok(fd)
}

/// The addresses of a name.
pub fn look_up(name: &str) -> io::Result<Vec<IpAddr>> {
    let mut data = vec![[0_u8; DATA_MAX]; ADDRESSES_MAX];
    let mut places: Vec<SocketAddress> = data
        .iter_mut()
        .map(|data| SocketAddress { family: 0, len: DATA_MAX as u32, data: data.as_mut_ptr() })
        .collect();
    let mut list = vec![AddressInfo::ANY; ADDRESSES_MAX];
    for (info, place) in list.iter_mut().zip(&mut places) {
        info.address = place;
    }
    for index in (1..ADDRESSES_MAX).rev() {
        let next: *mut AddressInfo = &raw mut list[index];
        list[index - 1].next = next;
    }
    let hints = AddressInfo::ANY;
    let (mut first, mut len) = (list.as_mut_ptr(), 0);
    let node_len = u32::try_from(name.len()).map_err(io::Error::other)?;
    // SAFETY:
    // - the texts are as long as is said; the list has that many places, each with one for its address.
    check(unsafe {
        sock_getaddrinfo(
            name.as_ptr(),
            node_len,
            ptr::null(),
            0,
            &raw const hints,
            &raw mut first,
            ADDRESSES_MAX as u32,
            &raw mut len,
        )
    })?;
    Ok(places
        .iter()
        .zip(&data)
        .take(len as usize)
        .map(|(place, data)| address(place, data))
        .collect())
}

/// What follows the port, and the flow of IPv6.
fn address(place: &SocketAddress, data: &[u8; DATA_MAX]) -> IpAddr {
    if place.family == INET4 {
        let mut octets = [0; 4];
        octets.copy_from_slice(&data[2..6]);
        Ipv4Addr::from(octets).into()
    } else {
        let mut octets = [0; 16];
        octets.copy_from_slice(&data[6..22]);
        Ipv6Addr::from(octets).into()
    }
}
