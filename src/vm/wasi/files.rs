//! Reads, writes and positions of descriptors. Runs in a worker.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;

use cwasi_host_functions::GuestMemory;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::uio::{preadv, pwritev, readv, writev};
use nix::unistd::{Whence, lseek64};
use rustix::io::{ReadWriteFlags, preadv2, pwritev2};

use crate::buffers::{errno, gather, scatter, uninterrupted};
use crate::descriptors::{Found, Stdio};
use crate::layout::{check_room, flags, put_len, put_u64};
use crate::{Wasi, WasiErrno, WasiResult, sockets};

/// Stands for the file's own position in `preadv2` and `pwritev2`.
const OWN_POSITION: u64 = u64::MAX;
const STDIN: u8 = 0;
const STDERR: u8 = 2;

impl Wasi {
    pub fn fd_read(
        &mut self,
        memory: &mut impl GuestMemory,
        fd: u32,
        parts: u32,
        count: u32,
        len_out: u32,
    ) -> WasiResult {
        check_room(memory, len_out, 4)?;
        let source = self.find(fd)?;
        let read = scatter(memory, parts, count, |slices| match source {
            Found::Stdio(stdio) if stdio.number == STDIN => {
                Ok(read_stdin(stdio, self.template.stdio(STDIN), slices)?)
            }
            Found::File(file) => Ok(uninterrupted(|| readv(&file.fd, slices))?),
            Found::Socket(socket) => sockets::receive(socket, slices),
            Found::Stdio(_) | Found::Directory(_) => Err(WasiErrno::BADF),
        })??;
        put_len(memory, len_out, read)
    }

    pub fn fd_write(
        &mut self,
        memory: &mut impl GuestMemory,
        fd: u32,
        parts: u32,
        count: u32,
        len_out: u32,
    ) -> WasiResult {
        check_room(memory, len_out, 4)?;
        let slices = gather(memory, parts, count)?;
        let written = match self.find(fd)? {
            Found::Stdio(stdio) if stdio.number != STDIN => {
                let written = write_stdio(stdio, self.template.stdio(stdio.number), &slices)?;
                if stdio.number == STDERR
                    && let Some(tail) = &mut self.tail
                {
                    tail.add(&slices, written);
                }
                written
            }
            Found::File(file) => uninterrupted(|| writev(&file.fd, &slices))?,
            Found::Socket(socket) => sockets::send(socket, &slices)?,
            Found::Stdio(_) | Found::Directory(_) => return Err(WasiErrno::BADF),
        };
        drop(slices);
        put_len(memory, len_out, written)
    }

    pub fn fd_pread(
        &mut self,
        memory: &mut impl GuestMemory,
        fd: u32,
        parts: u32,
        count: u32,
        offset: u64,
        len_out: u32,
    ) -> WasiResult {
        check_room(memory, len_out, 4)?;
        let file = match self.find(fd)? {
            Found::File(file) => file,
            Found::Stdio(stdio) if stdio.number == STDIN => return Err(WasiErrno::SPIPE),
            Found::Socket(_) => return Err(WasiErrno::SPIPE),
            Found::Stdio(_) | Found::Directory(_) => return Err(WasiErrno::BADF),
        };
        let offset = i64::try_from(offset).map_err(|_| WasiErrno::INVAL)?;
        let read = scatter(memory, parts, count, |slices| {
            uninterrupted(|| preadv(&file.fd, slices, offset))
        })??;
        put_len(memory, len_out, read)
    }

    pub fn fd_pwrite(
        &mut self,
        memory: &mut impl GuestMemory,
        fd: u32,
        parts: u32,
        count: u32,
        offset: u64,
        len_out: u32,
    ) -> WasiResult {
        check_room(memory, len_out, 4)?;
        let file = match self.find(fd)? {
            Found::File(file) => file,
            Found::Stdio(stdio) if stdio.number != STDIN => return Err(WasiErrno::SPIPE),
            Found::Socket(_) => return Err(WasiErrno::SPIPE),
            Found::Stdio(_) | Found::Directory(_) => return Err(WasiErrno::BADF),
        };
        let offset = i64::try_from(offset).map_err(|_| WasiErrno::INVAL)?;
        let slices = gather(memory, parts, count)?;
        let written = uninterrupted(|| pwritev(&file.fd, &slices, offset))?;
        drop(slices);
        put_len(memory, len_out, written)
    }

    pub fn fd_seek(
        &mut self,
        memory: &mut impl GuestMemory,
        fd: u32,
        offset: i64,
        whence: u32,
        position_out: u32,
    ) -> WasiResult {
        check_room(memory, position_out, 8)?;
        let whence = match whence {
            0 => Whence::SeekSet,
            1 => Whence::SeekCur,
            2 => Whence::SeekEnd,
            _ => return Err(WasiErrno::INVAL),
        };
        let position = self.seek(fd, offset, whence)?;
        put_u64(memory, position_out, position)
    }

    pub fn fd_tell(
        &mut self,
        memory: &mut impl GuestMemory,
        fd: u32,
        position_out: u32,
    ) -> WasiResult {
        let position = self.seek(fd, 0, Whence::SeekCur)?;
        put_u64(memory, position_out, position)
    }

    fn seek(&self, fd: u32, offset: i64, whence: Whence) -> WasiResult<u64> {
        let file = match self.find(fd)? {
            Found::File(file) => file,
            Found::Stdio(_) | Found::Socket(_) => return Err(WasiErrno::SPIPE),
            Found::Directory(_) => return Err(WasiErrno::BADF),
        };
        let position = lseek64(&file.fd, offset, whence)?;
        u64::try_from(position).map_err(|_| WasiErrno::OVERFLOW)
    }
}

fn read_stdin(
    stdio: Stdio,
    fd: BorrowedFd<'_>,
    slices: &mut [IoSliceMut<'_>],
) -> nix::Result<usize> {
    if stdio.flags & flags::NONBLOCK != 0 {
        let read = uninterrupted(|| {
            preadv2(fd, slices, OWN_POSITION, ReadWriteFlags::NOWAIT).map_err(errno)
        });
        if let Some(done) = without_waiting(fd, PollFlags::POLLIN, read) {
            return done;
        }
    }
    uninterrupted(|| readv(fd, slices))
}

fn write_stdio(stdio: Stdio, fd: BorrowedFd<'_>, slices: &[IoSlice<'_>]) -> nix::Result<usize> {
    if stdio.flags & flags::NONBLOCK != 0 {
        let written = uninterrupted(|| {
            pwritev2(fd, slices, OWN_POSITION, ReadWriteFlags::NOWAIT).map_err(errno)
        });
        if let Some(done) = without_waiting(fd, PollFlags::POLLOUT, written) {
            return done;
        }
    }
    uninterrupted(|| writev(fd, slices))
}

/// The end of a call that did not wait. `None` if an ordinary call is to follow: the file has no such calls, or has
/// always something, and poll says that it is ready.
fn without_waiting(
    fd: BorrowedFd<'_>,
    events: PollFlags,
    done: nix::Result<usize>,
) -> Option<nix::Result<usize>> {
    match done {
        Err(Errno::EAGAIN | Errno::EOPNOTSUPP | Errno::ENOSYS) => {}
        done => return Some(done),
    }
    let mut polled = [PollFd::new(fd, events)];
    match uninterrupted(|| poll(&mut polled, PollTimeout::ZERO)) {
        Ok(0) => Some(Err(Errno::EAGAIN)),
        Ok(_ready) => None,
        Err(error) => Some(Err(error)),
    }
}
