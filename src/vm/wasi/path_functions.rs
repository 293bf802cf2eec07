//! Functions that take a path. Runs in a worker.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;

use cwasi_host_functions::GuestMemory;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, readlinkat, renameat};
use nix::sys::stat::{Mode, fstat, mkdirat};
use nix::unistd::{UnlinkatFlags, linkat, symlinkat, unlinkat};

use crate::attributes::{set_times, times};
use crate::descriptors::{Descriptor, Directory, Found, FoundDirectory, OpenFile, Stdio};
use crate::layout::{FileType, check_room, file_stat, flags, put, put_len, put_u32, rights};
use crate::paths::{follows, locate, open_below, parent, path};
use crate::{Wasi, WasiErrno, WasiResult};

/// `oflags`
const CREATE: u32 = 1 << 0;
const DIRECTORY: u32 = 1 << 1;
const EXCLUSIVE: u32 = 1 << 2;
const TRUNCATE: u32 = 1 << 3;
/// Names of stdin, stdout and stderr in links of containers and images.
const STREAMS: [[&str; 2]; 3] = [
    ["/proc/self/fd/0", "/dev/stdin"],
    ["/proc/self/fd/1", "/dev/stdout"],
    ["/proc/self/fd/2", "/dev/stderr"],
];

impl Wasi {
    pub fn path_create_directory(
        &mut self,
        memory: &mut impl GuestMemory,
        fd: u32,
        ptr: u32,
        len: u32,
    ) -> WasiResult {
        let directory = self.directory(fd)?.writable()?;
        let path = path(memory, ptr, len)?;
        let (parent, name) = parent(directory, &path)?;
        let mode = Mode::S_IRWXU | Mode::S_IRWXG | Mode::S_IRWXO;
        Ok(mkdirat(&parent, name, mode)?)
    }

    pub fn path_filestat_get(
        &mut self,
        memory: &mut impl GuestMemory,
        fd: u32,
        lookup: u32,
        ptr: u32,
        len: u32,
        stat_out: u32,
    ) -> WasiResult {
        let directory = self.directory(fd)?;
        let path = path(memory, ptr, len)?;
        let located = locate(directory.fd, &path, follows(lookup)?)?;
        put(memory, stat_out, &file_stat(&fstat(&located)?))
    }

    #[expect(clippy::too_many_arguments, reason = "as WASI declares it")]
    pub fn path_filestat_set_times(
        &mut self,
        memory: &mut impl GuestMemory,
        fd: u32,
        lookup: u32,
        ptr: u32,
        len: u32,
        accessed: u64,
        modified: u64,
        which: u32,
    ) -> WasiResult {
        let times = times(accessed, modified, which)?;
        let directory = self.directory(fd)?.writable()?;
        let path = path(memory, ptr, len)?;
        let located = locate(directory, &path, follows(lookup)?)?;
        set_times(located.as_fd(), &times)
    }

    #[expect(clippy::too_many_arguments, reason = "as WASI declares it")]
    pub fn path_link(
        &mut self,
        memory: &mut impl GuestMemory,
        old_fd: u32,
        lookup: u32,
        old_ptr: u32,
        old_len: u32,
        new_fd: u32,
        new_ptr: u32,
        new_len: u32,
    ) -> WasiResult {
        let old_directory = self.directory(old_fd)?.writable()?;
        let new_directory = self.directory(new_fd)?.writable()?;
        let old_path = path(memory, old_ptr, old_len)?;
        let new_path = path(memory, new_ptr, new_len)?;
        if follows(lookup)? {
            return Err(WasiErrno::INVAL);
        }
        if old_path.ends_with('/') {
            // The kernel would follow a link here. It can only be a directory, which has no second name.
            locate(old_directory, &old_path, true)?;
            return Err(WasiErrno::PERM);
        }
        let (old_parent, old_name) = parent(old_directory, &old_path)?;
        let (new_parent, new_name) = parent(new_directory, &new_path)?;
        Ok(linkat(&old_parent, old_name, &new_parent, new_name, AtFlags::empty())?)
    }

    #[expect(clippy::too_many_arguments, reason = "as WASI declares it")]
    pub fn path_open(
        &mut self,
        memory: &mut impl GuestMemory,
        fd: u32,
        lookup: u32,
        ptr: u32,
        len: u32,
        open_flags: u32,
        rights: u64,
        _inheriting: u64,
        flags: u32,
        fd_out: u32,
    ) -> WasiResult {
        check_room(memory, fd_out, 4)?;
        let wanted = Wanted::new(open_flags, rights, flags, follows(lookup)?)?;
        let path = path(memory, ptr, len)?;
        self.find(fd)?;
        self.check_descriptors()?;
        let directory = match self.find(fd)? {
            Found::Directory(directory) => directory,
            Found::File(_) => return Err(WasiErrno::NOTDIR),
            Found::Stdio(_) | Found::Socket(_) => return Err(WasiErrno::BADF),
        };
        let descriptor = match open(directory, &path, wanted, flags) {
            Ok(descriptor) => descriptor,
            Err(error) => {
                let stream = if wanted.follows() { stream(directory.fd, &path) } else { None };
                let number = stream.ok_or(error)?;
                Descriptor::Stdio(Stdio { number, flags })
            }
        };
        let number = self.insert(descriptor)?;
        put_u32(memory, fd_out, number)
    }

    #[expect(clippy::too_many_arguments, reason = "as WASI declares it")]
    pub fn path_readlink(
        &mut self,
        memory: &mut impl GuestMemory,
        fd: u32,
        ptr: u32,
        len: u32,
        buffer: u32,
        buffer_len: u32,
        len_out: u32,
    ) -> WasiResult {
        let directory = self.directory(fd)?;
        let path = path(memory, ptr, len)?;
        let link = locate(directory.fd, &path, false)?;
        let target = readlinkat(&link, "").map_err(|error| match error {
            // What is there is no link.
            Errno::ENOENT => WasiErrno::INVAL,
            error => error.into(),
        })?;
        let target = target.as_bytes();
        let target = &target[..target.len().min(buffer_len as usize)];
        check_room(memory, len_out, 4)?;
        put(memory, buffer, target)?;
        put_len(memory, len_out, target.len())
    }

    pub fn path_remove_directory(
        &mut self,
        memory: &mut impl GuestMemory,
        fd: u32,
        ptr: u32,
        len: u32,
    ) -> WasiResult {
        self.unlink(memory, fd, (ptr, len), UnlinkatFlags::RemoveDir)
    }

    #[expect(clippy::too_many_arguments, reason = "as WASI declares it")]
    pub fn path_rename(
        &mut self,
        memory: &mut impl GuestMemory,
        old_fd: u32,
        old_ptr: u32,
        old_len: u32,
        new_fd: u32,
        new_ptr: u32,
        new_len: u32,
    ) -> WasiResult {
        let old_directory = self.directory(old_fd)?.writable()?;
        let new_directory = self.directory(new_fd)?.writable()?;
        let old_path = path(memory, old_ptr, old_len)?;
        let new_path = path(memory, new_ptr, new_len)?;
        let (old_parent, old_name) = parent(old_directory, &old_path)?;
        let (new_parent, new_name) = parent(new_directory, &new_path)?;
        Ok(renameat(&old_parent, old_name, &new_parent, new_name)?)
    }

    /// A target that begins with a slash would lead out of every directory.
    pub fn path_symlink(
        &mut self,
        memory: &mut impl GuestMemory,
        target_ptr: u32,
        target_len: u32,
        fd: u32,
        ptr: u32,
        len: u32,
    ) -> WasiResult {
        let directory = self.directory(fd)?.writable()?;
        let target = path(memory, target_ptr, target_len)?;
        let path = path(memory, ptr, len)?;
        if target.starts_with('/') {
            return Err(WasiErrno::PERM);
        }
        let (parent, name) = parent(directory, &path)?;
        Ok(symlinkat(target.as_str(), &parent, name)?)
    }

    pub fn path_unlink_file(
        &mut self,
        memory: &mut impl GuestMemory,
        fd: u32,
        ptr: u32,
        len: u32,
    ) -> WasiResult {
        self.unlink(memory, fd, (ptr, len), UnlinkatFlags::NoRemoveDir)
    }

    fn unlink(
        &self,
        memory: &impl GuestMemory,
        fd: u32,
        (ptr, len): (u32, u32),
        kind: UnlinkatFlags,
    ) -> WasiResult {
        let directory = self.directory(fd)?.writable()?;
        let path = path(memory, ptr, len)?;
        let (parent, name) = parent(directory, &path)?;
        Ok(unlinkat(&parent, name, kind)?)
    }
}

fn open(
    directory: FoundDirectory<'_>,
    path: &str,
    wanted: Wanted,
    flags: u32,
) -> WasiResult<Descriptor> {
    if wanted.is_writable {
        directory.writable()?;
    }
    let read_only = directory.read_only;
    let fd = open_below(directory.fd, path, wanted.kernel, wanted.mode())?;
    Ok(match FileType::of(&fstat(&fd)?) {
        FileType::Directory => Descriptor::Directory(Directory { fd, read_only }),
        kind => Descriptor::File(OpenFile {
            fd,
            kind,
            flags,
            is_readable: wanted.is_readable,
            is_writable: wanted.is_writable,
            read_only,
        }),
    })
}

/// The stream of the process that `path` links to, as `/dev/stdout` does. Nobody follows these links: they lead out of
/// every directory.
fn stream(directory: BorrowedFd<'_>, path: &str) -> Option<u8> {
    let link = locate(directory, path, false).ok()?;
    let target = readlinkat(&link, "").ok()?;
    let number = STREAMS.iter().position(|names| names.iter().any(|name| target == *name))?;
    u8::try_from(number).ok()
}

/// How a file is to be opened.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    kernel: OFlag,
    is_readable: bool,
    is_writable: bool,
}

impl Wanted {
    fn new(open_flags: u32, rights: u64, flags: u32, follows: bool) -> WasiResult<Self> {
        let has = |bit: u32| open_flags & bit != 0;
        let changes = CREATE | EXCLUSIVE | TRUNCATE;
        let unknown = open_flags & !(changes | DIRECTORY) != 0 || flags & !flags::ALL != 0;
        if unknown || (has(DIRECTORY) && has(changes)) {
            return Err(WasiErrno::INVAL);
        }
        let writes = rights & rights::WRITE != 0;
        let is_readable = rights & rights::READ != 0 || !writes;
        let is_writable = writes || has(CREATE | TRUNCATE);
        let mut kernel = OFlag::O_NOCTTY
            | match (is_readable, is_writable) {
                (true, true) => OFlag::O_RDWR,
                (false, _) => OFlag::O_WRONLY,
                (true, false) => OFlag::O_RDONLY,
            };
        kernel.set(OFlag::O_CREAT, has(CREATE));
        kernel.set(OFlag::O_EXCL, has(CREATE) && has(EXCLUSIVE));
        kernel.set(OFlag::O_TRUNC, has(TRUNCATE));
        kernel.set(OFlag::O_DIRECTORY, has(DIRECTORY));
        kernel.set(OFlag::O_NOFOLLOW, !follows);
        kernel.set(OFlag::O_APPEND, flags & flags::APPEND != 0);
        kernel.set(OFlag::O_NONBLOCK, flags & flags::NONBLOCK != 0);
        kernel.set(OFlag::O_DSYNC, flags & flags::DSYNC != 0);
        if flags & (flags::SYNC | flags::RSYNC) != 0 {
            kernel |= OFlag::O_SYNC;
        }
        Ok(Self { kernel, is_readable, is_writable })
    }

    /// Whether a link at the end of the path may lead to a stream.
    fn follows(self) -> bool {
        !self.kernel.intersects(OFlag::O_NOFOLLOW | OFlag::O_DIRECTORY)
            && !self.kernel.contains(OFlag::O_CREAT | OFlag::O_EXCL)
    }

    /// Permissions of a new file, without the process's mask.
    fn mode(self) -> Mode {
        if self.kernel.contains(OFlag::O_CREAT) {
            Mode::from_bits_truncate(0o666)
        } else {
            Mode::empty()
        }
    }
}
