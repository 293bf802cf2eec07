//! The memory behind pages that a guest writes before they are sent.

use cwasi_sys::mapping::{MappingError, Window};
use cwasi_sys::segment::{Segment, UnsealedSegment};

use super::{PooledSegment, SegmentPool};

/// The memfd behind pages that are still written.
#[derive(Debug)]
pub enum WritableBacking {
    /// A memfd of its own.
    Fresh(UnsealedSegment),
    /// A segment of the pool; taken back when this is dropped, so the pages are replaced first.
    Pooled(PooledSegment),
}

impl WritableBacking {
    /// Backs the pages with a segment of the pool, if it has one, or a fresh memfd; all zero.
    ///
    /// # Errors
    /// When memory, mappings or descriptors run out.
    pub fn share(window: &mut Window, pool: Option<&SegmentPool>) -> Result<Self, MappingError> {
        if let Some(taken) = pool.and_then(|pool| pool.take(window.len()))
            && let Some(Ok(())) = taken.segment().map(|segment| window.alias(segment))
        {
            return Ok(Self::Pooled(taken));
        }
        window.share().map(Self::Fresh)
    }

    /// Ends what [`Self::share`] began: the first `len` bytes become a segment. This process keeps them,
    /// copy-on-write; the pages behind them become zero.
    ///
    /// # Errors
    /// When memory or mappings run out; the first `len` bytes are kept.
    pub fn seal(self, window: &mut Window, len: usize) -> Result<Segment, MappingError> {
        match self {
            Self::Fresh(draft) => window.seal(draft, len),
            Self::Pooled(taken) => {
                let kept = taken.segment().map(|segment| window.keep(segment.as_fd(), len));
                if let Some(Err(error)) = kept {
                    taken.forfeit();
                    return Err(error);
                }
                Ok(taken.lend(len)?)
            }
        }
    }
}
