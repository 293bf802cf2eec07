//! Segments of a pool that their users write.

use cwasi_sys::segment::{ReusableSegment, Segment, SegmentError};

use super::SegmentPool;

/// A segment of the pool that its user writes; returns to the pool when it is dropped.
///
/// A user that has given other code write access to it revokes that first, or calls `forfeit`.
#[derive(Debug)]
pub struct PooledSegment {
    pub(super) segment: Option<ReusableSegment>,
    pub(super) len: usize,
    pub(super) pool: SegmentPool,
}

impl PooledSegment {
    /// The segment, to back pages that its user writes. Only a value that is being consumed has none.
    pub(super) const fn segment(&self) -> Option<&ReusableSegment> {
        self.segment.as_ref()
    }

    /// Lends it: its first `len` bytes are final, those behind are cleared, and no writer is left.
    ///
    /// # Errors
    /// When descriptors run out.
    pub(super) fn lend(mut self, len: usize) -> Result<Segment, SegmentError> {
        let segment = self.segment.take().ok_or(SegmentError::Os {
            operation: "lending",
            len: len as u64,
            source: std::io::ErrorKind::NotFound.into(),
        })?;
        self.pool.state().lend(segment, len.min(self.len))
    }

    /// Removes it from the pool: other code may still write to it.
    pub(super) fn forfeit(mut self) {
        if let Some(segment) = self.segment.take() {
            self.pool.state().forget(segment.len());
        }
    }
}

impl Drop for PooledSegment {
    fn drop(&mut self) {
        if let Some(segment) = self.segment.take() {
            self.pool.state().free.push(segment);
        }
    }
}
