//! Payloads on their way: bytes, or a segment that goes as a descriptor. Runs in workers, sandbox init and shims.

use cwasi_sys::segment::{Segment, SegmentError, SegmentRef};

/// A payload on its way out.
#[derive(Clone, Copy, Debug)]
pub enum OutgoingPayload<'a> {
    /// The caller's bytes; the mode copies them.
    Bytes(&'a [u8]),
    /// A segment that the caller made or received; the mode passes it on as it is.
    Segment(SegmentRef<'a>),
}

impl OutgoingPayload<'_> {
    /// No bytes.
    pub const EMPTY: Self = Self::Bytes(&[]);

    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Segment(segment) => segment.len(),
        }
    }

    /// True when there are no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'a> From<&'a Segment> for OutgoingPayload<'a> {
    fn from(segment: &'a Segment) -> Self {
        Self::Segment(SegmentRef::from(segment))
    }
}

/// A payload or response that arrived.
#[derive(Debug)]
pub enum Payload {
    /// Small enough to travel in a frame.
    Inline(Vec<u8>),
    /// Sealed shared memory.
    Segment(Segment),
}

impl Payload {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Segment(segment) => segment.len(),
        }
    }

    /// True when there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies all bytes into `target`, which is exactly [`Self::len`] long.
    ///
    /// # Errors
    /// When a segment cannot be read.
    ///
    /// # Panics
    /// When `target` has another length: the caller asked for the length first.
    pub fn copy_to(&self, target: &mut [u8]) -> Result<(), SegmentError> {
        match self {
            Self::Inline(bytes) => {
                target.copy_from_slice(bytes);
                Ok(())
            }
            Self::Segment(segment) => segment.read_exact_at(target, 0),
        }
    }

    /// Borrows it for sending.
    #[must_use]
    pub fn outgoing(&self) -> OutgoingPayload<'_> {
        match self {
            Self::Inline(bytes) => OutgoingPayload::Bytes(bytes),
            Self::Segment(segment) => segment.into(),
        }
    }

    /// All bytes.
    ///
    /// # Errors
    /// When a segment cannot be read into memory.
    pub fn into_vec(self) -> Result<Vec<u8>, SegmentError> {
        match self {
            Self::Inline(bytes) => Ok(bytes),
            Self::Segment(segment) => segment.to_vec(),
        }
    }
}
