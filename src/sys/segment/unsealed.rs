//! Segments that are being filled.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::huge;

use super::{Segment, SegmentError};

/// A segment that is still being filled, by its maker alone.
#[derive(Debug)]
pub struct UnsealedSegment {
    file: File,
    len: u64,
}

impl UnsealedSegment {
    /// `len` zero bytes, in huge pages where they are long enough and the kernel has some.
    ///
    /// # Errors
    /// When memory or descriptors run out.
    pub fn new(len: u64) -> Result<Self, SegmentError> {
        let os = |operation| move |source: io::Error| SegmentError::Os { operation, len, source };
        let fd =
            memfd_create(c"cwasi-payload", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)
                .map_err(|errno| os("memfd_create")(errno.into()))?;
        let file = File::from(fd);
        file.set_len(len).map_err(os("ftruncate"))?;
        huge::back(&file, len);
        Ok(Self { file, len })
    }

    /// Writes `bytes` at `offset`.
    ///
    /// # Errors
    /// When memory runs out, or they would lie beyond the end.
    pub fn write_at(&mut self, bytes: &[u8], offset: u64) -> Result<(), SegmentError> {
        let os = |source| SegmentError::Os { operation: "write", len: self.len, source };
        let end = offset.checked_add(bytes.len() as u64);
        if end.is_none_or(|end| end > self.len) {
            return Err(os(io::ErrorKind::InvalidInput.into()));
        }
        self.file.write_all_at(bytes, offset).map_err(os)
    }

    /// Ends the filling.
    ///
    /// # Errors
    /// When the system refuses the seals.
    pub fn seal(self) -> Result<Segment, SegmentError> {
        Segment::seal(self.file.into())
    }

    /// Removes the bytes behind the first `len`.
    ///
    /// # Errors
    /// When the system refuses, or there are not that many.
    pub fn truncate(&mut self, len: u64) -> Result<(), SegmentError> {
        let os = |source| SegmentError::Os { operation: "ftruncate", len, source };
        if len > self.len {
            return Err(os(io::ErrorKind::InvalidInput.into()));
        }
        self.file.set_len(len).map_err(os)?;
        self.len = len;
        Ok(())
    }

    /// Appends zero bytes up to a length of `len`.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn grow(&mut self, len: u64) -> Result<(), SegmentError> {
        let os = |source| SegmentError::Os { operation: "ftruncate", len, source };
        if len < self.len {
            return Err(os(io::ErrorKind::InvalidInput.into()));
        }
        self.file.set_len(len).map_err(os)?;
        self.len = len;
        Ok(())
    }

    /// The memfd, for its maker to map.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
