//! Payloads on their way: bytes, or a segment that goes as a descriptor. Runs in workers, sandbox init and shims.

use crate::pool::SegmentPool;
use cwasi_abi::INLINE_MAX;
use cwasi_sys::segment::{Segment, SegmentError};

/// A payload on its way out.
#[derive(Clone, Copy, Debug)]
pub enum OutgoingPayload<'a> {
    /// The caller's bytes; the mode copies them.
    Bytes(&'a [u8]),
    /// A segment that the caller made or received; the mode passes it on as it is.
    Segment(&'a Segment),
}

impl OutgoingPayload<'_> {
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

    /// Keeps it, so that the caller may change its memory afterwards: few bytes as bytes, many in a segment. That is
    /// leased from `pool` while there is room.
    ///
    /// # Errors
    /// When memory or descriptors run out.
    pub fn keep(self, pool: Option<&SegmentPool>) -> Result<Payload, SegmentError> {
        match self {
            Self::Bytes(bytes) if bytes.len() <= INLINE_MAX => Ok(Payload::Inline(bytes.to_vec())),
            Self::Bytes(bytes) => {
                let leased = pool.and_then(|pool| pool.copy_of(bytes));
                leased.map_or_else(|| Segment::copy_of(bytes), Ok).map(Payload::Segment)
            }
            Self::Segment(segment) => Ok(Payload::Segment(segment.clone())),
        }
    }
}

impl<'a> From<&'a Segment> for OutgoingPayload<'a> {
    fn from(segment: &'a Segment) -> Self {
        Self::Segment(segment)
    }
}

/// A payload or response that arrived.
#[derive(Clone, Debug)]
pub enum Payload {
    /// Small enough to travel in a frame.
    Inline(Vec<u8>),
    /// Sealed shared memory.
    Segment(Segment),
}

impl Payload {
    /// Copies bytes that may go anywhere: few as they are, many into a segment, of `pool` while that may lend.
    ///
    /// # Errors
    /// When memory or descriptors run out.
    pub fn copy_of(bytes: &[u8], pool: Option<&SegmentPool>) -> Result<Self, SegmentError> {
        if bytes.len() <= INLINE_MAX {
            return Ok(Self::Inline(bytes.to_vec()));
        }
        let lendable = pool.and_then(|pool| pool.lendable_copy_of(bytes));
        lendable.map_or_else(|| Segment::copy_of(bytes), Ok).map(Self::Segment)
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(payload: OutgoingPayload<'_>, pool: Option<&SegmentPool>) -> Segment {
        match payload.keep(pool).unwrap() {
            Payload::Segment(segment) => segment,
            Payload::Inline(bytes) => panic!("{} bytes were kept as they are", bytes.len()),
        }
    }

    #[test]
    fn large_copies_are_leased_while_the_pool_has_room() {
        let pool = SegmentPool::new(1 << 20);
        let bytes = vec![7; INLINE_MAX + 1];
        let sealed = segment(OutgoingPayload::Bytes(&bytes), None);
        assert!(sealed.token().is_none() && pool.bytes() == 0);
        let leased = segment(OutgoingPayload::Bytes(&bytes), Some(&pool));
        assert!(leased.token().is_some() && pool.bytes() > 0);
        assert_eq!(leased.len(), bytes.len() as u64);
        // Used up: a fresh one.
        let fresh = segment(OutgoingPayload::Bytes(&vec![7; 2 << 20]), Some(&pool));
        assert!(fresh.token().is_none());
        let small = OutgoingPayload::Bytes(&bytes[..INLINE_MAX]).keep(Some(&pool)).unwrap();
        assert!(matches!(small, Payload::Inline(_)));
    }
}
