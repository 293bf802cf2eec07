//! Pages that a process shares with the children that it forks: plain atomics, no pointers, no locks.
//!
//! Runs in sandbox init (the owner) and in its workers (the children). A child has only the pages that it may read or
//! write. Three kinds:
//! - The owner's page: the owner writes it, every child reads it. It is a memfd sealed against future writing. The
//!   owner's mapping is older than the seal and is not inherited. The children's mapping is newer, so no child can make
//!   it writable, whatever code it runs.
//! - The common page: every process writes it.
//! - Own pages: one for each child, written by that child and the owner.
//!
//! Invariant: a reader validates what another process has written.
#![expect(unsafe_code, reason = "atomics in memory that other processes map")]

use std::ffi::c_void;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicU64, fence};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use nix::unistd::ftruncate;

use super::mapping::page_len;

/// Words that each page has; what lies behind them is not used.
pub const WORDS: usize = 8;

/// A word that several processes share. Every access is sequentially consistent.
pub trait Word {
    /// Its value, of a page that this process can write.
    fn load(&self) -> u64;
    /// Its value, of a page that this process can only read.
    fn load_read_only(&self) -> u64;
    fn store(&self, value: u64);
    /// Sets it; its value before.
    fn swap(&self, value: u64) -> u64;
    /// Sets it when it is `current`; its value before.
    ///
    /// # Errors
    /// Its value, when that is another.
    fn compare_exchange(&self, current: u64, new: u64) -> Result<u64, u64>;
    /// Sets bits; its value before.
    fn fetch_or(&self, bits: u64) -> u64;
    /// Keeps bits; its value before.
    fn fetch_and(&self, bits: u64) -> u64;
}

impl Word for AtomicU64 {
    fn load(&self) -> u64 {
        self.load(SeqCst)
    }

    fn load_read_only(&self) -> u64 {
        // A relaxed load between fences: no other atomic access is defined on memory that cannot be written.
        fence(SeqCst);
        let value = self.load(Relaxed);
        fence(Acquire);
        value
    }

    fn store(&self, value: u64) {
        self.store(value, SeqCst);
    }

    fn swap(&self, value: u64) -> u64 {
        self.swap(value, SeqCst)
    }

    fn compare_exchange(&self, current: u64, new: u64) -> Result<u64, u64> {
        self.compare_exchange(current, new, SeqCst, SeqCst)
    }

    fn fetch_or(&self, bits: u64) -> u64 {
        self.fetch_or(bits, SeqCst)
    }

    fn fetch_and(&self, bits: u64) -> u64 {
        self.fetch_and(bits, SeqCst)
    }
}

/// The words of one page, all zero at first. Tests have words of their own.
pub type Words<W = AtomicU64> = [W; WORDS];

/// Name of the owner's page in `/proc/<pid>/maps`.
const OWNERS_NAME: &str = "cwasi-owner";
/// The owner's page stays as long as it is, and no further mapping can write it.
const SEALS: SealFlag = SealFlag::F_SEAL_FUTURE_WRITE
    .union(SealFlag::F_SEAL_SHRINK)
    .union(SealFlag::F_SEAL_GROW)
    .union(SealFlag::F_SEAL_SEAL);

/// The words of a page that this process may only read.
#[derive(Debug)]
pub struct ReadOnly<'a, W = AtomicU64>(&'a Words<W>);

impl<W> Clone for ReadOnly<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W> Copy for ReadOnly<'_, W> {}

impl<'a, W: Word> ReadOnly<'a, W> {
    /// These words, to be read only.
    pub const fn new(words: &'a Words<W>) -> Self {
        Self(words)
    }

    /// A word, or 0 where there is none; ordered after everything that this process wrote before.
    #[must_use]
    pub fn load(&self, word: usize) -> u64 {
        self.0.get(word).map_or(0, Word::load_read_only)
    }
}

/// One mapping that is this process's own until it is dropped.
#[derive(Debug)]
struct Mapping {
    start: NonNull<c_void>,
    len: NonZeroUsize,
}

impl Mapping {
    fn advise(&self, at: usize, len: usize, advice: MmapAdvise) -> io::Result<()> {
        if at.checked_add(len).is_none_or(|end| end > self.len.get()) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY:
        // - the bytes are inside the mapping, which stays as it is: the advice is for children to come.
        unsafe { madvise(self.start.byte_add(at), len, advice) }?;
        Ok(())
    }

    /// The words at the beginning of a page.
    fn words(&self, at: usize) -> Option<&Words> {
        at.checked_add(size_of::<Words>()).filter(|end| *end <= self.len.get())?;
        // SAFETY:
        // - the words are inside the mapping, which lives as long as `self`; a child without the page does not come
        //   here (the promise of `pass_on`'s caller).
        // - `at` is a page's begin, so it is aligned, and zero is a valid atomic; all access is atomic, here and in the
        //   processes that share it.
        Some(unsafe { self.start.byte_add(at).cast::<Words>().as_ref() })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY:
        // - the mapping is ours, and references to it cannot outlive `self`.
        let _cannot_fail = unsafe { munmap(self.start, self.len.get()) };
    }
}

/// Shared pages, as their owner has them.
#[derive(Debug)]
pub struct SharedPages {
    /// The owner's page, writable; no child has this mapping.
    owners: Mapping,
    /// The same page as children have it.
    view: Mapping,
    /// The common page, and own pages behind it.
    others: Mapping,
    page_len: NonZeroUsize,
}

impl SharedPages {
    /// An owner's page, a common page, and `own` pages of which no child gets one by itself.
    ///
    /// # Errors
    /// When memory, descriptors or mappings run out.
    pub fn new(own: usize) -> io::Result<Self> {
        let page_len = page_len().and_then(NonZeroUsize::new).ok_or(io::ErrorKind::Unsupported)?;
        let len = own.checked_add(1).and_then(|pages| page_len.get().checked_mul(pages));
        let len = len.and_then(NonZeroUsize::new).ok_or(io::ErrorKind::OutOfMemory)?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY:
        // - a new mapping at an address of the kernel's choice.
        let start = unsafe { mmap_anonymous(None, len, access, MapFlags::MAP_SHARED) }?;
        let others = Mapping { start, len };
        others.advise(page_len.get(), len.get() - page_len.get(), MmapAdvise::MADV_DONTFORK)?;
        let (owners, view) = owners_page(page_len)?;
        Ok(Self { owners, view, others, page_len })
    }

    /// The owner's page. Only the owner has it: a child faults.
    #[must_use]
    pub fn owners(&self) -> &Words {
        self.owners.words(0).expect("it is one page")
    }

    /// The owner's page, as every child reads it.
    #[must_use]
    pub fn view(&self) -> ReadOnly<'_> {
        ReadOnly(self.view.words(0).expect("it is one page"))
    }

    /// The page that every process writes.
    #[must_use]
    pub fn common(&self) -> &Words {
        self.others.words(0).expect("there is always one page")
    }

    /// One of the own pages.
    #[must_use]
    pub fn own(&self, index: usize) -> Option<&Words> {
        self.others.words(self.own_offset(index)?)
    }

    /// Where an own page begins.
    fn own_offset(&self, index: usize) -> Option<usize> {
        self.page_len.get().checked_mul(index.checked_add(1)?)
    }

    /// Runs `fork` so that its child has the common page, this own page and the view of the owner's page, and no other.
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
        let at = self.own_offset(index).ok_or(io::ErrorKind::InvalidInput)?;
        self.others.advise(at, self.page_len.get(), advice)
    }
}

/// The owner's page twice: writable, for the owner alone; and read-only, for its children.
fn owners_page(page_len: NonZeroUsize) -> io::Result<(Mapping, Mapping)> {
    let memory = memfd_create(OWNERS_NAME, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
    ftruncate(&memory, i64::try_from(page_len.get()).map_err(io::Error::other)?)?;
    let map = |access| {
        // SAFETY:
        // - a new mapping at an address of the kernel's choice, of a memfd that is as long and stays so.
        let start =
            unsafe { mmap(None, page_len, access, MapFlags::MAP_SHARED, memory.as_fd(), 0)? };
        Ok::<_, io::Error>(Mapping { start, len: page_len })
    };
    let owners = map(ProtFlags::PROT_READ | ProtFlags::PROT_WRITE)?;
    owners.advise(0, page_len.get(), MmapAdvise::MADV_DONTFORK)?;
    fcntl(&memory, FcntlArg::F_ADD_SEALS(SEALS))?;
    // After the seal: what is mapped from now on cannot be made writable.
    let view = map(ProtFlags::PROT_READ)?;
    Ok((owners, view))
}
