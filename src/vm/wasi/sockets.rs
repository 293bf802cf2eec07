//! Sockets: those of WASI preview 1, and WasmEdge's functions that open them. Runs in a worker.
//!
//! [`Sockets`] decides about every destination and every option. Without a network no guest has a socket.

use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, AsRawFd as _};

use cwasi_host_functions::{GuestMemory, GuestPtr};
use cwasi_vm::sockets::{Results, Sockets};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, Shutdown, SockFlag, SockType, SockaddrStorage, recvmsg, sendmsg,
    shutdown, socket,
};

use crate::buffers::{gather, scatter, uninterrupted};
use crate::descriptors::{Descriptor, Found, Socket};
use crate::layout::{FileType, check_room, get_u32, put, put_len, put_u16, put_u32};
use crate::{Wasi, WasiErrno, WasiResult};

/// `__wasi_address_family_t`.
const INET4: u8 = 1;
const INET6: u8 = 2;
const UNIX: u32 = 3;
/// `__wasi_sock_type_t`.
const DATAGRAM: u32 = 1;
const STREAM: u32 = 2;
/// Length of an address with its family in front, a `u16`.
pub(crate) const STORAGE_LEN: u32 = 128;
/// `riflags`
const PEEK: u32 = 1 << 0;
const WAIT_ALL: u32 = 1 << 1;
/// `roflags`
const TRUNCATED: u16 = 1 << 0;

impl Wasi {
    pub fn sock_open(
        &mut self,
        memory: &mut impl GuestMemory,
        family: u32,
        kind: u32,
        fd_out: u32,
    ) -> WasiResult {
        self.network()?;
        check_room(memory, fd_out, 4)?;
        let family = match u8::try_from(family) {
            Ok(INET4) => AddressFamily::Inet,
            Ok(INET6) => AddressFamily::Inet6,
            _ if family == UNIX => return Err(WasiErrno::NOSYS),
            _ => return Err(WasiErrno::INVAL),
        };
        let (kind, file_type) = match kind {
            DATAGRAM => (SockType::Datagram, FileType::DatagramSocket),
            STREAM => (SockType::Stream, FileType::StreamSocket),
            _ => return Err(WasiErrno::INVAL),
        };
        self.check_descriptors()?;
        let fd = socket(family, kind, SockFlag::SOCK_CLOEXEC, None)?;
        let number = self.insert(Descriptor::Socket(Socket { fd, kind: file_type, flags: 0 }))?;
        put_u32(memory, fd_out, number)
    }

    pub fn sock_bind(
        &mut self,
        memory: &mut impl GuestMemory,
        fd: u32,
        address: u32,
        port: u32,
    ) -> WasiResult {
        let socket = self.socket(fd)?;
        self.network()?.bind(memory, socket.fd.as_fd(), (GuestPtr(address), port))
    }

    pub fn sock_connect(
        &mut self,
        memory: &mut impl GuestMemory,
        fd: u32,
        address: u32,
        port: u32,
    ) -> WasiResult {
        let socket = self.socket(fd)?;
        self.network()?.connect(memory, socket.fd.as_fd(), (GuestPtr(address), port))
    }

    pub fn sock_listen(
        &mut self,
        _memory: &mut impl GuestMemory,
        fd: u32,
        _backlog: u32,
    ) -> WasiResult {
        self.socket(fd)?;
        self.network()?.listen()
    }

    /// No socket of a guest listens. So the kernel would say, too.
    pub fn sock_accept(
        &mut self,
        memory: &mut impl GuestMemory,
        fd: u32,
        _flags: u32,
        fd_out: u32,
    ) -> WasiResult {
        self.sock_accept_v1(memory, fd, fd_out)
    }

    pub fn sock_accept_v1(
        &mut self,
        _memory: &mut impl GuestMemory,
        fd: u32,
        _fd_out: u32,
    ) -> WasiResult {
        match self.socket(fd)?.kind {
            FileType::DatagramSocket => Err(WasiErrno::NOTSUP),
            _ => Err(WasiErrno::INVAL),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "as WASI declares it")]
    pub fn sock_recv(
        &mut self,
        memory: &mut impl GuestMemory,
        fd: u32,
        parts: u32,
        count: u32,
        flags: u32,
        len_out: u32,
        flags_out: u32,
    ) -> WasiResult {
        self.receive_from(memory, fd, (parts, count), flags, (len_out, flags_out)).map(drop)
    }

    /// The older version tells no port, and the address only without its family.
    #[expect(clippy::too_many_arguments, reason = "as the extension declares it")]
    pub fn sock_recv_from_v1(
        &mut self,
        memory: &mut impl GuestMemory,
        fd: u32,
        parts: u32,
        count: u32,
        address: u32,
        flags: u32,
        len_out: u32,
        flags_out: u32,
    ) -> WasiResult {
        let (ptr, len) = place(memory, address)?;
        let outs = (len_out, flags_out);
        let from = self.receive_from(memory, fd, (parts, count), flags, outs)?;
        from.map_or(Ok(()), |from| put_bare(memory, (ptr, len), from.ip()))
    }

    #[expect(clippy::too_many_arguments, reason = "as the extension declares it")]
    pub fn sock_recv_from(
        &mut self,
        memory: &mut impl GuestMemory,
        fd: u32,
        parts: u32,
        count: u32,
        address: u32,
        flags: u32,
        port_out: u32,
        len_out: u32,
        flags_out: u32,
    ) -> WasiResult {
        let (ptr, len) = place(memory, address)?;
        if !matches!(len, 4 | 16 | STORAGE_LEN) {
            return Err(WasiErrno::INVAL);
        }
        check_room(memory, port_out, 2)?;
        let outs = (len_out, flags_out);
        let Some(from) = self.receive_from(memory, fd, (parts, count), flags, outs)? else {
            return Ok(());
        };
        if len == STORAGE_LEN {
            put_storage(memory, ptr, from.ip())?;
        } else {
            put_bare(memory, (ptr, len), from.ip())?;
        }
        put_u16(memory, port_out, from.port())
    }

    /// Receives a message, and writes its length and flags. Returns its sender, which a stream does not tell.
    fn receive_from(
        &self,
        memory: &mut impl GuestMemory,
        fd: u32,
        (parts, count): (u32, u32),
        flags: u32,
        (len_out, flags_out): (u32, u32),
    ) -> WasiResult<Option<SocketAddr>> {
        let mut kernel = MsgFlags::MSG_CMSG_CLOEXEC;
        kernel.set(MsgFlags::MSG_PEEK, flags & PEEK != 0);
        kernel.set(MsgFlags::MSG_WAITALL, flags & WAIT_ALL != 0);
        if flags & !(PEEK | WAIT_ALL) != 0 {
            return Err(WasiErrno::INVAL);
        }
        check_room(memory, len_out, 4)?;
        check_room(memory, flags_out, 2)?;
        let socket = self.socket(fd)?;
        let (len, is_truncated, from) =
            scatter(memory, parts, count, |slices| receive_message(socket, slices, kernel))??;
        put_len(memory, len_out, len)?;
        put_u16(memory, flags_out, if is_truncated { TRUNCATED } else { 0 })?;
        Ok(from)
    }

    pub fn sock_send(
        &mut self,
        memory: &mut impl GuestMemory,
        fd: u32,
        parts: u32,
        count: u32,
        _flags: u32,
        len_out: u32,
    ) -> WasiResult {
        check_room(memory, len_out, 4)?;
        let sent = send(self.socket(fd)?, &gather(memory, parts, count)?)?;
        put_len(memory, len_out, sent)
    }

    #[expect(clippy::too_many_arguments, reason = "as the extension declares it")]
    pub fn sock_send_to(
        &mut self,
        memory: &mut impl GuestMemory,
        fd: u32,
        parts: u32,
        count: u32,
        address: u32,
        port: u32,
        _flags: u32,
        len_out: u32,
    ) -> WasiResult {
        let socket = self.socket(fd)?.fd.as_fd();
        let (parts, to) = ((GuestPtr(parts), count), (GuestPtr(address), port));
        self.network()?.send_to(memory, socket, parts, to, GuestPtr(len_out))
    }

    pub fn sock_shutdown(
        &mut self,
        _memory: &mut impl GuestMemory,
        fd: u32,
        how: u32,
    ) -> WasiResult {
        let how = match how {
            1 => Shutdown::Read,
            2 => Shutdown::Write,
            3 => Shutdown::Both,
            _ => return Err(WasiErrno::INVAL),
        };
        Ok(shutdown(self.socket(fd)?.fd.as_raw_fd(), how)?)
    }

    pub fn sock_getsockopt(
        &mut self,
        memory: &mut impl GuestMemory,
        fd: u32,
        level: u32,
        name: u32,
        value: u32,
        len: u32,
    ) -> WasiResult {
        let socket = self.socket(fd)?.fd.as_fd();
        let places = (GuestPtr(value), GuestPtr(len));
        self.network()?.get_option(memory, socket, (level, name), places)
    }

    pub fn sock_setsockopt(
        &mut self,
        memory: &mut impl GuestMemory,
        fd: u32,
        level: u32,
        name: u32,
        value: u32,
        len: u32,
    ) -> WasiResult {
        let socket = self.socket(fd)?.fd.as_fd();
        self.network()?.set_option(memory, socket, (level, name), (GuestPtr(value), len))
    }

    #[expect(clippy::too_many_arguments, reason = "as the extension declares it")]
    pub fn sock_getaddrinfo(
        &mut self,
        memory: &mut impl GuestMemory,
        node: u32,
        node_len: u32,
        service: u32,
        service_len: u32,
        hints: u32,
        list: u32,
        max: u32,
        len_out: u32,
    ) -> WasiResult {
        let texts = ((GuestPtr(node), node_len), (GuestPtr(service), service_len));
        let results = Results { list: GuestPtr(list), max, len_out: GuestPtr(len_out) };
        self.network()?.get_addr_info(memory, texts, GuestPtr(hints), results)
    }

    /// The instance's sockets.
    fn network(&self) -> WasiResult<&Sockets> {
        let network = self.template.network.as_ref().ok_or(WasiErrno::NOTSUP)?;
        Ok(self.sockets.get_or_init(|| network.sockets()))
    }

    pub(crate) fn socket(&self, fd: u32) -> WasiResult<&Socket> {
        match self.find(fd)? {
            Found::Socket(socket) => Ok(socket),
            _ => Err(WasiErrno::NOTSOCK),
        }
    }
}

/// `fd_read` of a socket.
pub(crate) fn receive(socket: &Socket, slices: &mut [IoSliceMut<'_>]) -> WasiResult<usize> {
    receive_message(socket, slices, MsgFlags::MSG_CMSG_CLOEXEC).map(|(len, _, _)| len)
}

/// Length, whether bytes were cut off, and sender.
fn receive_message(
    socket: &Socket,
    slices: &mut [IoSliceMut<'_>],
    flags: MsgFlags,
) -> WasiResult<(usize, bool, Option<SocketAddr>)> {
    let fd = socket.fd.as_raw_fd();
    loop {
        match recvmsg::<SockaddrStorage>(fd, slices, None, flags) {
            Ok(message) => {
                let is_truncated = message.flags.contains(MsgFlags::MSG_TRUNC);
                let from = message.address.as_ref().and_then(socket_address);
                return Ok((message.bytes, is_truncated, from));
            }
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// `fd_write` of a socket: without a signal if the other end is closed.
pub(crate) fn send(socket: &Socket, slices: &[IoSlice<'_>]) -> WasiResult<usize> {
    let fd = socket.fd.as_raw_fd();
    let flags = MsgFlags::MSG_NOSIGNAL;
    Ok(uninterrupted(|| sendmsg::<SockaddrStorage>(fd, slices, &[], flags, None))?)
}

pub(crate) fn socket_address(address: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = || address.as_sockaddr_in().map(|v4| SocketAddr::V4((*v4).into()));
    let v6 = || address.as_sockaddr_in6().map(|v6| SocketAddr::V6((*v6).into()));
    v4().or_else(v6)
}

/// A guest's place for an address, by a pointer to its pointer and length.
pub(crate) fn place(memory: &impl GuestMemory, address: u32) -> WasiResult<(u32, u32)> {
    let ptr = get_u32(memory, address)?;
    let len = get_u32(memory, address.checked_add(4).ok_or(WasiErrno::FAULT)?)?;
    check_room(memory, ptr, len)?;
    Ok((ptr, len))
}

/// Writes the address only, if it fits.
pub(crate) fn put_bare(
    memory: &mut impl GuestMemory,
    (ptr, len): (u32, u32),
    ip: IpAddr,
) -> WasiResult {
    match ip {
        IpAddr::V4(v4) if len >= 4 => put(memory, ptr, &v4.octets()),
        IpAddr::V6(v6) if len >= 16 => put(memory, ptr, &v6.octets()),
        _ => Ok(()),
    }
}

/// Writes the family and the address behind it.
pub(crate) fn put_storage(memory: &mut impl GuestMemory, ptr: u32, ip: IpAddr) -> WasiResult {
    let family = if ip.is_ipv4() { INET4 } else { INET6 };
    put_u16(memory, ptr, family.into())?;
    put_bare(memory, (ptr.checked_add(2).ok_or(WasiErrno::FAULT)?, STORAGE_LEN - 2), ip)
}
