//! Segments: memfds that carry one payload from one process to another.
//!
//! *Sealed*: the sender fills a fresh memfd and seals it against all changes. *Leased*: the sender keeps the only
//! writable mapping, and reuses the memfd when all tokens are closed ([`super::pool`]). The receiver checks seals and
//! size of both *before* it reads, so the bytes cannot vanish. It reads by copying only, because a compromised sender
//! can change a leased segment.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::poll::poll;
use nix::sys::stat::{SFlag, fstat};
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};

mod unsealed;

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

/// A memfd of `len` bytes that no receiver can change; or one that begins with them, when it is leased.
#[derive(Debug)]
pub struct Segment {
    file: File,
    len: u64,
    token: Option<LeaseToken>,
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
        Ok(Self { file: File::from(fd), len: u64::try_from(size).unwrap_or(0), token: None })
    }

    /// The first `len` bytes of a memfd that its owner lends.
    pub(super) const fn leased(file: File, len: u64, token: LeaseToken) -> Self {
        Self { file, len, token: Some(token) }
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
        Ok(Self { file: File::from(fd), len, token: None })
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
        Ok(Self { file: File::from(fd), len, token: Some(Arc::new(token)) })
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

#[derive(Clone, Copy, Debug)]
pub struct SegmentRef<'a> {
    fd: BorrowedFd<'a>,
    len: u64,
    token: Option<BorrowedFd<'a>>,
}

impl<'a> SegmentRef<'a> {
    /// The segment behind `fd`, which came from a [`Segment`] of `len` bytes with this token: nothing is checked again.
    #[must_use]
    pub const fn of_known(fd: BorrowedFd<'a>, len: u64, token: Option<BorrowedFd<'a>>) -> Self {
        Self { fd, len, token }
    }

    /// The token of a leased segment.
    #[must_use]
    pub const fn token(&self) -> Option<BorrowedFd<'a>> {
        self.token
    }

    /// A sealed copy of the bytes, for peers to which no lease may go.
    ///
    /// # Errors
    /// When memory or descriptors run out.
    pub fn sealed_copy(&self) -> Result<Segment, SegmentError> {
        let os = |operation| {
            move |errno: nix::Error| SegmentError::Os {
                operation,
                len: self.len,
                source: errno.into(),
            }
        };
        let mut draft = UnsealedSegment::new(self.len)?;
        let mut buffer = vec![0; COPY_STEP];
        let mut at = 0;
        while at < self.len {
            let left = usize::try_from(self.len - at).unwrap_or(usize::MAX).min(COPY_STEP);
            let offset = i64::try_from(at).unwrap_or(i64::MAX);
            let read =
                nix::sys::uio::pread(self.fd, &mut buffer[..left], offset).map_err(os("read"))?;
            if read == 0 {
                return Err(os("read")(nix::Error::EIO));
            }
            draft.write_at(&buffer[..read], at)?;
            at += read as u64;
        }
        draft.seal()
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
    pub const fn as_fd(&self) -> BorrowedFd<'a> {
        self.fd
    }

    /// The same segment, kept by the caller too.
    ///
    /// # Errors
    /// When descriptors run out.
    pub fn to_segment(&self) -> Result<Segment, SegmentError> {
        let os = |source| SegmentError::Os { operation: "dup", len: self.len, source };
        let fd = self.fd.try_clone_to_owned().map_err(os)?;
        let token = self.token.map(|token| token.try_clone_to_owned()).transpose().map_err(os)?;
        Ok(Segment { file: File::from(fd), len: self.len, token: token.map(Arc::new) })
    }

    /// The inode number, which differs between open memfds.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn inode(&self) -> Result<u64, SegmentError> {
        let os = |errno: nix::Error| SegmentError::Os {
            operation: "fstat",
            len: self.len,
            source: errno.into(),
        };
        Ok(fstat(self.fd).map_err(os)?.st_ino)
    }
}

impl<'a> From<&'a Segment> for SegmentRef<'a> {
    fn from(segment: &'a Segment) -> Self {
        Self {
            fd: segment.as_fd(),
            len: segment.len,
            token: segment.token.as_ref().map(AsFd::as_fd),
        }
    }
}

/// The memfd alone: for a segment that is not leased.
impl From<Segment> for OwnedFd {
    fn from(segment: Segment) -> Self {
        segment.file.into()
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::memfd::{MFdFlags, memfd_create};

    use super::*;
    use crate::huge;

    #[test]
    fn bytes_survive_and_cannot_change() {
        let segment = Segment::copy_of(b"camera").unwrap();
        let again =
            Segment::accept(SegmentRef::from(&segment).to_segment().unwrap().into(), 6).unwrap();
        assert_eq!(again.to_vec().unwrap(), b"camera");
        assert!(again.file.write_at(b"x", 0).is_err());
        assert!(again.file.set_len(0).is_err());
    }

    #[test]
    fn a_filled_memfd_becomes_a_segment() {
        let file = File::from(memfd_create(c"t", MFdFlags::MFD_ALLOW_SEALING).unwrap());
        file.write_all_at(b"frame", 0).unwrap();
        let segment = Segment::seal(file.into()).unwrap();
        assert_eq!(segment.to_vec().unwrap(), b"frame");
        assert!(Segment::accept(segment.into(), 5).is_ok());
    }

    #[test]
    fn unsealed_short_and_foreign_descriptors_are_refused() {
        let unsealed = memfd_create(c"t", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        assert!(matches!(Segment::accept(unsealed, 0), Err(SegmentError::Hostile { .. })));
        let short = Segment::copy_of(b"ab").unwrap();
        assert!(matches!(Segment::accept(short.into(), 3), Err(SegmentError::Hostile { .. })));
        let long = Segment::copy_of(b"abcd").unwrap();
        assert!(matches!(Segment::accept(long.into(), 3), Err(SegmentError::Hostile { .. })));
        let file = File::open("/proc/self/exe").unwrap();
        assert!(matches!(Segment::accept(file.into(), 1), Err(SegmentError::Hostile { .. })));
    }

    #[test]
    fn a_mapping_that_goes_away_does_not_hinder_the_seal() {
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
    fn each_missing_seal_is_noticed() {
        for missing in SEALS.iter() {
            let file = File::from(memfd_create(c"t", MFdFlags::MFD_ALLOW_SEALING).unwrap());
            file.set_len(4096).unwrap();
            fcntl(&file, FcntlArg::F_ADD_SEALS(SEALS.difference(missing))).unwrap();
            let refused = Segment::accept(file.into(), 4096);
            assert!(matches!(refused, Err(SegmentError::Hostile { .. })), "{missing:?}");
        }
    }

    #[test]
    fn huge_pages_that_may_be_missing_are_refused() {
        let flags = MFdFlags::MFD_ALLOW_SEALING | MFdFlags::MFD_HUGETLB;
        let file = File::from(memfd_create(c"t", flags).unwrap());
        file.set_len(2 << 20).unwrap();
        fcntl(&file, FcntlArg::F_ADD_SEALS(SEALS)).unwrap();
        let refused = Segment::accept(file.into(), 2 << 20).unwrap_err();
        assert!(refused.to_string().contains("another kind"), "{refused}");
    }
}
