//! A socket's own address, and that of its peer. Runs in a worker.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd as _, RawFd};

use cwasi_host_functions::GuestMemory;
use nix::sys::socket::{SockaddrStorage, getpeername, getsockname};

use crate::layout::{check_room, put_u32};
use crate::sockets::{STORAGE_LEN, place, put_bare, put_storage, socket_address};
use crate::{Wasi, WasiErrno, WasiResult};

/// The call that tells an address.
type GetName = fn(RawFd) -> nix::Result<SockaddrStorage>;

impl Wasi {
    pub fn sock_getlocaladdr_v1(
        &mut self,
        memory: &mut impl GuestMemory,
        fd: u32,
        address: u32,
        family_out: u32,
        port_out: u32,
    ) -> WasiResult {
        self.bare_name(memory, fd, getsockname, [address, family_out, port_out])
    }

    pub fn sock_getlocaladdr(
        &mut self,
        memory: &mut impl GuestMemory,
        fd: u32,
        address: u32,
        port_out: u32,
    ) -> WasiResult {
        self.name(memory, fd, getsockname, [address, port_out])
    }

    pub fn sock_getpeeraddr_v1(
        &mut self,
        memory: &mut impl GuestMemory,
        fd: u32,
        address: u32,
        family_out: u32,
        port_out: u32,
    ) -> WasiResult {
        self.bare_name(memory, fd, getpeername, [address, family_out, port_out])
    }

    pub fn sock_getpeeraddr(
        &mut self,
        memory: &mut impl GuestMemory,
        fd: u32,
        address: u32,
        port_out: u32,
    ) -> WasiResult {
        self.name(memory, fd, getpeername, [address, port_out])
    }

    /// The older version: the address only, and 4 or 6 for its family.
    fn bare_name(
        &self,
        memory: &mut impl GuestMemory,
        fd: u32,
        get: GetName,
        [address, family_out, port_out]: [u32; 3],
    ) -> WasiResult {
        let (ptr, len) = place(memory, address)?;
        if !matches!(len, 4 | 16) {
            return Err(WasiErrno::INVAL);
        }
        check_room(memory, family_out, 4)?;
        check_room(memory, port_out, 4)?;
        let name = self.socket_name(fd, get)?;
        let family = match name.ip() {
            IpAddr::V4(_) => 4,
            IpAddr::V6(_) if len < 16 => return Err(WasiErrno::NOMEM),
            IpAddr::V6(_) => 6,
        };
        put_bare(memory, (ptr, len), name.ip())?;
        put_u32(memory, family_out, family)?;
        put_u32(memory, port_out, name.port().into())
    }

    /// The address with its family in front.
    fn name(
        &self,
        memory: &mut impl GuestMemory,
        fd: u32,
        get: GetName,
        [address, port_out]: [u32; 2],
    ) -> WasiResult {
        let (ptr, len) = place(memory, address)?;
        if len != STORAGE_LEN {
            return Err(WasiErrno::INVAL);
        }
        check_room(memory, port_out, 4)?;
        let name = self.socket_name(fd, get)?;
        put_storage(memory, ptr, name.ip())?;
        put_u32(memory, port_out, name.port().into())
    }

    fn socket_name(&self, fd: u32, get: GetName) -> WasiResult<SocketAddr> {
        let name = get(self.socket(fd)?.fd.as_raw_fd())?;
        socket_address(&name).ok_or(WasiErrno::AFNOSUPPORT)
    }
}
