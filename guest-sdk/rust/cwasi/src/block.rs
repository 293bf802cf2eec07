//! Blocks of the guest's own memory, for bytes that the host copies in or maps as whole pages.
#![expect(unsafe_code, reason = "owns memory that the host fills")]

use std::alloc::{Layout, alloc, dealloc};
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use cwasi_abi::{Errno, HUGE_PAGE, INLINE_MAX, REGION_PAGE};

use crate::imports;

/// A block of the global allocator whose first `len` bytes are initialized. Pages that the host backs with shared
/// memory become ordinary memory again before they are freed.
pub(crate) struct Block {
    start: NonNull<u8>,
    layout: Layout,
    len: usize,
}

// SAFETY:
// - owns plain bytes, as a `Vec<u8>` does.
unsafe impl Send for Block {}
// SAFETY:
// - as above.
unsafe impl Sync for Block {}

/// The layout for `len` bytes: pages of their own if that is worth it, aligned for huge pages if they can fill one;
/// otherwise the layout of a `Vec<u8>`.
pub(crate) fn layout(len: usize) -> Option<Layout> {
    let [page, huge_page] = [REGION_PAGE, HUGE_PAGE].map(|len| len as usize);
    let align = match len {
        ..=INLINE_MAX => return Layout::from_size_align(len.max(1), 1).ok(),
        len if len < huge_page => page,
        _ => huge_page,
    };
    Layout::from_size_align(len.checked_next_multiple_of(page)?, align).ok()
}

impl Block {
    /// A new block that `fill` has filled; `None` if no memory is left.
    ///
    /// # Safety
    /// `fill` initializes the first `len` bytes of the block at its argument, or fails; `layout` has room for
    /// them, and is not empty.
    pub(crate) unsafe fn filled<E>(
        len: usize,
        layout: Layout,
        fill: impl FnOnce(*mut u8) -> Result<(), E>,
    ) -> Option<Result<Self, E>> {
        // SAFETY:
        // - not empty, says the caller.
        let start = NonNull::new(unsafe { alloc(layout) })?;
        let mut block = Self { start, layout, len: 0 };
        Some(fill(start.as_ptr()).map(|()| {
            block.len = len;
            block
        }))
    }

    /// Takes ownership of a block.
    ///
    /// # Safety
    /// The global allocator made it with this layout, its first `len` bytes are initialized, and no other code
    /// owns it.
    pub(crate) const unsafe fn from_raw(start: NonNull<u8>, layout: Layout, len: usize) -> Self {
        Self { start, layout, len }
    }

    /// Marks mapped bytes as unchanged, so that the host can send them on without a copy.
    pub(crate) fn goes_on(&mut self) {
        if self.len > INLINE_MAX && self.layout.align() >= REGION_PAGE as usize {
            // Refused: the host copied them here, and copies them again when they are sent.
            let _copied = imports::region_seal(self, self.len);
        }
    }

    /// A vector of these bytes. Copies only if a vector cannot own the block.
    pub(crate) fn into_vec(self) -> Vec<u8> {
        if self.layout.align() != 1 {
            return self.to_vec();
        }
        let block = ManuallyDrop::new(self);
        // SAFETY:
        // - a block of the global allocator of the layout that a vector of this capacity has.
        // - the first `len` bytes are initialized.
        unsafe { Vec::from_raw_parts(block.start.as_ptr(), block.len, block.layout.size()) }
    }
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY:
        // - ours, and the first `len` bytes are initialized.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Block {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY:
        // - as above, and borrowed uniquely.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let pages = self.layout.align() >= REGION_PAGE as usize;
        // SAFETY:
        // - ours, and about to be freed.
        let release =
            || unsafe { imports::region_release(self.start.as_ptr(), self.layout.size()) };
        if pages && release() == Errno::Internal {
            // The allocator must not reuse pages that the host still treats as a region.
            return;
        }
        // SAFETY:
        // - the global allocator made it with this layout, and no code uses it any more.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

#[cfg(test)]
impl Block {
    /// A copy of `bytes`.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let layout = layout(bytes.len()).unwrap();
        let fill = |start: *mut u8| {
            // SAFETY:
            // - a fresh block with room for them.
            unsafe { start.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            Ok::<(), ()>(())
        };
        // SAFETY:
        // - `fill` copies as many bytes as `len` says.
        unsafe { Self::filled(bytes.len(), layout, fill) }.unwrap().unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_blocks_have_pages_and_small_ones_become_vectors() {
        let [page, huge_page] = [REGION_PAGE, HUGE_PAGE].map(|len| len as usize);
        for (len, align) in [
            (0, 1),
            (1, 1),
            (INLINE_MAX, 1),
            (INLINE_MAX + 1, page),
            (huge_page - 1, page),
            (huge_page, huge_page),
            (3 * huge_page + 1, huge_page),
        ] {
            let block = Block::of(&vec![7; len]);
            assert_eq!(block.layout.align(), align);
            assert!(block.layout.size() >= len && block.layout.size() > 0);
            assert_eq!(block.into_vec(), vec![7; len]);
        }
    }

    #[test]
    fn a_block_that_cannot_be_filled_is_freed() {
        let fill = |ok: bool| {
            // SAFETY:
            // - writes the three bytes, or fails.
            unsafe {
                Block::filled(3, layout(3).unwrap(), |at| {
                    at.write_bytes(5, 3);
                    if ok { Ok(()) } else { Err("no") }
                })
            }
        };
        assert_eq!(fill(true).unwrap().ok().unwrap().into_vec(), [5, 5, 5]);
        assert!(fill(false).unwrap().is_err());
    }
}
