//! Errnos of WASI preview 1, and of the engine's look-ups. Runs in a worker.

use nix::errno::Errno;

/// An error that a function of WASI returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WasiErrno(pub u16);

/// Constants with the names and numbers of WASI, and the kernel's errnos with the same names.
macro_rules! errnos {
    ($($name:ident = $number:literal $(: $errno:ident)?,)*) => {
        impl WasiErrno {
            $(pub const $name: Self = Self($number);)*
        }

        impl From<Errno> for WasiErrno {
            /// `IO` for errnos that WASI does not have.
            fn from(errno: Errno) -> Self {
                match errno {
                    $($(Errno::$errno => Self::$name,)?)*
                    _ => Self::IO,
                }
            }
        }
    };
}

errnos! {
    TOOBIG = 1: E2BIG,
    ACCES = 2: EACCES,
    ADDRINUSE = 3: EADDRINUSE,
    ADDRNOTAVAIL = 4: EADDRNOTAVAIL,
    AFNOSUPPORT = 5: EAFNOSUPPORT,
    AGAIN = 6: EAGAIN,
    ALREADY = 7: EALREADY,
    BADF = 8: EBADF,
    BADMSG = 9: EBADMSG,
    BUSY = 10: EBUSY,
    CANCELED = 11: ECANCELED,
    CHILD = 12: ECHILD,
    CONNABORTED = 13: ECONNABORTED,
    CONNREFUSED = 14: ECONNREFUSED,
    CONNRESET = 15: ECONNRESET,
    DEADLK = 16: EDEADLK,
    DESTADDRREQ = 17: EDESTADDRREQ,
    DOM = 18: EDOM,
    DQUOT = 19: EDQUOT,
    EXIST = 20: EEXIST,
    FAULT = 21: EFAULT,
    FBIG = 22: EFBIG,
    HOSTUNREACH = 23: EHOSTUNREACH,
    IDRM = 24: EIDRM,
    ILSEQ = 25: EILSEQ,
    INPROGRESS = 26: EINPROGRESS,
    INTR = 27: EINTR,
    INVAL = 28: EINVAL,
    IO = 29: EIO,
    ISCONN = 30: EISCONN,
    ISDIR = 31: EISDIR,
    LOOP = 32: ELOOP,
    MFILE = 33: EMFILE,
    MLINK = 34: EMLINK,
    MSGSIZE = 35: EMSGSIZE,
    MULTIHOP = 36: EMULTIHOP,
    NAMETOOLONG = 37: ENAMETOOLONG,
    NETDOWN = 38: ENETDOWN,
    NETRESET = 39: ENETRESET,
    NETUNREACH = 40: ENETUNREACH,
    NFILE = 41: ENFILE,
    NOBUFS = 42: ENOBUFS,
    NODEV = 43: ENODEV,
    NOENT = 44: ENOENT,
    NOEXEC = 45: ENOEXEC,
    NOLCK = 46: ENOLCK,
    NOLINK = 47: ENOLINK,
    NOMEM = 48: ENOMEM,
    NOMSG = 49: ENOMSG,
    NOPROTOOPT = 50: ENOPROTOOPT,
    NOSPC = 51: ENOSPC,
    NOSYS = 52: ENOSYS,
    NOTCONN = 53: ENOTCONN,
    NOTDIR = 54: ENOTDIR,
    NOTEMPTY = 55: ENOTEMPTY,
    NOTRECOVERABLE = 56: ENOTRECOVERABLE,
    NOTSOCK = 57: ENOTSOCK,
    NOTSUP = 58: EOPNOTSUPP,
    NOTTY = 59: ENOTTY,
    NXIO = 60: ENXIO,
    OVERFLOW = 61: EOVERFLOW,
    OWNERDEAD = 62: EOWNERDEAD,
    PERM = 63: EPERM,
    PIPE = 64: EPIPE,
    PROTO = 65: EPROTO,
    PROTONOSUPPORT = 66: EPROTONOSUPPORT,
    PROTOTYPE = 67: EPROTOTYPE,
    RANGE = 68: ERANGE,
    ROFS = 69: EROFS,
    SPIPE = 70: ESPIPE,
    SRCH = 71: ESRCH,
    STALE = 72: ESTALE,
    TIMEDOUT = 73: ETIMEDOUT,
    TXTBSY = 74: ETXTBSY,
    XDEV = 75: EXDEV,
    NOTCAPABLE = 76,
    AI_AGAIN = 78,
    AI_FAIL = 80,
    AI_FAMILY = 81,
    AI_MEMORY = 82,
    AI_NO_DATA = 83,
    AI_NO_NAME = 84,
    AI_SERVICE = 85,
}

/// A pointer outside linear memory.
impl From<cwasi_abi::Errno> for WasiErrno {
    fn from(_outside: cwasi_abi::Errno) -> Self {
        Self::FAULT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of `wasi/api.h`.
    #[test]
    fn errnos_have_the_numbers_of_wasi() {
        for (errno, number) in [
            (Errno::E2BIG, 1),
            (Errno::EBADF, 8),
            (Errno::EINVAL, 28),
            (Errno::ENOENT, 44),
            (Errno::EOPNOTSUPP, 58),
            (Errno::EPERM, 63),
            (Errno::EROFS, 69),
            (Errno::EXDEV, 75),
            (Errno::EKEYREVOKED, 29),
        ] {
            assert_eq!(WasiErrno::from(errno).0, number, "{errno}");
        }
        assert_eq!(WasiErrno::NOTCAPABLE.0, 76);
    }
}
