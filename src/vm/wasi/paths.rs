//! Paths below a guest's directories. Runs in a worker.
//!
//! Invariant: the kernel resolves each path below its directory (`RESOLVE_BENEATH`). A path, `..` and links included,
//! that leads out is refused with `PERM`. The last component of a path that a system call resolves itself is a name
//! without a slash before its end, is not `..`, and is not followed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use cwasi_host_functions::{GuestMemory, GuestPtr};
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::Mode;

use crate::{WasiErrno, WasiResult};

/// Longest path in bytes, as in the kernel.
const PATH_MAX: u32 = 4095;
/// Most attempts when directories move while the kernel resolves `..`.
const ATTEMPTS_MAX: u32 = 64;

/// A guest's path. Copied before it is validated: another process can change bytes behind a leased region.
pub(crate) fn path(memory: &impl GuestMemory, ptr: u32, len: u32) -> WasiResult<String> {
    let bytes = memory.slice(GuestPtr(ptr), len)?;
    if len > PATH_MAX {
        return Err(WasiErrno::NAMETOOLONG);
    }
    String::from_utf8(bytes.to_vec()).map_err(|_| WasiErrno::ILSEQ)
}

/// True if a link at the end of a path is followed, by `lookupflags`.
pub(crate) fn follows(lookup: u32) -> WasiResult<bool> {
    match lookup {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(WasiErrno::INVAL),
    }
}

/// Opens `path` below `directory`.
pub(crate) fn open_below(
    directory: BorrowedFd<'_>,
    path: &str,
    flags: OFlag,
    mode: Mode,
) -> WasiResult<OwnedFd> {
    let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).mode(mode).resolve(resolve);
    for _ in 0..ATTEMPTS_MAX {
        match openat2(directory, path, how) {
            Ok(fd) => return Ok(fd),
            Err(Errno::EINTR | Errno::EAGAIN) => {}
            Err(Errno::EXDEV) => return Err(WasiErrno::PERM),
            Err(error) => return Err(error.into()),
        }
    }
    Err(WasiErrno::AGAIN)
}

/// What a path names, only to ask for it.
pub(crate) fn locate(directory: BorrowedFd<'_>, path: &str, follows: bool) -> WasiResult<OwnedFd> {
    let mut flags = OFlag::O_PATH;
    flags.set(OFlag::O_NOFOLLOW, !follows);
    open_below(directory, path, flags, Mode::empty())
}

/// The directory that a path's last component is in.
#[derive(Debug)]
pub(crate) enum Parent<'a> {
    Given(BorrowedFd<'a>),
    Opened(OwnedFd),
}

impl AsFd for Parent<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Given(fd) => *fd,
            Self::Opened(fd) => fd.as_fd(),
        }
    }
}

/// Splits `path` into its parent and the last component with its trailing slashes. Of `..`, which could lead out, the
/// parts are the directory that it names and `.`.
pub(crate) fn parent<'a, 'p>(
    directory: BorrowedFd<'a>,
    path: &'p str,
) -> WasiResult<(Parent<'a>, &'p str)> {
    if path.is_empty() {
        return Err(WasiErrno::NOENT);
    }
    if path.starts_with('/') {
        return Err(WasiErrno::PERM);
    }
    let trimmed = path.trim_end_matches('/');
    let start = trimmed.rfind('/').map_or(0, |slash| slash + 1);
    let (head, name) =
        if &trimmed[start..] == ".." { (path, ".") } else { (&path[..start], &path[start..]) };
    if head.is_empty() {
        return Ok((Parent::Given(directory), name));
    }
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
    Ok((Parent::Opened(open_below(directory, head, flags, Mode::empty())?), name))
}
