//! Counters in memory that a process shares with the children that it forks.
#![expect(unsafe_code, reason = "atomics in memory that other processes map")]

use std::io;
use std::num::NonZeroUsize;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// `N` counters, 0 at first. Every process that shares them may change them.
#[derive(Debug)]
pub struct SharedCounters<const N: usize>(NonNull<[AtomicU64; N]>);

impl<const N: usize> SharedCounters<N> {
    const LEN: NonZeroUsize = NonZeroUsize::new(size_of::<[AtomicU64; N]>()).expect("N is not 0");

    /// New ones.
    ///
    /// # Errors
    /// When memory or mappings run out.
    pub fn new() -> io::Result<Self> {
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY:
        // - a new mapping at an address of the kernel's choice.
        let start = unsafe { mmap_anonymous(None, Self::LEN, access, MapFlags::MAP_SHARED) }?;
        Ok(Self(start.cast()))
    }
}

impl<const N: usize> Deref for SharedCounters<N> {
    type Target = [AtomicU64; N];

    fn deref(&self) -> &[AtomicU64; N] {
        // SAFETY:
        // - the mapping lives as long as `self`, is that long, begins at a page, and zero is a valid number.
        // - all access is atomic, here and in the processes that share it.
        unsafe { self.0.as_ref() }
    }
}

impl<const N: usize> Drop for SharedCounters<N> {
    fn drop(&mut self) {
        // SAFETY:
        // - the mapping is ours, and references to it cannot outlive `self`.
        let _cannot_fail = unsafe { munmap(self.0.cast(), Self::LEN.get()) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::SeqCst;

    use super::*;

    #[test]
    fn counts_from_zero() {
        let counters = SharedCounters::<1>::new().unwrap();
        let [counter] = &*counters;
        assert_eq!((counter.fetch_add(2, SeqCst), counter.load(SeqCst)), (0, 2));
    }

    #[test]
    fn counters_are_independent() {
        let counters = SharedCounters::<700>::new().unwrap();
        counters[699].store(7, SeqCst);
        let sum: u64 = counters.iter().map(|counter| counter.load(SeqCst)).sum();
        assert_eq!(sum, 7);
    }
}
