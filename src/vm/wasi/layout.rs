//! Numbers and structures of WASI preview 1 in a guest's memory. Runs in a worker.

use cwasi_host_functions::{GuestMemory, GuestPtr};
use nix::sys::stat::{FileStat, SFlag};

use crate::{WasiErrno, WasiResult};

/// `fdflags`
pub(crate) mod flags {
    pub(crate) const APPEND: u32 = 1 << 0;
    pub(crate) const DSYNC: u32 = 1 << 1;
    pub(crate) const NONBLOCK: u32 = 1 << 2;
    pub(crate) const RSYNC: u32 = 1 << 3;
    pub(crate) const SYNC: u32 = 1 << 4;
    pub(crate) const ALL: u32 = (1 << 5) - 1;
    /// Cannot change after the file is open.
    pub(crate) const FIXED: u32 = DSYNC | RSYNC | SYNC;
}

/// `rights`, by the functions that they allow. Guests see them, but the kernel decides.
pub(crate) mod rights {
    pub(crate) const READ: u64 = 1 << 1;
    pub(crate) const SEEK: u64 = 1 << 2;
    pub(crate) const SET_FLAGS: u64 = 1 << 3;
    pub(crate) const WRITE: u64 = 1 << 6;
    pub(crate) const READ_DIRECTORY: u64 = 1 << 14;
    pub(crate) const PATH_SET_SIZE: u64 = 1 << 19;
    pub(crate) const FILE_STAT: u64 = 1 << 21;
    pub(crate) const SET_SIZE: u64 = 1 << 22;
    pub(crate) const POLL: u64 = 1 << 27;
    pub(crate) const SHUTDOWN: u64 = 1 << 28;
    pub(crate) const ALL: u64 = (1 << 30) - 1;
    /// A preopened directory's own: `path_*`, `fd_readdir` and `fd_filestat_*`.
    pub(crate) const DIRECTORY: u64 = 0x07B7_FE00;
    /// What is opened below may do this besides: `fd_*` and polling.
    pub(crate) const BELOW: u64 = DIRECTORY | 0x08E0_01FF;
}

/// `filetype`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum FileType {
    Unknown = 0,
    BlockDevice = 1,
    CharacterDevice = 2,
    Directory = 3,
    RegularFile = 4,
    DatagramSocket = 5,
    StreamSocket = 6,
    SymbolicLink = 7,
}

impl FileType {
    pub(crate) fn of(stat: &FileStat) -> Self {
        match SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT {
            SFlag::S_IFBLK => Self::BlockDevice,
            SFlag::S_IFCHR => Self::CharacterDevice,
            SFlag::S_IFDIR => Self::Directory,
            SFlag::S_IFREG => Self::RegularFile,
            SFlag::S_IFSOCK => Self::StreamSocket,
            SFlag::S_IFLNK => Self::SymbolicLink,
            _ => Self::Unknown,
        }
    }
}

/// Fails unless `len` bytes at `at` are in memory: before a call has effects.
pub(crate) fn check_room(memory: &impl GuestMemory, at: u32, len: u32) -> WasiResult {
    memory.slice(GuestPtr(at), len)?;
    Ok(())
}

pub(crate) fn get_u32(memory: &impl GuestMemory, at: u32) -> WasiResult<u32> {
    Ok(u32_of(memory.slice(GuestPtr(at), 4)?, 0))
}

pub(crate) fn put_u16(memory: &mut impl GuestMemory, at: u32, number: u16) -> WasiResult {
    put(memory, at, &number.to_le_bytes())
}

pub(crate) fn put_u32(memory: &mut impl GuestMemory, at: u32, number: u32) -> WasiResult {
    put(memory, at, &number.to_le_bytes())
}

pub(crate) fn put_u64(memory: &mut impl GuestMemory, at: u32, number: u64) -> WasiResult {
    put(memory, at, &number.to_le_bytes())
}

pub(crate) fn put(memory: &mut impl GuestMemory, at: u32, bytes: &[u8]) -> WasiResult {
    Ok(memory.write(GuestPtr(at), bytes)?)
}

/// A length as the guest's number.
pub(crate) fn put_len(memory: &mut impl GuestMemory, at: u32, len: usize) -> WasiResult {
    put_u32(memory, at, u32::try_from(len).map_err(|_| WasiErrno::OVERFLOW)?)
}

/// The number at `at` of a structure; zero behind its end.
pub(crate) fn u32_of(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

pub(crate) fn u64_of(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let part = bytes.get(at..at + N).and_then(|part| <[u8; N]>::try_from(part).ok());
    part.unwrap_or([0; N])
}

/// A structure whose fields are put at their offsets.
#[derive(Debug)]
pub(crate) struct Record<const N: usize>(pub(crate) [u8; N]);

impl<const N: usize> Record<N> {
    pub(crate) const fn new() -> Self {
        Self([0; N])
    }

    pub(crate) fn with<const LEN: usize>(mut self, at: usize, bytes: [u8; LEN]) -> Self {
        self.0[at..at + LEN].copy_from_slice(&bytes);
        self
    }
}

/// `fdstat`
pub(crate) fn fd_stat(kind: FileType, flags: u32, base: u64, inheriting: u64) -> [u8; 24] {
    Record::new()
        .with(0, [kind as u8])
        .with(2, (flags & flags::ALL).to_le_bytes())
        .with(8, base.to_le_bytes())
        .with(16, inheriting.to_le_bytes())
        .0
}

/// `filestat`
pub(crate) fn file_stat(stat: &FileStat) -> [u8; 64] {
    let size = u64::try_from(stat.st_size).unwrap_or_default();
    Record::new()
        .with(0, stat.st_dev.to_le_bytes())
        .with(8, stat.st_ino.to_le_bytes())
        .with(16, [FileType::of(stat) as u8])
        .with(24, stat.st_nlink.to_le_bytes())
        .with(32, size.to_le_bytes())
        .with(40, timestamp(stat.st_atime, stat.st_atime_nsec).to_le_bytes())
        .with(48, timestamp(stat.st_mtime, stat.st_mtime_nsec).to_le_bytes())
        .with(56, timestamp(stat.st_ctime, stat.st_ctime_nsec).to_le_bytes())
        .0
}

/// `filestat` of a descriptor of the process that the guest did not open.
pub(crate) fn bare_file_stat(kind: FileType) -> [u8; 64] {
    Record::new().with(16, [kind as u8]).0
}

/// Nanoseconds since 1970; the nearest possible time for others.
fn timestamp(seconds: i64, nanoseconds: i64) -> u64 {
    let number = |number: i64| u64::try_from(number).unwrap_or_default();
    number(seconds).saturating_mul(1_000_000_000).saturating_add(number(nanoseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_outside_the_range_become_the_nearest() {
        assert_eq!(timestamp(2, 3), 2_000_000_003);
        assert_eq!(timestamp(-5, 3), 3);
        assert_eq!(timestamp(i64::MAX, 0), u64::MAX);
    }

    #[test]
    fn rights_of_directories_are_those_that_userlands_expect() {
        let path = (9..=18).chain([20, 24, 25, 26]).fold(0, |bits, bit| bits | 1_u64 << bit);
        assert_eq!(rights::DIRECTORY, path | 1 << 21 | 1 << 23);
        let files = (0..=8).chain([21, 22, 23, 27]).fold(0, |bits, bit| bits | 1_u64 << bit);
        assert_eq!(rights::BELOW, rights::DIRECTORY | files);
    }

    #[test]
    fn structures_have_their_fields_where_wasi_says() {
        let stat = fd_stat(FileType::RegularFile, flags::APPEND | flags::SYNC, 2, 3);
        assert_eq!((stat[0], stat[2], stat[3], stat[8], stat[16]), (4, 0x11, 0, 2, 3));
        assert_eq!(bare_file_stat(FileType::CharacterDevice)[16], 2);
    }
}
