//! Segments that are lent and come back: their pages exist already.
//!
//! A lease comes with a *token*, the write end of a pipe. Every reader of the bytes keeps a copy of it open. When the
//! last copy is closed, also by the death of its holder, the owner's end of the pipe hangs up, and the segment can be
//! written again.
//!
//! Invariants:
//! - Only the owner's mapping writes to a segment (`F_SEAL_FUTURE_WRITE`): no receiver of the descriptor can.
//! - Behind the bytes of a lease, the segment is zero.
//! - A lent segment is not written: [`LentSegment`] has no way to do so.
#![expect(unsafe_code, reason = "writes to pages that others map")]

use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::pipe2;

use crate::huge::Aligned;

use super::{Segment, SegmentError};

/// Bytes that are cleared in one step; between steps clearing can be interrupted.
const STEP: usize = 4 << 20;

/// Seals of a segment that is lent.
const SEALS: SealFlag = SealFlag::F_SEAL_SHRINK
    .union(SealFlag::F_SEAL_GROW)
    .union(SealFlag::F_SEAL_FUTURE_WRITE)
    .union(SealFlag::F_SEAL_SEAL);

/// A memfd that only this process writes, through one mapping.
#[derive(Debug)]
pub struct ReusableSegment {
    file: File,
    map: Aligned,
    len: usize,
    /// Behind these bytes all are zero.
    dirty: usize,
}

/// Whether the readers of a lent segment have closed its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returned {
    No,
    Yes,
    /// They have, and one of them has passed it on to others ([`Segment::pass_on`]).
    PassedOn,
}

/// A segment that still has readers.
#[derive(Debug)]
pub struct LentSegment {
    segment: ReusableSegment,
    /// Hangs up when the last copy of the token is closed.
    token_read: OwnedFd,
}

impl ReusableSegment {
    /// `len` zero bytes.
    ///
    /// # Errors
    /// When memory, mappings or descriptors run out.
    pub fn new(len: NonZeroUsize) -> Result<Self, SegmentError> {
        let os = |operation| {
            let len = len.get() as u64;
            move |source: std::io::Error| SegmentError::Os { operation, len, source }
        };
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file =
            memfd_create(c"cwasi-pool", flags).map_err(|errno| os("memfd_create")(errno.into()))?;
        let file = File::from(file);
        file.set_len(len.get() as u64).map_err(os("ftruncate"))?;
        let map = Aligned::of(&file, len)
            .ok_or_else(|| os("mmap")(std::io::ErrorKind::OutOfMemory.into()))?;
        map.take_huge_pages();
        fcntl(&file, FcntlArg::F_ADD_SEALS(SEALS))
            .map_err(|errno| os("F_ADD_SEALS")(errno.into()))?;
        Ok(Self { file, map, len: len.get(), dirty: 0 })
    }

    /// Length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Behind these bytes all are zero.
    #[must_use]
    pub const fn dirty(&self) -> usize {
        self.dirty
    }

    /// The memfd, to be mapped privately.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Where its owner writes.
    #[must_use]
    pub const fn start(&self) -> NonNull<u8> {
        self.map.start()
    }

    /// `len` bytes from `from` on, as far as there are some, to be written. They are old ones before.
    pub(super) fn part_mut(&mut self, from: usize, len: usize) -> (NonNull<u8>, usize) {
        let from = from.min(self.len);
        let len = len.min(self.len - from);
        self.dirty = self.dirty.max(from + len);
        // SAFETY:
        // - inside the mapping, or at its end.
        (unsafe { self.map.start().byte_add(from) }, len)
    }

    /// Clears some of the bytes that are not zero. Returns false when there are none.
    pub fn clear_step(&mut self) -> bool {
        self.clear_behind(0)
    }

    /// Clears it for other code, which may then write to the first `len` bytes.
    pub fn clear_for(&mut self, len: usize) {
        while self.clear_step() {}
        self.dirty = len.min(self.len);
    }

    /// Makes up to [`STEP`] of the bytes from `from` on zero, the last ones first; false when they all are.
    fn clear_behind(&mut self, from: usize) -> bool {
        if self.dirty <= from {
            return false;
        }
        let start = from.max(self.dirty.saturating_sub(STEP));
        // SAFETY:
        // - inside the mapping: `dirty` is never more than its length.
        // - no reader is left, because this segment is not lent.
        unsafe { self.map.start().byte_add(start).write_bytes(0, self.dirty - start) };
        self.dirty = start;
        true
    }

    /// Makes `bytes` the only ones that are not zero.
    ///
    /// # Panics
    /// When there is no room for them: the caller asked for this length.
    pub fn write(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.len, "{} bytes do not fit into {}", bytes.len(), self.len);
        while self.clear_behind(bytes.len()) {}
        // SAFETY:
        // - there is room for them, as was just checked.
        // - as for `clear_behind`; `bytes` are no mapping of a segment that is free.
        unsafe { self.map.start().as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        self.dirty = bytes.len();
    }

    /// Lends its first `len` bytes; those behind are cleared.
    ///
    /// # Errors
    /// When descriptors run out.
    pub fn lend(mut self, len: usize) -> Result<(LentSegment, Segment), SegmentError> {
        while self.clear_behind(len) {}
        let os = |operation| {
            move |source: std::io::Error| SegmentError::Os { operation, len: len as u64, source }
        };
        let (token_read, token) =
            pipe2(OFlag::O_CLOEXEC).map_err(|errno| os("pipe2")(errno.into()))?;
        let file = self.file.try_clone().map_err(os("dup"))?;
        let segment = Segment::leased(file, len as u64, Arc::new(token));
        Ok((LentSegment { segment: self, token_read }, segment))
    }
}

impl LentSegment {
    /// Takes back every segment whose tokens are closed, the last one first.
    pub fn reclaim(lent: &mut Vec<Self>, mut reclaimed: impl FnMut(ReusableSegment)) {
        if lent.is_empty() {
            return;
        }
        let tokens = lent.iter().map(|lent| lent.token_read.as_fd());
        let mut ends: Vec<_> = tokens.map(|token| PollFd::new(token, PollFlags::empty())).collect();
        if !any_ready(&mut ends) {
            return;
        }
        let ended = |end: &PollFd<'_>| {
            end.revents().is_some_and(|events| events.contains(PollFlags::POLLHUP))
        };
        let ended: Vec<bool> = ends.iter().map(ended).collect();
        for index in (0..ended.len()).rev().filter(|index| ended[*index]) {
            reclaimed(lent.remove(index).segment);
        }
    }

    /// Whether it may be taken back.
    #[must_use]
    pub fn returned(&self) -> Returned {
        let mut end = [PollFd::new(self.token_read.as_fd(), PollFlags::POLLIN)];
        let _is_ready = any_ready(&mut end);
        let events = end[0].revents().unwrap_or(PollFlags::empty());
        // What a reader has written is in the pipe before it closes its token.
        match (events.contains(PollFlags::POLLHUP), events.contains(PollFlags::POLLIN)) {
            (false, _) => Returned::No,
            (true, false) => Returned::Yes,
            (true, true) => Returned::PassedOn,
        }
    }

    /// The segment, which has [returned](Self::returned).
    pub(super) fn take_back(self) -> ReusableSegment {
        self.segment
    }

    /// Length of the whole segment in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub const fn len(&self) -> usize {
        self.segment.len
    }
}

/// True when one of them is ready now.
fn any_ready(watched: &mut [PollFd<'_>]) -> bool {
    loop {
        match poll(watched, PollTimeout::ZERO) {
            Err(Errno::EINTR) => {}
            polled => return matches!(polled, Ok(1..)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;

    const LEN: u64 = 70_000;

    /// A segment of 128 KiB, of which [`LEN`] bytes are lent.
    fn lent() -> (LentSegment, Segment) {
        let mut segment = ReusableSegment::new(NonZeroUsize::new(128 << 10).unwrap()).unwrap();
        segment.write(&[7; 70_000]);
        segment.lend(70_000).unwrap()
    }

    #[test]
    fn only_the_owner_writes() {
        let (_lent, segment) = lent();
        let file = File::from(segment.copied_fd());
        assert!(file.write_at(b"x", 0).is_err());
        assert!(file.set_len(0).is_err() && file.set_len(1 << 20).is_err());
        let len = NonZeroUsize::new(4096).unwrap();
        assert!(Aligned::of(&file, len).is_none(), "mapped for writing");
        assert!(segment.to_vec().unwrap() == [7; 70_000]);
    }

    #[test]
    fn hostile_leases_are_refused() {
        let (_lent, segment) = lent();
        let fd = || segment.copied_fd();
        let token = || segment.token().unwrap().try_clone().unwrap();
        assert!(Segment::accept_leased(fd(), LEN, token()).is_ok());
        let sealed = Segment::copy_of(&[7; 70_000]).unwrap().copied_fd();
        assert!(Segment::accept_leased(sealed, LEN, token()).is_ok(), "sealed more");
        assert!(Segment::accept(fd(), LEN).is_err(), "a lease is no sealed segment");
        let whole = 128 << 10;
        assert!(Segment::accept_leased(fd(), whole, token()).is_ok());
        let file = File::open("/proc/self/exe").unwrap();
        let unsealed = || {
            let fd = memfd_create(c"t", MFdFlags::MFD_ALLOW_SEALING).unwrap();
            File::from(fd.try_clone().unwrap()).set_len(1 << 20).unwrap();
            fd
        };
        let sealed_but = |missing: SealFlag| {
            let fd = unsealed();
            fcntl(&fd, FcntlArg::F_ADD_SEALS(SEALS.difference(missing))).unwrap();
            fd
        };
        for (what, fd, len, token) in [
            ("short", fd(), whole + 1, token()),
            ("no memfd", file.try_clone().unwrap().into(), 1, token()),
            ("a token that is a file", fd(), LEN, file.into()),
            ("a token that is memory", fd(), LEN, fd()),
            ("unsealed", unsealed(), LEN, token()),
            ("shrinks", sealed_but(SealFlag::F_SEAL_SHRINK), 7, token()),
            ("grows", sealed_but(SealFlag::F_SEAL_GROW), 7, token()),
            ("can be written", sealed_but(SealFlag::F_SEAL_FUTURE_WRITE), 7, token()),
        ] {
            let refused = Segment::accept_leased(fd, len, token);
            assert!(matches!(refused, Err(SegmentError::Hostile { .. })), "{what}");
        }
    }
}
