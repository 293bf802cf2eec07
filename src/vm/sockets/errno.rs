//! Errnos of WASI preview 1, and of the engine's look-ups. Runs in a worker.

use nix::errno::Errno;

/// Errors of socket functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WasiErrno(pub u16);

impl WasiErrno {
    pub const ACCES: Self = Self(2);
    pub const AFNOSUPPORT: Self = Self(5);
    pub const BADF: Self = Self(8);
    pub const FAULT: Self = Self(21);
    pub const INVAL: Self = Self(28);
    pub const IO: Self = Self(29);
    pub const NOPROTOOPT: Self = Self(50);
    pub const AI_AGAIN: Self = Self(78);
    pub const AI_FAIL: Self = Self(80);
    pub const AI_FAMILY: Self = Self(81);
    pub const AI_MEMORY: Self = Self(82);
    pub const AI_NO_DATA: Self = Self(83);
    pub const AI_NO_NAME: Self = Self(84);
    pub const AI_SERVICE: Self = Self(85);
}

/// A pointer outside linear memory.
impl From<cwasi_abi::Errno> for WasiErrno {
    fn from(_outside: cwasi_abi::Errno) -> Self {
        Self::FAULT
    }
}

impl From<Errno> for WasiErrno {
    fn from(errno: Errno) -> Self {
        Self(match errno {
            Errno::EACCES => 2,
            Errno::EADDRINUSE => 3,
            Errno::EADDRNOTAVAIL => 4,
            Errno::EAFNOSUPPORT => 5,
            Errno::EAGAIN => 6,
            Errno::EALREADY => 7,
            Errno::EBADF => 8,
            Errno::ECONNABORTED => 13,
            Errno::ECONNREFUSED => 14,
            Errno::ECONNRESET => 15,
            Errno::EDESTADDRREQ => 17,
            Errno::EHOSTUNREACH => 23,
            Errno::EINPROGRESS => 26,
            Errno::EINTR => 27,
            Errno::EINVAL => 28,
            Errno::EISCONN => 30,
            Errno::EMSGSIZE => 35,
            Errno::ENETDOWN => 38,
            Errno::ENETUNREACH => 40,
            Errno::ENOBUFS => 42,
            Errno::ENOMEM => 48,
            Errno::ENOPROTOOPT => 50,
            Errno::ENOTCONN => 53,
            Errno::ENOTSOCK => 57,
            Errno::EOPNOTSUPP => 58,
            Errno::EPERM => 63,
            Errno::EPIPE => 64,
            Errno::EPROTOTYPE => 67,
            Errno::ETIMEDOUT => 73,
            _ => 29,
        })
    }
}
