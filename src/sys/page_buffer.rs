//! Buffers for messages that are usually much shorter than the longest one.
//!
//! A zeroed vector of this length costs all its pages as soon as the allocator reuses memory for it, in every process
//! that has one. Here a page exists when something was written to it.
#![expect(unsafe_code, reason = "a mapping of its own")]

use std::alloc::{Layout, handle_alloc_error};
use std::num::NonZeroUsize;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Bytes, zero at first, in a mapping of their own.
#[derive(Debug)]
pub struct PageBuffer {
    start: NonNull<u8>,
    len: NonZeroUsize,
}

impl PageBuffer {
    /// A buffer of `len` zeros; of one if `len` is 0. Ends the process when there is no room for the mapping, as a
    /// vector does.
    #[must_use]
    pub fn new(len: usize) -> Self {
        let len = NonZeroUsize::new(len).unwrap_or(NonZeroUsize::MIN);
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY:
        // - without an address the kernel chooses an unused one, so no memory of others changes.
        match unsafe { mmap_anonymous(None, len, access, MapFlags::MAP_PRIVATE) } {
            Ok(start) => Self { start: start.cast(), len },
            Err(_no_room) => handle_alloc_error(
                Layout::array::<u8>(len.get()).unwrap_or_else(|_| Layout::new::<u8>()),
            ),
        }
    }
}

// SAFETY:
// - the mapping belongs to this value alone, as a vector's memory does.
unsafe impl Send for PageBuffer {}

// SAFETY:
// - a shared reference only reads.
unsafe impl Sync for PageBuffer {}

impl Deref for PageBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY:
        // - `len` bytes are mapped at `start`, readable and initialized (the kernel's zeros), while `self` lives.
        // - only `deref_mut` gives a way to write, and it borrows `self` exclusively.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len.get()) }
    }
}

impl DerefMut for PageBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY:
        // - as above; the exclusive borrow of `self` is the only way to the bytes.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len.get()) }
    }
}

impl Drop for PageBuffer {
    fn drop(&mut self) {
        // SAFETY:
        // - the mapping is ours, and references to it cannot outlive `self`.
        let _cannot_fail = unsafe { munmap(self.start.cast(), self.len.get()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::page_len;

    /// How many of the buffer's pages exist.
    fn pages(buffer: &PageBuffer) -> usize {
        let page = page_len().unwrap();
        let mut present = vec![0_u8; buffer.len.get().div_ceil(page)];
        // SAFETY:
        // - `present` has a byte for each page of the mapping.
        let asked = unsafe {
            libc::mincore(buffer.start.as_ptr().cast(), buffer.len.get(), present.as_mut_ptr())
        };
        assert_eq!(asked, 0);
        present.iter().filter(|one| **one & 1 == 1).count()
    }

    #[test]
    fn only_written_pages_take_memory() {
        let page = page_len().unwrap();
        let mut buffer = PageBuffer::new(16 * page + 1);
        assert_eq!((buffer.len(), pages(&buffer)), (16 * page + 1, 0));
        buffer[3 * page] = 7;
        assert_eq!((buffer[3 * page], buffer[3 * page + 1], pages(&buffer)), (7, 0, 1));
    }

    #[test]
    fn empty_buffers_exist() {
        assert_eq!(&*PageBuffer::new(0), &[0]);
    }
}
