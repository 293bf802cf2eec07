//! Socket options: replaces the engine's own functions. Runs in a worker.
//!
//! The engine passes on every option that it knows, `SO_BINDTODEVICE` too. For `SO_ERROR` and `SO_TYPE` it assumes
//! that the kernel has written an `int`. If the guest gives less room, it aborts the worker, or, built without
//! assertions, takes bytes of the guest as an index into a table of its own and returns the entry.
//!
//! Invariant: an option is a [`SocketOption`], or the guest gets `NOPROTOOPT`.

use std::os::fd::BorrowedFd;

use cwasi_host_functions::{GuestMemory, GuestPtr};
use nix::errno::Errno;
use nix::sys::socket::{SockType, getsockopt, setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike as _};

use super::refusals::RefusedAccess;
use super::{Sockets, WasiErrno};

/// The only level, `__wasi_sock_opt_level_t`.
const SOL_SOCKET: u32 = 0;
/// `__wasi_sock_type_t`.
const DATAGRAM: i32 = 1;
const STREAM: i32 = 2;
/// Names of the engine's options by number, `__wasi_sock_opt_so_t`.
const NAMES: [&str; 15] = [
    "SO_REUSEADDR",
    "SO_TYPE",
    "SO_ERROR",
    "SO_DONTROUTE",
    "SO_BROADCAST",
    "SO_SNDBUF",
    "SO_RCVBUF",
    "SO_KEEPALIVE",
    "SO_OOBINLINE",
    "SO_LINGER",
    "SO_RCVLOWAT",
    "SO_RCVTIMEO",
    "SO_SNDTIMEO",
    "SO_ACCEPTCONN",
    "SO_BINDTODEVICE",
];

/// The options that guests may read, and those that they may set.
///
/// Excluded: `SO_BINDTODEVICE` and `SO_DONTROUTE` choose another way to an allowed address, which may lead to another
/// host. `SO_BROADCAST` reaches many hosts at once. `SO_REUSEADDR` lets a datagram socket share the port of another
/// program. `SO_OOBINLINE` and `SO_RCVLOWAT` have no known use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SocketOption {
    /// Read only.
    Type,
    /// Read only: the error of a connect that did not wait, for example.
    Error,
    /// Read only.
    AcceptConn,
    /// The kernel bounds both by `net.core.wmem_max` and `rmem_max`.
    SendBuffer,
    ReceiveBuffer,
    KeepAlive,
    /// Off, or a time of 0 (a reset instead of a close). With another time, the worker would wait in its close, after
    /// the request and outside its deadline.
    Linger,
    /// Time limit of the guest's own waits.
    ReceiveTimeout,
    SendTimeout,
}

impl SocketOption {
    fn find(level: u32, name: u32) -> Option<Self> {
        let name = NAMES.get(usize::try_from(name).ok()?)?;
        (level == SOL_SOCKET).then_some(())?;
        Some(match *name {
            "SO_TYPE" => Self::Type,
            "SO_ERROR" => Self::Error,
            "SO_ACCEPTCONN" => Self::AcceptConn,
            "SO_SNDBUF" => Self::SendBuffer,
            "SO_RCVBUF" => Self::ReceiveBuffer,
            "SO_KEEPALIVE" => Self::KeepAlive,
            "SO_LINGER" => Self::Linger,
            "SO_RCVTIMEO" => Self::ReceiveTimeout,
            "SO_SNDTIMEO" => Self::SendTimeout,
            _ => return None,
        })
    }

    /// Length of the value: an `int`, a `struct linger` of two, or a `struct timeval` of two 64-bit numbers.
    const fn len(self) -> u32 {
        match self {
            Self::Linger => 8,
            Self::ReceiveTimeout | Self::SendTimeout => 16,
            _ => 4,
        }
    }

    fn get(self, socket: BorrowedFd<'_>) -> nix::Result<Vec<u8>> {
        let size = |bytes: usize| i32::try_from(bytes).unwrap_or(i32::MAX);
        Ok(match self {
            Self::Type => int(match getsockopt(&socket, sockopt::SockType)? {
                SockType::Datagram => DATAGRAM,
                SockType::Stream => STREAM,
                _ => 0,
            }),
            Self::Error => int(match getsockopt(&socket, sockopt::SocketError)? {
                0 => 0,
                error => i32::from(WasiErrno::from(Errno::from_raw(error)).0),
            }),
            Self::AcceptConn => int(getsockopt(&socket, sockopt::AcceptConn)?.into()),
            Self::SendBuffer => int(size(getsockopt(&socket, sockopt::SndBuf)?)),
            Self::ReceiveBuffer => int(size(getsockopt(&socket, sockopt::RcvBuf)?)),
            Self::KeepAlive => int(getsockopt(&socket, sockopt::KeepAlive)?.into()),
            Self::Linger => {
                let linger = getsockopt(&socket, sockopt::Linger)?;
                [int(linger.l_onoff), int(linger.l_linger)].concat()
            }
            Self::ReceiveTimeout => time(getsockopt(&socket, sockopt::ReceiveTimeout)?),
            Self::SendTimeout => time(getsockopt(&socket, sockopt::SendTimeout)?),
        })
    }

    /// Sets the option to `value`, which has its length; `None` if guests may not set it.
    fn set(self, socket: BorrowedFd<'_>, value: &[u8]) -> Option<nix::Result<()>> {
        let number = i32_at(value, 0);
        let size = usize::try_from(number).unwrap_or(0);
        Some(match self {
            Self::SendBuffer => setsockopt(&socket, sockopt::SndBuf, &size),
            Self::ReceiveBuffer => setsockopt(&socket, sockopt::RcvBuf, &size),
            Self::KeepAlive => setsockopt(&socket, sockopt::KeepAlive, &(number != 0)),
            Self::Linger if number == 0 || i32_at(value, 4) == 0 => {
                let linger = libc::linger { l_onoff: number, l_linger: 0 };
                setsockopt(&socket, sockopt::Linger, &linger)
            }
            Self::ReceiveTimeout => setsockopt(&socket, sockopt::ReceiveTimeout, &time_of(value)),
            Self::SendTimeout => setsockopt(&socket, sockopt::SendTimeout, &time_of(value)),
            Self::Linger | Self::Type | Self::Error | Self::AcceptConn => return None,
        })
    }
}

impl Sockets {
    /// `sock_getsockopt`; `room` is the address of the value's length.
    pub fn get_option(
        &self,
        memory: &mut impl GuestMemory,
        socket: BorrowedFd<'_>,
        (level, name): (u32, u32),
        (value, room): (GuestPtr, GuestPtr),
    ) -> Result<(), WasiErrno> {
        let option =
            SocketOption::find(level, name).ok_or_else(|| self.refuse_option(level, name))?;
        let len = option.len();
        if u32_at(memory.slice(room, 4)?) < len {
            return Err(WasiErrno::INVAL);
        }
        // Reading an error clears it, so first checks that it can be written.
        memory.slice_mut(value, len)?;
        let bytes = option.get(socket)?;
        memory.write(value, &bytes)?;
        Ok(memory.write(room, &len.to_le_bytes())?)
    }

    /// `sock_setsockopt`.
    pub fn set_option(
        &self,
        memory: &impl GuestMemory,
        socket: BorrowedFd<'_>,
        (level, name): (u32, u32),
        (value, len): (GuestPtr, u32),
    ) -> Result<(), WasiErrno> {
        let refused = || self.refuse_option(level, name);
        let option = SocketOption::find(level, name).ok_or_else(refused)?;
        if len < option.len() {
            return Err(WasiErrno::INVAL);
        }
        let bytes = memory.slice(value, option.len())?;
        Ok(option.set(socket, bytes).ok_or_else(refused)??)
    }

    fn refuse_option(&self, level: u32, name: u32) -> WasiErrno {
        let known = usize::try_from(name).ok().and_then(|name| NAMES.get(name));
        let name =
            known.filter(|_| level == SOL_SOCKET).copied().unwrap_or("with a number of its own");
        self.refusals.log(RefusedAccess::SocketOption(name));
        WasiErrno::NOPROTOOPT
    }
}

fn int(number: i32) -> Vec<u8> {
    number.to_le_bytes().to_vec()
}

fn time(time: TimeVal) -> Vec<u8> {
    [time.tv_sec().to_le_bytes(), time.tv_usec().to_le_bytes()].concat()
}

/// A time in microseconds. 0 stands for no limit, so a longer time becomes the longest possible.
fn time_of(value: &[u8]) -> TimeVal {
    let number = |at: usize| {
        let bytes = value.get(at..at + 8).and_then(|bytes| <[u8; 8]>::try_from(bytes).ok());
        i64::from_le_bytes(bytes.unwrap_or_default()).clamp(0, i64::from(i32::MAX))
    };
    TimeVal::microseconds(number(0) * 1_000_000 + number(8))
}

fn u32_at(bytes: &[u8]) -> u32 {
    <[u8; 4]>::try_from(bytes).map(u32::from_le_bytes).unwrap_or_default()
}

fn i32_at(value: &[u8], at: usize) -> i32 {
    value.get(at..at + 4).map(u32_at).unwrap_or_default().cast_signed()
}

#[cfg(test)]
#[path = "options/tests.rs"]
mod tests;
