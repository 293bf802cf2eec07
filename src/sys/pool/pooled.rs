//! Segments of a pool that their users write.

use std::os::fd::{AsFd, BorrowedFd};

use crate::huge::Aligned;
use crate::segment::{Segment, SegmentError};

use super::{PoolSegment, SegmentPool};

/// A segment of the pool that its user writes; returns to the pool when it is dropped.
///
/// A user that has given other code write access through [`Self::map`] revokes it first, or calls [`Self::forfeit`].
#[derive(Debug)]
pub struct PooledSegment {
    pub(super) piece: Option<PoolSegment>,
    pub(super) len: usize,
    pub(super) pool: SegmentPool,
}

impl PooledSegment {
    /// Where the pool writes to it: all of its bytes, to be aliased.
    #[must_use]
    pub(crate) fn map(&self) -> Option<&Aligned> {
        self.piece.as_ref().map(|piece| &piece.map)
    }

    /// The memfd, to be mapped privately.
    #[must_use]
    pub(crate) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.piece.as_ref().map(|piece| piece.file.as_fd())
    }

    /// Lends it: its first `len` bytes are final, those behind are cleared, and no writer is left.
    ///
    /// # Errors
    /// When descriptors run out.
    pub(crate) fn lend(mut self, len: usize) -> Result<Segment, SegmentError> {
        let piece = self.piece.take().ok_or(SegmentError::Os {
            operation: "lending",
            len: len as u64,
            source: std::io::ErrorKind::NotFound.into(),
        })?;
        self.pool.stock().lend(piece, len.min(self.len))
    }

    /// Removes it from the pool: other code may still write to it.
    pub(crate) fn forfeit(mut self) {
        if let Some(piece) = self.piece.take() {
            self.pool.stock().forget(piece.len);
        }
    }
}

impl Drop for PooledSegment {
    fn drop(&mut self) {
        if let Some(piece) = self.piece.take() {
            self.pool.stock().free.push(piece);
        }
    }
}
