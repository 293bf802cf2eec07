//! Regions: payloads and responses in shared memory, which are sent without a copy.
#![expect(unsafe_code, reason = "memory that the host replaces")]

use std::fmt;
use std::io::{self, Write};
use std::ops::{Deref, DerefMut};

use cwasi_abi::INLINE_MAX;

use crate::ErrorKind;
use crate::block::{self, Block};
use crate::imports;

/// Bytes that another function can receive without a copy: make them in here, then [`seal`](Self::seal) and
/// send them, or return the region from a handler.
///
/// The room is fixed: a region that grew would have to be copied. Bytes are appended by [`Write`] until it is
/// full, or set through the slice.
///
/// Where the host has no shared memory to give (an embedded library, a small region, a host with other pages)
/// a region is ordinary memory, and is copied when it is sent; nothing else differs.
///
/// # Example
/// ```
/// # fn example(frames: &[Vec<u8>]) -> Result<(), Box<dyn std::error::Error>> {
/// use std::io::Write as _;
///
/// let mut batch = cwasi::Region::with_capacity(frames.iter().map(Vec::len).sum());
/// for frame in frames {
///     batch.write_all(frame)?;
/// }
/// let batch = batch.seal();
/// let labels = cwasi::call("label", &batch)?; // the same bytes, in the same memory,
/// let boxes = cwasi::call_in_place("detect", &batch)?; // for each of them
/// # Ok(()) }
/// ```
pub struct Region {
    /// Zeroed, or written.
    block: Block,
    len: usize,
    shared: bool,
}

impl Region {
    /// An empty region with room for `capacity` bytes.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        let layout = block::layout(capacity).expect("a region fits into linear memory");
        let mut shared = false;
        let fill = |start: *mut u8| {
            // SAFETY:
            // - a fresh block of that layout, which no code refers to.
            unsafe {
                shared = capacity > INLINE_MAX
                    && imports::region_share(start, layout.size()) == ErrorKind::Ok;
                if !shared {
                    start.write_bytes(0, layout.size());
                }
            }
            Ok::<(), ErrorKind>(())
        };
        // SAFETY:
        // - `fill` leaves zeroes in all of the block: the host does when it shares it.
        let block = unsafe { Block::filled(capacity, layout, fill) };
        match block.and_then(Result::ok) {
            Some(block) => Self { block, len: 0, shared },
            None => std::alloc::handle_alloc_error(layout),
        }
    }

    /// A region of `len` zeroes.
    #[must_use]
    pub fn with_len(len: usize) -> Self {
        let mut region = Self::with_capacity(len);
        region.len = len;
        region
    }

    /// How many bytes it can hold.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.block.len()
    }

    /// Gives up what lies behind the first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Ends the writing, so that the bytes can be sent as often as wanted.
    #[must_use]
    pub fn seal(mut self) -> SealedRegion {
        if self.shared && self.len > 0 {
            // Refused: then the bytes are copied when they are sent.
            let _copied = imports::region_seal(&mut self.block, self.len);
        }
        SealedRegion(self)
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.block[..self.len]
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.block[..self.len]
    }
}

impl Write for Region {
    /// Appends as much of `bytes` as there is room for.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = &mut self.block[self.len..];
        let len = bytes.len().min(room.len());
        room[..len].copy_from_slice(&bytes[..len]);
        self.len += len;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let capacity = self.capacity();
        f.debug_struct("Region").field("len", &self.len).field("capacity", &capacity).finish()
    }
}

/// The bytes of a [`Region`], final: a slice that travels without a copy when it is sent as a whole.
#[derive(Debug)]
pub struct SealedRegion(Region);

impl Deref for SealedRegion {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for SealedRegion {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_appended_until_it_is_full() {
        for capacity in [0, 3, 100_000] {
            let mut region = Region::with_capacity(capacity);
            assert_eq!((region.len(), region.capacity()), (0, capacity));
            let bytes = vec![7; capacity];
            region.write_all(&bytes).unwrap();
            assert_eq!(region.write(b"x").unwrap(), 0);
            assert_eq!(*region, *bytes);
            region.truncate(2);
            assert_eq!(*region.seal(), bytes[..capacity.min(2)]);
        }
    }

    #[test]
    fn a_region_of_a_length_is_a_slice_of_zeroes() {
        let mut region = Region::with_len(70_000);
        assert!(region.len() == 70_000 && region.iter().all(|byte| *byte == 0));
        region[69_999] = 1;
        assert_eq!(region.seal()[69_999], 1);
    }
}
