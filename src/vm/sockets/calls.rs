//! Socket functions that name a destination: their parameters in linear memory, and the system calls. Runs in a
//! worker.

use std::io::IoSlice;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd as _, BorrowedFd};

use cwasi_host_functions::{GuestMemory, GuestPtr};
use nix::sys::socket::{MsgFlags, SockaddrStorage, bind, connect, sendmsg};

use super::dns::RecordKind;
use super::refusals::RefusedAccess;
use super::{Sockets, WasiErrno};

/// Most parts of one message, as in the engine.
const PARTS_MAX: u32 = 1024;
/// Longest host name and longest service.
const NAME_MAX: u32 = 1024;
/// Most results of one look-up.
const RESULTS_MAX: u32 = 64;

/// `__wasi_address_family_t`.
const INET4: u8 = 1;
const INET6: u8 = 2;
/// Length of an address in the engine's form: a `u16` with the family, then the address.
const STORAGE_LEN: u32 = 128;
/// `__wasi_sock_type_t`, and the protocol of each.
const DATAGRAM: u8 = 1;
const STREAM: u8 = 2;
const TCP: u8 = 1;
const UDP: u8 = 2;
/// `__wasi_aiflags_t`.
const PASSIVE: u16 = 1 << 0;
const NUMERIC_HOST: u16 = 1 << 2;
/// Services that guests give by name. `/etc/services` is not read.
const SERVICES: [(&str, u16); 5] =
    [("domain", 53), ("http", 80), ("https", 443), ("ntp", 123), ("smtp", 25)];

type SocketResult = Result<(), WasiErrno>;

/// A guest's text: address and length in bytes.
pub type Text = (GuestPtr, u32);

/// Addresses for a look-up's results.
#[derive(Clone, Copy, Debug)]
pub struct Results {
    /// Address of the pointer to the first entry of the guest's list.
    pub list: GuestPtr,
    /// Length of that list.
    pub max: u32,
    /// Address for the number of results.
    pub len_out: GuestPtr,
}

impl Sockets {
    /// `sock_connect`.
    pub fn connect(
        &self,
        memory: &impl GuestMemory,
        socket: BorrowedFd<'_>,
        (address, port): (GuestPtr, u32),
    ) -> SocketResult {
        let to = destination(memory, address, port)?;
        self.allows(to)?;
        Ok(connect(socket.as_raw_fd(), &SockaddrStorage::from(to))?)
    }

    /// `sock_bind`.
    pub fn bind(
        &self,
        memory: &impl GuestMemory,
        socket: BorrowedFd<'_>,
        (address, port): (GuestPtr, u32),
    ) -> SocketResult {
        let at = destination(memory, address, port)?;
        self.allows_bind(at)?;
        Ok(bind(socket.as_raw_fd(), &SockaddrStorage::from(at))?)
    }

    /// `sock_listen`: only callers' shims call functions.
    pub fn listen(&self) -> SocketResult {
        Err(self.refuse(RefusedAccess::Listening))
    }

    /// `sock_send_to`; `parts` is an array of pointers and lengths.
    pub fn send_to(
        &self,
        memory: &mut impl GuestMemory,
        socket: BorrowedFd<'_>,
        parts: (GuestPtr, u32),
        (address, port): (GuestPtr, u32),
        sent_out: GuestPtr,
    ) -> SocketResult {
        let to = destination(memory, address, port)?;
        self.allows(to)?;
        // First checks that the length can be written, before anything is sent.
        memory.write(sent_out, &[0; 4])?;
        let (array, count) = parts;
        if count > PARTS_MAX {
            return Err(WasiErrno::INVAL);
        }
        let mut slices = Vec::new();
        for index in 0..count {
            let at = array.0.checked_add(index * 8).ok_or(WasiErrno::FAULT)?;
            let [ptr, len] = words(memory, at)?;
            slices.push(IoSlice::new(memory.slice(GuestPtr(ptr), len)?));
        }
        let to = SockaddrStorage::from(to);
        let flags = MsgFlags::MSG_NOSIGNAL;
        let sent = sendmsg(socket.as_raw_fd(), &slices, &[], flags, Some(&to))?;
        let sent = u32::try_from(sent).unwrap_or(u32::MAX);
        Ok(memory.write(sent_out, &sent.to_le_bytes())?)
    }

    /// `sock_getaddrinfo`.
    pub fn get_addr_info(
        &self,
        memory: &mut impl GuestMemory,
        (node, service): (Text, Text),
        hints: GuestPtr,
        results: Results,
    ) -> SocketResult {
        let (node, service) = (text(memory, node)?, text(memory, service)?);
        let wanted = LookUpHints::read(memory.slice(hints, 28)?)?;
        if (node.is_empty() && service.is_empty()) || results.max == 0 {
            return Err(WasiErrno::AI_NO_NAME);
        }
        let port = port(&service)?;
        let addresses = match node.parse::<IpAddr>() {
            _ if node.is_empty() => wanted.own_addresses(),
            Ok(address) => vec![address],
            Err(_) if wanted.flags & NUMERIC_HOST != 0 => return Err(WasiErrno::AI_NO_NAME),
            Err(_) => self.look_up(&node, wanted.kinds)?,
        };
        write_results(memory, wanted, &addresses, port, results)
    }
}

#[derive(Clone, Copy)]
struct LookUpHints {
    flags: u16,
    kinds: &'static [RecordKind],
    socket_type: u8,
    protocol: u8,
}

impl LookUpHints {
    fn read(hints: &[u8]) -> Result<Self, WasiErrno> {
        let kinds: &[RecordKind] = match hints[2] {
            0 => &[RecordKind::A, RecordKind::Aaaa],
            INET4 => &[RecordKind::A],
            INET6 => &[RecordKind::Aaaa],
            _ => return Err(WasiErrno::AI_FAMILY),
        };
        let (socket_type, protocol) = match (hints[3], hints[4]) {
            (DATAGRAM, 0 | UDP) | (0, UDP) => (DATAGRAM, UDP),
            (STREAM | 0, 0 | TCP) => (STREAM, TCP),
            _ => return Err(WasiErrno::INVAL),
        };
        let flags = u16::from_le_bytes([hints[0], hints[1]]);
        Ok(Self { flags, kinds, socket_type, protocol })
    }

    /// The result of a look-up without a host.
    fn own_addresses(&self) -> Vec<IpAddr> {
        let passive = self.flags & PASSIVE != 0;
        let own = |kind: &RecordKind| match (kind, passive) {
            (RecordKind::A, true) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
            (RecordKind::A, false) => IpAddr::from(Ipv4Addr::LOCALHOST),
            (RecordKind::Aaaa, true) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
            (RecordKind::Aaaa, false) => IpAddr::from(Ipv6Addr::LOCALHOST),
        };
        self.kinds.iter().map(own).collect()
    }
}

/// Two `u32`s.
fn words(memory: &impl GuestMemory, at: u32) -> Result<[u32; 2], WasiErrno> {
    let bytes = memory.slice(GuestPtr(at), 8)?;
    let word =
        |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    Ok([word(0), word(4)])
}

/// An address by a pointer to its bytes and their length.
fn destination(
    memory: &impl GuestMemory,
    address: GuestPtr,
    port: u32,
) -> Result<SocketAddr, WasiErrno> {
    let [ptr, len] = words(memory, address.0)?;
    let bytes = memory.slice(GuestPtr(ptr), len.min(STORAGE_LEN))?;
    let v4 = |bytes: &[u8]| <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from);
    let v6 = |bytes: &[u8]| <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from);
    let ip = match len {
        4 => v4(bytes),
        16 => v6(bytes),
        STORAGE_LEN => match (bytes[0], bytes[1]) {
            (INET4, 0) => v4(&bytes[2..6]),
            (INET6, 0) => v6(&bytes[2..18]),
            _ => return Err(WasiErrno::AFNOSUPPORT),
        },
        _ => None,
    };
    let port = u16::try_from(port).map_err(|_| WasiErrno::INVAL)?;
    Ok(SocketAddr::new(ip.ok_or(WasiErrno::INVAL)?, port))
}

/// Text of a guest, without trailing zero bytes.
fn text(memory: &impl GuestMemory, (ptr, len): Text) -> Result<String, WasiErrno> {
    if len > NAME_MAX {
        return Err(WasiErrno::AI_NO_NAME);
    }
    // Copied first: behind a leased region another process can change the guest's bytes.
    let bytes = memory.slice(ptr, len)?.to_vec();
    let text = String::from_utf8(bytes).map_err(|_| WasiErrno::AI_NO_NAME)?;
    Ok(text.trim_end_matches('\0').to_owned())
}

fn port(service: &str) -> Result<u16, WasiErrno> {
    if service.is_empty() {
        return Ok(0);
    }
    let named = SERVICES.iter().find(|(name, _)| *name == service).map(|(_, port)| *port);
    named.or_else(|| service.parse().ok()).ok_or(WasiErrno::AI_SERVICE)
}

/// Fills the guest's list up to the shorter length.
fn write_results(
    memory: &mut impl GuestMemory,
    wanted: LookUpHints,
    addresses: &[IpAddr],
    port: u16,
    results: Results,
) -> SocketResult {
    let mut place = u32::from_le_bytes(four(memory, results.list.0)?);
    let mut written = 0_u32;
    for address in addresses.iter().take(results.max.min(RESULTS_MAX) as usize) {
        if place == 0 {
            break;
        }
        write_result(memory, wanted, *address, port, place)?;
        written += 1;
        place = u32::from_le_bytes(four(memory, offset(place, 24)?)?);
    }
    Ok(memory.write(results.len_out, &written.to_le_bytes())?)
}

/// Fills one `__wasi_addrinfo_t` and the structures that it points to.
fn write_result(
    memory: &mut impl GuestMemory,
    wanted: LookUpHints,
    address: IpAddr,
    port: u16,
    place: u32,
) -> SocketResult {
    // In a `sockaddr_in` and a `sockaddr_in6`, these fields follow the family.
    let (family, data) = match address {
        IpAddr::V4(v4) => (INET4, [&port.to_be_bytes()[..], &v4.octets(), &[0; 8]].concat()),
        IpAddr::V6(v6) => {
            (INET6, [&port.to_be_bytes()[..], &[0; 4], &v6.octets(), &[0; 4]].concat())
        }
    };
    let data_len = u32::try_from(data.len()).unwrap_or(u32::MAX);
    let socket_address = u32::from_le_bytes(four(memory, offset(place, 12)?)?);
    let [capacity, data_at] = words(memory, offset(socket_address, 4)?)?;
    if capacity < data_len {
        return Err(WasiErrno::AI_MEMORY);
    }
    memory.write(GuestPtr(data_at), &data)?;
    memory.write(GuestPtr(socket_address), &[family])?;
    memory.write(GuestPtr(offset(socket_address, 4)?), &data_len.to_le_bytes())?;
    let [low, high] = wanted.flags.to_le_bytes();
    let head = [low, high, family, wanted.socket_type, wanted.protocol];
    memory.write(GuestPtr(place), &head)?;
    // The family takes two more bytes.
    memory.write(GuestPtr(offset(place, 8)?), &(data_len + 2).to_le_bytes())?;
    Ok(memory.write(GuestPtr(offset(place, 20)?), &[0; 4])?)
}

fn four(memory: &impl GuestMemory, at: u32) -> Result<[u8; 4], WasiErrno> {
    let bytes = memory.slice(GuestPtr(at), 4)?;
    <[u8; 4]>::try_from(bytes).map_err(|_| WasiErrno::FAULT)
}

fn offset(at: u32, by: u32) -> Result<u32, WasiErrno> {
    at.checked_add(by).ok_or(WasiErrno::FAULT)
}
