//! A number that a process shares with the children that it forks.
#![expect(unsafe_code, reason = "an atomic in memory that other processes map")]

use std::io;
use std::num::NonZeroUsize;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};

const LEN: NonZeroUsize = NonZeroUsize::new(size_of::<AtomicU64>()).expect("it is not empty");

/// One number, 0 at first. Every process that has it may change it.
#[derive(Debug)]
pub struct SharedCounter(NonNull<AtomicU64>);

impl SharedCounter {
    /// A new one.
    ///
    /// # Errors
    /// When memory or mappings run out.
    pub fn new() -> io::Result<Self> {
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY:
        // - a new mapping at an address of the kernel's choice.
        let start = unsafe { mmap_anonymous(None, LEN, access, MapFlags::MAP_SHARED) }?;
        Ok(Self(start.cast()))
    }
}

impl Deref for SharedCounter {
    type Target = AtomicU64;

    fn deref(&self) -> &AtomicU64 {
        // SAFETY:
        // - the mapping lives as long as `self`, begins at a page, and zero is a valid number.
        // - all access is atomic, here and in the processes that share it.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for SharedCounter {
    fn drop(&mut self) {
        // SAFETY:
        // - the mapping is ours, and references to it cannot outlive `self`.
        let _cannot_fail = unsafe { munmap(self.0.cast(), LEN.get()) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::SeqCst;

    use super::*;

    #[test]
    fn it_begins_with_zero_and_counts() {
        let counter = SharedCounter::new().unwrap();
        assert_eq!((counter.fetch_add(2, SeqCst), counter.load(SeqCst)), (0, 2));
    }
}
