//! Pages that a process shares with the children that it forks: plain atomics, no pointers, no locks.
//!
//! Runs in sandbox init, which makes them, and in its workers, which get only those pages that they are to write.
//! Whoever reads a page that another process writes checks what it finds there.
#![expect(unsafe_code, reason = "atomics in memory that other processes map")]

use std::ffi::c_void;
use std::io;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};

use super::mapping::page_len;

/// Words that each page has; what lies behind them is not used.
pub const WORDS: usize = 8;

/// The words of one page, all zero at first.
pub type Words = [AtomicU64; WORDS];

/// Shared pages; the first is every child's, the others are a child's when it is to have them.
#[derive(Debug)]
pub struct SharedPages {
    start: NonNull<c_void>,
    page_len: NonZeroUsize,
    pages: usize,
}

impl SharedPages {
    /// A common page and `own` pages of which no child gets one by itself.
    ///
    /// # Errors
    /// When memory or mappings run out.
    pub fn new(own: usize) -> io::Result<Self> {
        let page_len = page_len().and_then(NonZeroUsize::new).ok_or(io::ErrorKind::Unsupported)?;
        let pages = own.saturating_add(1);
        let len = page_len.get().checked_mul(pages).and_then(NonZeroUsize::new);
        let len = len.ok_or(io::ErrorKind::OutOfMemory)?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY:
        // - a new mapping at an address of the kernel's choice.
        let start = unsafe { mmap_anonymous(None, len, access, MapFlags::MAP_SHARED) }?;
        let shared = Self { start, page_len, pages };
        for index in 0..own {
            shared.advise(index, MmapAdvise::MADV_DONTFORK)?;
        }
        Ok(shared)
    }

    /// The page that every child gets.
    #[must_use]
    pub fn common(&self) -> &Words {
        self.words(0).expect("there is always one page")
    }

    /// One of the other pages.
    #[must_use]
    pub fn own(&self, index: usize) -> Option<&Words> {
        self.words(index.checked_add(1)?)
    }

    fn words(&self, page: usize) -> Option<&Words> {
        let at = page.checked_mul(self.page_len.get()).filter(|_| page < self.pages)?;
        // SAFETY:
        // - the page is inside the mapping, which lives as long as `self`; a child that lacks it does not come here
        //   (the promise of `pass_on`'s caller).
        // - pages are aligned, longer than the words, and zero is a valid atomic; all access is atomic, here and in
        //   the processes that share it.
        Some(unsafe { self.start.byte_add(at).cast::<Words>().as_ref() })
    }

    /// Runs `fork` so that its child has the common page and this one, and no other.
    ///
    /// # Errors
    /// When the kernel splits no more mappings.
    ///
    /// # Safety
    /// In the child, no other page is asked for, and no reference to one is used.
    pub unsafe fn pass_on<T>(&self, index: usize, fork: impl FnOnce() -> T) -> io::Result<T> {
        self.advise(index, MmapAdvise::MADV_DOFORK)?;
        let forked = fork();
        self.advise(index, MmapAdvise::MADV_DONTFORK)?;
        Ok(forked)
    }

    fn advise(&self, index: usize, advice: MmapAdvise) -> io::Result<()> {
        let page = index.checked_add(1).filter(|page| *page < self.pages);
        let page = page.ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY:
        // - the page is inside the mapping, which stays as it is: the advice is for children to come.
        unsafe {
            let at = self.start.byte_add(page * self.page_len.get());
            madvise(at, self.page_len.get(), advice)?;
        }
        Ok(())
    }
}

impl Drop for SharedPages {
    fn drop(&mut self) {
        // SAFETY:
        // - the mapping is ours, and references to it cannot outlive `self`.
        let _cannot_fail = unsafe { munmap(self.start, self.pages * self.page_len.get()) };
    }
}
