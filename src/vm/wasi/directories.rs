//! Entries of directories. Runs in a worker.
//!
//! A cookie is the kernel's position in the directory, so that nothing is kept between two calls.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd};

use cwasi_host_functions::{GuestMemory, GuestPtr};
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{Mode, fstat, fstatat};
use rustix::fs::{RawDir, RawDirEntry, SeekFrom, seek};
use rustix::io::Errno;

use crate::buffers::errno;
use crate::layout::{FileType, Record, check_room, put_len};
use crate::paths::open_below;
use crate::{Wasi, WasiResult};

/// Bytes of entries that the kernel writes at once: some entries with the longest names.
const ENTRIES_LEN: usize = 4096;
/// Length of an entry in front of its name.
const HEAD_LEN: usize = 24;
const OWN: &CStr = c".";
const PARENT: &CStr = c"..";

impl Wasi {
    pub fn fd_readdir(
        &mut self,
        memory: &mut impl GuestMemory,
        fd: u32,
        buffer: u32,
        len: u32,
        cookie: u64,
        len_out: u32,
    ) -> WasiResult {
        check_room(memory, len_out, 4)?;
        let directory = self.directory(fd)?;
        let room = memory.slice_mut(GuestPtr(buffer), len)?;
        let written = if directory.preopened.is_some() {
            // Opened with `O_PATH`, and shared by the instances.
            let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
            let opened = open_below(directory.fd, ".", flags, Mode::empty())?;
            read_entries(opened.as_fd(), cookie, room)?
        } else {
            read_entries(directory.fd, cookie, room)?
        };
        put_len(memory, len_out, written)
    }
}

/// Fills `room` with the entries from `cookie` on; the last one may be cut off. Returns the number of bytes, which is
/// less than there is room for at the directory's end.
fn read_entries(directory: BorrowedFd<'_>, cookie: u64, room: &mut [u8]) -> WasiResult<usize> {
    match seek(directory, SeekFrom::Start(cookie)) {
        Ok(_) => {}
        // Behind the last position that a directory can have.
        Err(Errno::INVAL) => return Ok(0),
        Err(error) => return Err(errno(error).into()),
    }
    let own = fstat(directory)?.st_ino;
    let mut buffer = [const { MaybeUninit::uninit() }; ENTRIES_LEN];
    let mut entries = RawDir::new(directory, &mut buffer);
    let mut written = 0;
    while written < room.len() {
        let Some(entry) = entries.next() else { break };
        let entry = entry.map_err(errno)?;
        let head = head(directory, &entry, own);
        for bytes in [&head[..], entry.file_name().to_bytes()] {
            let rest = &mut room[written..];
            let fitting = bytes.len().min(rest.len());
            rest[..fitting].copy_from_slice(&bytes[..fitting]);
            written += fitting;
        }
    }
    Ok(written)
}

/// `dirent`. The directory's own number stands for that of its parent, which may be outside.
fn head(directory: BorrowedFd<'_>, entry: &RawDirEntry<'_>, own: u64) -> [u8; HEAD_LEN] {
    let name = entry.file_name();
    let number = if name == PARENT || name == OWN { own } else { entry.ino() };
    let len = u32::try_from(name.count_bytes()).unwrap_or_default();
    Record::new()
        .with(0, entry.next_entry_cookie().to_le_bytes())
        .with(8, number.to_le_bytes())
        .with(16, len.to_le_bytes())
        .with(20, [file_type(directory, entry) as u8])
        .0
}

fn file_type(directory: BorrowedFd<'_>, entry: &RawDirEntry<'_>) -> FileType {
    use rustix::fs::FileType as Kind;
    match entry.file_type() {
        Kind::RegularFile => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::SymbolicLink,
        Kind::Socket => FileType::StreamSocket,
        Kind::CharacterDevice => FileType::CharacterDevice,
        Kind::BlockDevice => FileType::BlockDevice,
        Kind::Fifo => FileType::Unknown,
        // Not every file system keeps types in its directories.
        Kind::Unknown => fstatat(directory, entry.file_name(), AtFlags::AT_SYMLINK_NOFOLLOW)
            .map_or(FileType::Unknown, |stat| FileType::of(&stat)),
    }
}
