//! Segments into which one process receives payloads for another one, again and again.
//!
//! Invariants:
//! - A lease begins with the bytes that were received for it, from the segment's first byte on, and zeros follow. What
//!   was received before is nowhere in it.
//! - Only this process writes, through one mapping that has no alias, and only while nobody holds a token.
#![expect(unsafe_code, reason = "fills pages that others map")]

use std::num::NonZeroUsize;
use std::slice;

use super::{LentSegment, Returned, ReusableSegment, Segment, SegmentError};

/// A segment that its owner fills from the first byte on.
#[derive(Debug)]
pub struct ReceivedSegment {
    segment: ReusableSegment,
    filled: usize,
}

/// One that its reader has.
#[derive(Debug)]
pub struct LentReceived(LentSegment);

impl ReceivedSegment {
    /// Room for `len` bytes.
    ///
    /// # Errors
    /// When memory, mappings or descriptors run out.
    pub fn new(len: NonZeroUsize) -> Result<Self, SegmentError> {
        Ok(Self { segment: ReusableSegment::new(len)?, filled: 0 })
    }

    /// Length of the whole segment in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub const fn len(&self) -> usize {
        self.segment.len()
    }

    /// Bytes that are filled.
    #[must_use]
    pub const fn filled(&self) -> usize {
        self.filled
    }

    /// Begins again, with nothing filled.
    pub const fn clear(&mut self) {
        self.filled = 0;
    }

    /// Room for the next bytes, `most` at most. What is in it is no part of any payload.
    pub fn unfilled(&mut self, most: usize) -> &mut [u8] {
        let (start, len) = self.segment.part_mut(self.filled, most);
        // SAFETY:
        // - inside the mapping, which `self` owns and this borrows mutably; its bytes have values from the beginning.
        // - no other process can write to them: no mapping for writing is made after the seals, and ours has no alias.
        // - no reader relies on them: nobody holds a token. One that keeps its descriptor without it may see them change.
        unsafe { slice::from_raw_parts_mut(start.as_ptr(), len) }
    }

    /// The first `count` bytes of the last [`Self::unfilled`] are filled.
    pub fn advance(&mut self, count: usize) {
        self.filled = self.filled.saturating_add(count).min(self.segment.dirty());
    }

    /// Lends what is filled to one reader.
    ///
    /// # Errors
    /// When descriptors run out.
    pub fn lend(self) -> Result<(LentReceived, Segment), SegmentError> {
        let (lent, segment) = self.segment.lend(self.filled)?;
        Ok((LentReceived(lent), segment.for_one_reader()))
    }
}

impl LentReceived {
    /// Whether it may be taken back.
    #[must_use]
    pub fn returned(&self) -> Returned {
        self.0.returned()
    }

    /// Length of the whole segment in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// The segment, to be filled again; itself while it has a reader, or when that has passed it on.
    ///
    /// # Errors
    /// The segment, as long as it must not be written.
    pub fn take_back(self) -> Result<ReceivedSegment, Self> {
        match self.0.returned() {
            Returned::Yes => Ok(ReceivedSegment { segment: self.0.take_back(), filled: 0 }),
            Returned::No | Returned::PassedOn => Err(self),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt as _;

    use super::*;

    fn filled(mut segment: ReceivedSegment, bytes: &[u8]) -> (LentReceived, Segment) {
        segment.clear();
        for part in bytes.chunks(1000) {
            let room = segment.unfilled(part.len());
            room.copy_from_slice(part);
            segment.advance(part.len());
        }
        segment.lend().unwrap()
    }

    fn new() -> ReceivedSegment {
        ReceivedSegment::new(NonZeroUsize::new(64 << 10).unwrap()).unwrap()
    }

    fn whole(segment: &Segment) -> Vec<u8> {
        let file = File::from(segment.copied_fd());
        let mut bytes = vec![1; 64 << 10];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    #[test]
    fn what_was_received_before_is_gone() {
        let (lent, segment) = filled(new(), &[7; 50_000]);
        assert!(segment.is_for_one_reader() && segment.to_vec().unwrap() == [7; 50_000]);
        let lent = lent.take_back().unwrap_err();
        drop(segment);
        let mut again = lent.take_back().unwrap();
        // A payload that breaks off after it was announced as longer.
        again.unfilled(60_000)[..10].fill(8);
        again.advance(10);
        again.clear();
        let (_lent, segment) = filled(again, &[9; 20_000]);
        let bytes = whole(&segment);
        assert!(bytes[..20_000] == [9; 20_000]);
        assert!(bytes[20_000..].iter().all(|byte| *byte == 0), "old bytes");
    }

    #[test]
    fn no_more_is_filled_than_there_was_room_for() {
        let mut segment = new();
        assert_eq!(segment.unfilled(usize::MAX).len(), 64 << 10);
        segment.advance(usize::MAX);
        assert_eq!((segment.filled(), segment.unfilled(1).len()), (64 << 10, 0));
    }

    #[test]
    fn one_that_is_passed_on_is_not_written_again() {
        let (lent, segment) = filled(new(), &[7; 50_000]);
        let other = segment.pass_on().unwrap();
        assert!(!other.is_for_one_reader() && other.token().is_some());
        drop(segment);
        assert_eq!(lent.returned(), Returned::No);
        drop(other);
        assert_eq!(lent.returned(), Returned::PassedOn);
        assert!(lent.take_back().is_err());
    }

    #[test]
    fn without_room_for_a_word_a_copy_is_passed_on() {
        let (lent, segment) = filled(new(), &[7; 50_000]);
        let told = (0..).map_while(|_| segment.pass_on().unwrap().token().cloned()).count();
        assert!(told > 1000);
        let copy = segment.pass_on().unwrap();
        assert!(copy.token().is_none() && copy.to_vec().unwrap() == [7; 50_000]);
        drop(segment);
        assert_eq!(lent.returned(), Returned::PassedOn);
    }

    #[test]
    fn the_segment_of_an_owner_that_has_ended_goes_on() {
        let (lent, segment) = filled(new(), &[7; 50_000]);
        drop(lent);
        let other = segment.pass_on().unwrap();
        assert!(other.token().is_some() && other.to_vec().unwrap() == [7; 50_000]);
    }
}
