//! Attributes of descriptors: types, flags, sizes, times, names of directories. Runs in a worker.

use std::io::IsTerminal as _;
use std::os::fd::{AsFd, BorrowedFd};

use cwasi_host_functions::GuestMemory;
use nix::fcntl::{FcntlArg, OFlag, PosixFadviseAdvice, fcntl, posix_fadvise};
use nix::sys::stat::fstat;
use nix::unistd::{fdatasync, fsync, ftruncate};
use rustix::fs::{AtFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, utimensat};

use crate::buffers::{errno, uninterrupted};
use crate::descriptors::{Descriptor, Found, OpenFile, Stdio};
use crate::layout::{
    FileType, Record, bare_file_stat, check_room, fd_stat, file_stat, flags, put, rights,
};
use crate::{Wasi, WasiErrno, WasiResult};

const ADVICES: [PosixFadviseAdvice; 6] = [
    PosixFadviseAdvice::POSIX_FADV_NORMAL,
    PosixFadviseAdvice::POSIX_FADV_SEQUENTIAL,
    PosixFadviseAdvice::POSIX_FADV_RANDOM,
    PosixFadviseAdvice::POSIX_FADV_WILLNEED,
    PosixFadviseAdvice::POSIX_FADV_DONTNEED,
    PosixFadviseAdvice::POSIX_FADV_NOREUSE,
];

impl Wasi {
    pub fn fd_advise(
        &mut self,
        _memory: &mut impl GuestMemory,
        fd: u32,
        offset: u64,
        len: u64,
        advice: u32,
    ) -> WasiResult {
        let advice = usize::try_from(advice).ok().and_then(|index| ADVICES.get(index));
        let advice = *advice.ok_or(WasiErrno::INVAL)?;
        let file = self.file(fd)?;
        let number = |number: u64| i64::try_from(number).map_err(|_| WasiErrno::INVAL);
        Ok(posix_fadvise(&file.fd, number(offset)?, number(len)?, advice)?)
    }

    /// Not every file system can allocate.
    pub fn fd_allocate(
        &mut self,
        _memory: &mut impl GuestMemory,
        fd: u32,
        _offset: u64,
        _len: u64,
    ) -> WasiResult {
        self.file(fd)?;
        Err(WasiErrno::NOTSUP)
    }

    pub fn fd_close(&mut self, _memory: &mut impl GuestMemory, fd: u32) -> WasiResult {
        self.find(fd)?;
        self.remove(fd).map(drop)
    }

    pub fn fd_renumber(
        &mut self,
        _memory: &mut impl GuestMemory,
        from: u32,
        to: u32,
    ) -> WasiResult {
        self.renumber(from, to)
    }

    pub fn fd_datasync(&mut self, _memory: &mut impl GuestMemory, fd: u32) -> WasiResult {
        let file = self.file(fd)?;
        Ok(uninterrupted(|| fdatasync(&file.fd))?)
    }

    pub fn fd_sync(&mut self, _memory: &mut impl GuestMemory, fd: u32) -> WasiResult {
        let file = self.file(fd)?;
        Ok(uninterrupted(|| fsync(&file.fd))?)
    }

    pub fn fd_fdstat_get(
        &mut self,
        memory: &mut impl GuestMemory,
        fd: u32,
        stat_out: u32,
    ) -> WasiResult {
        let stat = match self.find(fd)? {
            Found::Stdio(stdio) => {
                let kind = stdio_type(self.template.stdio(stdio.number));
                let allowed = if stdio.number == 0 { rights::READ } else { rights::WRITE };
                fd_stat(kind, stdio.flags, allowed, allowed)
            }
            Found::Directory(directory) if directory.preopened.is_some() => {
                fd_stat(FileType::Directory, 0, rights::DIRECTORY, rights::BELOW)
            }
            Found::Directory(_) => {
                let allowed = rights::ALL
                    & !(rights::SEEK | rights::SET_SIZE | rights::PATH_SET_SIZE | rights::WRITE);
                // C libraries open files with no more than these.
                fd_stat(FileType::Directory, 0, allowed, rights::BELOW)
            }
            Found::File(file) => {
                let allowed = file_rights(file);
                fd_stat(file.kind, file.flags, allowed, allowed)
            }
            Found::Socket(socket) => {
                let allowed = rights::READ
                    | rights::WRITE
                    | rights::SET_FLAGS
                    | rights::FILE_STAT
                    | rights::POLL
                    | rights::SHUTDOWN;
                fd_stat(socket.kind, socket.flags, allowed, allowed)
            }
        };
        put(memory, stat_out, &stat)
    }

    /// Of stdio only this descriptor's flags change: the process shares its file description with others.
    pub fn fd_fdstat_set_flags(
        &mut self,
        _memory: &mut impl GuestMemory,
        fd: u32,
        flags: u32,
    ) -> WasiResult {
        if flags & !flags::ALL != 0 {
            return Err(WasiErrno::INVAL);
        }
        self.find(fd)?;
        let fits = |current: u32| (current ^ flags) & flags::FIXED == 0;
        match self.descriptor_mut(fd)? {
            Descriptor::Stdio(Stdio { flags: current, .. }) if fits(*current) => *current = flags,
            Descriptor::File(OpenFile { fd, flags: current, .. }) if fits(*current) => {
                set_kernel_flags(fd.as_fd(), flags)?;
                *current = flags;
            }
            Descriptor::Socket(socket) if flags & !flags::NONBLOCK == 0 => {
                set_kernel_flags(socket.fd.as_fd(), flags)?;
                socket.flags = flags;
            }
            Descriptor::Preopened(_) | Descriptor::Directory(_) => return Err(WasiErrno::BADF),
            _ => return Err(WasiErrno::INVAL),
        }
        Ok(())
    }

    /// Rights are not kept: the kernel knows what a file was opened for.
    pub fn fd_fdstat_set_rights(
        &mut self,
        _memory: &mut impl GuestMemory,
        fd: u32,
        _base: u64,
        _inheriting: u64,
    ) -> WasiResult {
        self.find(fd)?;
        Err(WasiErrno::NOTSUP)
    }

    pub fn fd_filestat_get(
        &mut self,
        memory: &mut impl GuestMemory,
        fd: u32,
        stat_out: u32,
    ) -> WasiResult {
        let stat = match self.find(fd)? {
            Found::Stdio(stdio) => bare_file_stat(stdio_type(self.template.stdio(stdio.number))),
            Found::Directory(directory) => file_stat(&fstat(directory.fd)?),
            Found::File(file) => file_stat(&fstat(&file.fd)?),
            Found::Socket(socket) => bare_file_stat(socket.kind),
        };
        put(memory, stat_out, &stat)
    }

    pub fn fd_filestat_set_size(
        &mut self,
        _memory: &mut impl GuestMemory,
        fd: u32,
        size: u64,
    ) -> WasiResult {
        let file = self.file(fd)?;
        let size = i64::try_from(size).map_err(|_| WasiErrno::INVAL)?;
        Ok(uninterrupted(|| ftruncate(&file.fd, size))?)
    }

    pub fn fd_filestat_set_times(
        &mut self,
        _memory: &mut impl GuestMemory,
        fd: u32,
        accessed: u64,
        modified: u64,
        which: u32,
    ) -> WasiResult {
        let times = times(accessed, modified, which)?;
        match self.find(fd)? {
            Found::Directory(directory) => set_times(directory.writable()?, &times),
            Found::File(file) if file.read_only => Err(WasiErrno::ROFS),
            Found::File(file) => set_times(file.fd.as_fd(), &times),
            Found::Stdio(_) | Found::Socket(_) => Err(WasiErrno::BADF),
        }
    }

    pub fn fd_prestat_get(
        &mut self,
        memory: &mut impl GuestMemory,
        fd: u32,
        stat_out: u32,
    ) -> WasiResult {
        let directory = self.directory(fd)?.preopened.ok_or(WasiErrno::BADF)?;
        let len = u32::try_from(directory.name.len()).map_err(|_| WasiErrno::OVERFLOW)?;
        // The tag 0: a directory.
        put(memory, stat_out, &Record::<8>::new().with(4, len.to_le_bytes()).0)
    }

    pub fn fd_prestat_dir_name(
        &mut self,
        memory: &mut impl GuestMemory,
        fd: u32,
        name: u32,
        len: u32,
    ) -> WasiResult {
        let Found::Directory(directory) = self.find(fd)? else { return Err(WasiErrno::NOTDIR) };
        let directory = directory.preopened.ok_or(WasiErrno::NOTDIR)?;
        if directory.name.len() > len as usize {
            return Err(WasiErrno::NAMETOOLONG);
        }
        check_room(memory, name, len)?;
        put(memory, name, &directory.name)
    }
}

/// A terminal is a character device to guests; anything else is unknown, so that guests take only terminals for such.
fn stdio_type(fd: BorrowedFd<'_>) -> FileType {
    if fd.is_terminal() { FileType::CharacterDevice } else { FileType::Unknown }
}

fn file_rights(file: &OpenFile) -> u64 {
    let read = if file.is_readable { 0 } else { rights::READ | rights::READ_DIRECTORY };
    let write = if file.is_writable { 0 } else { rights::WRITE };
    rights::ALL & !read & !write
}

/// Sets the flags that can change on a file description of the instance's own.
fn set_kernel_flags(fd: BorrowedFd<'_>, flags: u32) -> WasiResult {
    let mut kernel = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    kernel.set(OFlag::O_APPEND, flags & flags::APPEND != 0);
    kernel.set(OFlag::O_NONBLOCK, flags & flags::NONBLOCK != 0);
    fcntl(fd, FcntlArg::F_SETFL(kernel))?;
    Ok(())
}

/// Times of a file by `fstflags`.
pub(crate) fn times(accessed: u64, modified: u64, which: u32) -> WasiResult<Timestamps> {
    if which >= 1 << 4 {
        return Err(WasiErrno::INVAL);
    }
    let time = |nanoseconds: u64, which: u32| {
        let special = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
        Ok(match which & 3 {
            0 => special(UTIME_OMIT),
            1 => Timespec {
                tv_sec: i64::try_from(nanoseconds / 1_000_000_000)
                    .map_err(|_| WasiErrno::OVERFLOW)?,
                tv_nsec: i64::try_from(nanoseconds % 1_000_000_000)
                    .map_err(|_| WasiErrno::OVERFLOW)?,
            },
            2 => special(UTIME_NOW),
            _ => return Err(WasiErrno::INVAL),
        })
    };
    Ok(Timestamps {
        last_access: time(accessed, which)?,
        last_modification: time(modified, which >> 2)?,
    })
}

/// Sets times of what `fd` stands for, which may be opened with `O_PATH`.
pub(crate) fn set_times(fd: BorrowedFd<'_>, times: &Timestamps) -> WasiResult {
    Ok(utimensat(fd, "", times, AtFlags::EMPTY_PATH).map_err(errno)?)
}
