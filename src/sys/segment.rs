//! Segments: memfds that carry one payload from one process to another.
//!
//! *Sealed*: the sender fills a fresh memfd and seals it against all changes. *Leased*: the sender keeps the only
//! writable mapping, and reuses the memfd when all tokens are closed ([`ReusableSegment`]). The receiver checks seals
//! and size of both *before* it reads, so the bytes cannot vanish. It reads by copying only, because a compromised
//! sender can change a leased segment.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::{SFlag, fstat};
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use nix::unistd::write;

mod received;
mod reusable;
mod unsealed;

pub use received::{LentReceived, ReceivedSegment};
pub use reusable::{LentSegment, Returned, ReusableSegment};
pub use unsealed::UnsealedSegment;

const SEALS: SealFlag = SealFlag::F_SEAL_WRITE
    .union(SealFlag::F_SEAL_SHRINK)
    .union(SealFlag::F_SEAL_GROW)
    .union(SealFlag::F_SEAL_SEAL);

/// The least seals of a leased segment; a sealed one has more.
const LEASE_SEALS: SealFlag = SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_GROW);
/// Either forbids a receiver to write.
const READ_ONLY: [SealFlag; 2] = [SealFlag::F_SEAL_WRITE, SealFlag::F_SEAL_FUTURE_WRITE];
/// Bytes that are copied at a time.
const COPY_STEP: usize = 256 << 10;

/// The token of a lease: every reader of the bytes keeps a copy open. The owner learns when the last one is closed.
pub type LeaseToken = Arc<OwnedFd>;

/// Most tries of a seal that a mapping for writing is in the way of. Ours is gone by then, but a child that another
/// thread forked has a copy of it until it calls exec.
const SEAL_TRIES_MAX: u32 = 200;
/// Pause between two of them, in milliseconds.
const SEAL_AGAIN_MS: u8 = 1;

/// Why a segment cannot be made, accepted or read.
#[derive(Debug, thiserror::Error)]
pub enum SegmentError {
    /// A system call failed.
    #[error("{operation} failed on a segment of {len} bytes: {source}")]
    Os {
        operation: &'static str,
        /// Length of the segment in bytes.
        len: u64,
        #[source]
        source: io::Error,
    },
    /// The peer sent something else than a sealed memfd of the announced size.
    #[error("the peer's descriptor is not a segment of {expected} bytes: {found}")]
    Hostile {
        /// Announced length in bytes.
        expected: u64,
        /// What it is instead.
        found: String,
    },
}

/// A memfd of `len` bytes that no receiver can change; or one that begins with them, when it is leased. Clones share
/// the descriptors.
#[derive(Clone, Debug)]
pub struct Segment {
    file: Arc<File>,
    len: u64,
    token: Option<LeaseToken>,
    for_one_reader: bool,
}

impl Segment {
    /// A sealed copy of `bytes`.
    ///
    /// # Errors
    /// When memory or descriptors run out.
    pub fn copy_of(bytes: &[u8]) -> Result<Self, SegmentError> {
        let mut draft = UnsealedSegment::new(bytes.len() as u64)?;
        draft.write_at(bytes, 0)?;
        draft.seal()
    }

    /// Seals a memfd of ours as it is.
    ///
    /// # Errors
    /// When it is mapped for writing for long, or allows no seals.
    pub fn seal(fd: OwnedFd) -> Result<Self, SegmentError> {
        let os = |operation, len| {
            move |errno: nix::Error| SegmentError::Os { operation, len, source: errno.into() }
        };
        let mut tries = 1;
        while let Err(errno) = fcntl(&fd, FcntlArg::F_ADD_SEALS(SEALS)) {
            if errno != Errno::EBUSY || tries == SEAL_TRIES_MAX {
                return Err(os("F_ADD_SEALS", 0)(errno));
            }
            tries += 1;
            // A pause by a system call that sandboxes may make; one that is cut short is as good.
            let _interrupted = poll(&mut [], SEAL_AGAIN_MS);
        }
        let size = fstat(&fd).map_err(os("fstat", 0))?.st_size;
        let len = u64::try_from(size).unwrap_or(0);
        Ok(Self { file: Arc::new(fd.into()), len, token: None, for_one_reader: false })
    }

    /// The first `len` bytes of a memfd that its owner lends.
    fn leased(file: File, len: u64, token: LeaseToken) -> Self {
        Self { file: Arc::new(file), len, token: Some(token), for_one_reader: false }
    }

    /// Accepts a descriptor from a peer that announced `len` bytes.
    ///
    /// # Errors
    /// When it is not a memfd with all our seals and exactly that size.
    pub fn accept(fd: OwnedFd, len: u64) -> Result<Self, SegmentError> {
        let size = checked(&fd, len, |seals| seals.contains(SEALS))?;
        if size != len {
            return Err(hostile(len, format!("{size} bytes")));
        }
        Ok(Self { file: Arc::new(fd.into()), len, token: None, for_one_reader: false })
    }

    /// Accepts a leased segment, and its token, from a peer that announced `len` bytes.
    ///
    /// # Errors
    /// When it is not a memfd of at least that size that we cannot write to, or the token is no pipe.
    pub fn accept_leased(fd: OwnedFd, len: u64, token: OwnedFd) -> Result<Self, SegmentError> {
        let lent = |seals: SealFlag| {
            seals.contains(LEASE_SEALS) && READ_ONLY.iter().any(|seal| seals.contains(*seal))
        };
        let size = checked(&fd, len, lent)?;
        if size < len {
            return Err(hostile(len, format!("{size} bytes")));
        }
        let kind =
            fstat(&token).map_err(|errno| hostile(len, format!("a token of no kind ({errno})")))?;
        if SFlag::from_bits_truncate(kind.st_mode & SFlag::S_IFMT.bits()) != SFlag::S_IFIFO {
            return Err(hostile(len, "a token that is not a pipe".to_owned()));
        }
        let token = Some(Arc::new(token));
        Ok(Self { file: Arc::new(fd.into()), len, token, for_one_reader: false })
    }

    /// The same, lent to one reader: its owner will write to it again for that reader, unless it is [passed
    /// on](Self::pass_on). A sealed segment stays as it is.
    #[must_use]
    pub const fn for_one_reader(mut self) -> Self {
        self.for_one_reader = self.token.is_some();
        self
    }

    /// True if it is lent to one reader.
    #[must_use]
    pub const fn is_for_one_reader(&self) -> bool {
        self.for_one_reader
    }

    /// The same for other readers, who may keep the descriptor: tells the owner, who then never writes to it again. A
    /// copy if the owner cannot be told.
    ///
    /// # Errors
    /// When memory or descriptors run out.
    pub fn pass_on(&self) -> Result<Self, SegmentError> {
        let Some(token) = self.token.as_ref().filter(|_| self.for_one_reader) else {
            return Ok(self.clone());
        };
        // A peer's pipe may be one that blocks: it is written to only with room.
        let mut end = [PollFd::new(token.as_fd(), PollFlags::POLLOUT)];
        let polled = poll(&mut end, PollTimeout::ZERO);
        let events = end[0].revents().filter(|_| polled.is_ok()).unwrap_or(PollFlags::empty());
        // Without an owner there is nobody who writes.
        let has_owner = !events.contains(PollFlags::POLLERR);
        let is_told = || events.contains(PollFlags::POLLOUT) && write(token, &[1]).is_ok();
        if has_owner && !is_told() {
            return self.sealed_copy();
        }
        Ok(Self { for_one_reader: false, ..self.clone() })
    }

    /// The token of a leased segment; `None` when it is sealed.
    #[must_use]
    pub const fn token(&self) -> Option<&LeaseToken> {
        self.token.as_ref()
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// True when it holds no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The memfd, for sending.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Copies the bytes from `offset` on into `target`, all of it.
    ///
    /// # Errors
    /// When the segment ends before `target` is full.
    pub fn read_exact_at(&self, target: &mut [u8], offset: u64) -> Result<(), SegmentError> {
        let os = |source| SegmentError::Os { operation: "read", len: self.len, source };
        let end = offset.checked_add(target.len() as u64);
        if end.is_none_or(|end| end > self.len) {
            return Err(os(io::ErrorKind::UnexpectedEof.into()));
        }
        self.file.read_exact_at(target, offset).map_err(os)
    }

    /// All bytes.
    ///
    /// # Errors
    /// When they do not fit into memory or cannot be read.
    pub fn to_vec(&self) -> Result<Vec<u8>, SegmentError> {
        let too_large =
            |source| SegmentError::Os { operation: "allocation", len: self.len, source };
        let len =
            usize::try_from(self.len).map_err(|_| too_large(io::ErrorKind::OutOfMemory.into()))?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|_| too_large(io::ErrorKind::OutOfMemory.into()))?;
        bytes.resize(len, 0);
        self.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    /// A sealed copy of the bytes, for peers to which no lease may go.
    ///
    /// # Errors
    /// When memory or descriptors run out.
    pub fn sealed_copy(&self) -> Result<Self, SegmentError> {
        let mut draft = UnsealedSegment::new(self.len)?;
        let mut buffer = vec![0; COPY_STEP];
        let mut at = 0;
        while at < self.len {
            let left = usize::try_from(self.len - at).unwrap_or(usize::MAX).min(COPY_STEP);
            self.read_exact_at(&mut buffer[..left], at)?;
            draft.write_at(&buffer[..left], at)?;
            at += left as u64;
        }
        draft.seal()
    }
}

#[cfg(test)]
impl Segment {
    /// A copy of the descriptor, as a peer gets it.
    pub(crate) fn copied_fd(&self) -> OwnedFd {
        self.as_fd().try_clone_to_owned().unwrap()
    }
}

fn hostile(expected: u64, found: String) -> SegmentError {
    SegmentError::Hostile { expected, found }
}

/// The size of a peer's descriptor, if it is a memfd of ordinary memory whose seals are `good`.
fn checked(
    fd: &OwnedFd,
    len: u64,
    good: impl FnOnce(SealFlag) -> bool,
) -> Result<u64, SegmentError> {
    let seals = fcntl(fd, FcntlArg::F_GET_SEALS)
        .map_err(|errno| hostile(len, format!("no seals ({errno})")))?;
    let seals = SealFlag::from_bits_truncate(seals);
    if !good(seals) {
        return Err(hostile(len, format!("only {seals:?}")));
    }
    // Huge pages of hugetlbfs can be missing when a mapping needs them.
    let kind = fstatfs(fd).map_err(|errno| hostile(len, format!("no file system ({errno})")))?;
    if kind.filesystem_type() != TMPFS_MAGIC {
        return Err(hostile(len, "memory of another kind".to_owned()));
    }
    let size = fstat(fd).map_err(|errno| hostile(len, format!("no size ({errno})")))?.st_size;
    u64::try_from(size).map_err(|_| hostile(len, format!("{size} bytes")))
}

#[cfg(test)]
mod tests {
    use nix::sys::memfd::{MFdFlags, memfd_create};

    use super::*;
    use crate::huge;

    #[test]
    fn sealed_segments_cannot_change() {
        let segment = Segment::copy_of(b"camera").unwrap();
        let again = Segment::accept(segment.copied_fd(), 6).unwrap();
        assert_eq!(again.to_vec().unwrap(), b"camera");
        assert!(again.file.write_at(b"x", 0).is_err());
        assert!(again.file.set_len(0).is_err());
    }

    #[test]
    fn filled_memfds_become_segments() {
        let file = File::from(memfd_create(c"t", MFdFlags::MFD_ALLOW_SEALING).unwrap());
        file.write_all_at(b"frame", 0).unwrap();
        let segment = Segment::seal(file.into()).unwrap();
        assert_eq!(segment.to_vec().unwrap(), b"frame");
        assert!(Segment::accept(segment.copied_fd(), 5).is_ok());
    }

    #[test]
    fn hostile_descriptors_are_refused() {
        let unsealed = memfd_create(c"t", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        assert!(matches!(Segment::accept(unsealed, 0), Err(SegmentError::Hostile { .. })));
        let short = Segment::copy_of(b"ab").unwrap();
        assert!(matches!(Segment::accept(short.copied_fd(), 3), Err(SegmentError::Hostile { .. })));
        let long = Segment::copy_of(b"abcd").unwrap();
        assert!(matches!(Segment::accept(long.copied_fd(), 3), Err(SegmentError::Hostile { .. })));
        let file = File::open("/proc/self/exe").unwrap();
        assert!(matches!(Segment::accept(file.into(), 1), Err(SegmentError::Hostile { .. })));
    }

    #[test]
    fn sealing_waits_for_mappings_to_end() {
        let file = File::from(memfd_create(c"t", MFdFlags::MFD_ALLOW_SEALING).unwrap());
        file.set_len(4096).unwrap();
        let mapped = huge::Aligned::of(&file, std::num::NonZeroUsize::new(4096).unwrap());
        let unmaps = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(10));
            drop(mapped);
        });
        assert_eq!(Segment::seal(file.into()).unwrap().len(), 4096);
        unmaps.join().unwrap();
    }

    #[test]
    fn every_seal_is_required() {
        for missing in SEALS.iter() {
            let file = File::from(memfd_create(c"t", MFdFlags::MFD_ALLOW_SEALING).unwrap());
            file.set_len(4096).unwrap();
            fcntl(&file, FcntlArg::F_ADD_SEALS(SEALS.difference(missing))).unwrap();
            let refused = Segment::accept(file.into(), 4096);
            assert!(matches!(refused, Err(SegmentError::Hostile { .. })), "{missing:?}");
        }
    }

    #[test]
    fn hugetlb_memfds_are_refused() {
        let flags = MFdFlags::MFD_ALLOW_SEALING | MFdFlags::MFD_HUGETLB;
        let file = File::from(memfd_create(c"t", flags).unwrap());
        file.set_len(2 << 20).unwrap();
        fcntl(&file, FcntlArg::F_ADD_SEALS(SEALS)).unwrap();
        let refused = Segment::accept(file.into(), 2 << 20).unwrap_err();
        assert!(refused.to_string().contains("another kind"), "{refused}");
    }
}
