//! Pages of this process that memfds back instead of ordinary memory, at addresses that the engine has reserved.
//!
//! Runs in workers. Nothing is copied: the mapping behind the pages changes, their addresses do not.
#![expect(unsafe_code, reason = "mmap over memory that is in use")]

use std::ffi::c_void;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::sys::mman::{MRemapFlags, MapFlags, ProtFlags, mmap, mmap_anonymous, mremap};
use nix::unistd::{SysconfVar, sysconf};

use super::segment::{ReusableSegment, Segment, SegmentError, UnsealedSegment};

/// Why pages could not be replaced; they are as they were.
#[derive(Debug, thiserror::Error)]
pub enum MappingError {
    /// A system call failed.
    #[error("{operation} failed for {len} bytes: {source}")]
    Os {
        operation: &'static str,
        /// Length of the pages in bytes.
        len: usize,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Segment(#[from] SegmentError),
}

/// Whole pages of this process, readable and writable.
#[derive(Debug)]
pub struct Window {
    address: NonNull<c_void>,
    len: NonZeroUsize,
}

/// Length of this system's pages in bytes.
#[must_use]
pub fn page_len() -> Option<usize> {
    sysconf(SysconfVar::PAGE_SIZE).ok().flatten().and_then(|len| usize::try_from(len).ok())
}

impl Window {
    /// The `len` bytes at `address`; `None` unless they are whole pages.
    ///
    /// # Safety
    /// - They belong to a private mapping whose owner unmaps the whole address range in the end, whatever is
    ///   mapped there by then, and makes no other assumption about what backs it.
    /// - As long as the window lives, no Rust reference to them exists, and no other code reads or writes them.
    #[must_use]
    pub unsafe fn new(address: *mut u8, len: usize) -> Option<Self> {
        let page_len = page_len()?;
        if !address.addr().is_multiple_of(page_len) || !len.is_multiple_of(page_len) {
            return None;
        }
        Some(Self { address: NonNull::new(address.cast())?, len: NonZeroUsize::new(len)? })
    }

    #[must_use]
    pub const fn len(&self) -> NonZeroUsize {
        self.len
    }

    /// Backs the pages with a fresh memfd; all zero.
    ///
    /// # Errors
    /// When memory, mappings or descriptors run out.
    pub fn share(&mut self) -> Result<UnsealedSegment, MappingError> {
        let draft = UnsealedSegment::new(self.len.get() as u64)?;
        self.map(draft.as_fd(), MapFlags::MAP_SHARED)?;
        Ok(draft)
    }

    /// Ends what [`Self::share`] began: the first `len` bytes become a segment, which this process keeps as
    /// [`Self::keep`] says.
    ///
    /// # Errors
    /// When memory or mappings run out; the first `len` bytes are kept.
    pub fn seal(
        &mut self,
        mut draft: UnsealedSegment,
        len: usize,
    ) -> Result<Segment, MappingError> {
        // A writable shared mapping would forbid the seal against writing.
        self.keep(draft.as_fd(), len)?;
        draft.truncate(len as u64)?;
        Ok(draft.seal()?)
    }

    /// Makes the first `len` bytes this process' own view of the memfd, copy-on-write, and the pages behind them zero.
    ///
    /// # Errors
    /// When mappings run out.
    pub fn keep(&mut self, file: BorrowedFd<'_>, len: usize) -> Result<(), MappingError> {
        let (mut head, tail) = self.split(len);
        head.map(file, MapFlags::MAP_PRIVATE)?;
        tail.map_or(Ok(()), |mut tail| tail.clear())
    }

    /// Backs the pages with a segment of ours, from its first byte on: what is written to the one is in the other.
    ///
    /// # Errors
    /// When mappings run out, or the segment is shorter. There may be nothing at these pages then, which
    /// [`Self::share`] changes.
    pub fn alias(&mut self, of: &ReusableSegment) -> Result<(), MappingError> {
        if of.len() < self.len.get() {
            return Err(self.os("mremap")(Errno::EINVAL));
        }
        let flags = MRemapFlags::MREMAP_MAYMOVE | MRemapFlags::MREMAP_FIXED;
        // SAFETY:
        // - length 0 leaves the old mapping, which is shared, as it is and maps its file once more.
        // - the constructor's conditions: these pages are ours to replace, and no reference to them exists.
        let mapped =
            unsafe { mremap(of.start().cast(), 0, self.len.get(), flags, Some(self.address)) };
        mapped.map(drop).map_err(self.os("mremap"))
    }

    /// Maps a sealed memfd; this process's writes to the pages stay private.
    ///
    /// `sealed` came from [`Segment`]: an ordinary memfd that does not end before the last page and cannot shrink, or
    /// reading would be a fault.
    ///
    /// # Errors
    /// When mappings run out.
    pub fn map_sealed(&mut self, sealed: BorrowedFd<'_>) -> Result<(), MappingError> {
        self.map(sealed, MapFlags::MAP_PRIVATE)
    }

    /// Makes the pages ordinary memory, all zero.
    ///
    /// # Errors
    /// When mappings run out.
    pub fn clear(&mut self) -> Result<(), MappingError> {
        // SAFETY:
        // - the constructor's conditions: these pages are ours to replace, and no reference to them exists.
        let mapped = unsafe {
            mmap_anonymous(Some(self.at()), self.len, PROTECTION, FIXED | MapFlags::MAP_PRIVATE)
        };
        mapped.map(drop).map_err(self.os("mmap"))
    }

    fn map(&mut self, file: BorrowedFd<'_>, kind: MapFlags) -> Result<(), MappingError> {
        // SAFETY:
        // - the constructor's conditions: these pages are ours to replace, and no reference to them exists.
        let mapped = unsafe { mmap(Some(self.at()), self.len, PROTECTION, FIXED | kind, file, 0) };
        mapped.map(drop).map_err(self.os("mmap"))
    }

    fn at(&self) -> NonZeroUsize {
        self.address.addr()
    }

    /// The pages that hold the first `len` bytes, at least one, and those behind them.
    fn split(&self, len: usize) -> (Self, Option<Self>) {
        let page_len = page_len().unwrap_or(self.len.get());
        let head = len.max(1).next_multiple_of(page_len).min(self.len.get());
        let head_len = NonZeroUsize::new(head).unwrap_or(self.len);
        let tail = NonZeroUsize::new(self.len.get() - head_len.get()).map(|len| {
            // SAFETY:
            // - `head` is less than the window's length, so the result lies inside it.
            let address = unsafe { self.address.byte_add(head_len.get()) };
            Self { address, len }
        });
        (Self { address: self.address, len: head_len }, tail)
    }

    fn os<E: Into<io::Error>>(&self, operation: &'static str) -> impl Fn(E) -> MappingError {
        let len = self.len.get();
        move |source| MappingError::Os { operation, len, source: source.into() }
    }
}

const PROTECTION: ProtFlags = ProtFlags::PROT_READ.union(ProtFlags::PROT_WRITE);
/// Replaces the existing mapping; reserves no swap, as the engine does for linear memory.
const FIXED: MapFlags = MapFlags::MAP_FIXED.union(MapFlags::MAP_NORESERVE);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAGES: usize = 40;

    /// Memory of our own to replace pages of, unmapped as a whole.
    struct Reserved(NonNull<c_void>, usize);

    impl Reserved {
        fn new(pages: usize) -> Self {
            let len = pages * page_len().unwrap();
            let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
            let size = NonZeroUsize::new(len).unwrap();
            // SAFETY:
            // - a fresh mapping at an address of the kernel's choice.
            Self(unsafe { mmap_anonymous(None, size, PROTECTION, flags) }.unwrap(), len)
        }

        fn bytes(&mut self) -> &mut [u8] {
            // SAFETY:
            // - mapped, readable and writable; windows do not outlive the statement that makes them.
            unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr().cast(), self.1) }
        }

        fn window(&mut self, start: usize, pages: usize) -> Window {
            let page = page_len().unwrap();
            // SAFETY:
            // - inside our mapping, which is unmapped as a whole; `bytes` borrows end before.
            unsafe { Window::new(self.0.as_ptr().cast::<u8>().add(start * page), pages * page) }
                .unwrap()
        }
    }

    impl Drop for Reserved {
        fn drop(&mut self) {
            // SAFETY:
            // - our mapping, not used any more.
            unsafe { nix::sys::mman::munmap(self.0, self.1) }.unwrap();
        }
    }

    fn pattern(len: usize, seed: u8) -> Vec<u8> {
        (0..len).map(|at| u8::try_from(at % 251).unwrap() ^ seed).collect()
    }

    /// Both kinds of memory behind pages that are written.
    enum Backing {
        Fresh(UnsealedSegment),
        Reused(ReusableSegment),
    }

    impl Backing {
        fn new(window: &mut Window, reused: bool) -> Self {
            if !reused {
                return Self::Fresh(window.share().unwrap());
            }
            let mut segment = ReusableSegment::new(window.len()).unwrap();
            // What an earlier lease has left.
            segment.write(&vec![0xee; segment.len() / 2]);
            segment.clear_for(window.len().get());
            window.alias(&segment).unwrap();
            Self::Reused(segment)
        }

        fn seal(self, window: &mut Window, len: usize) -> Segment {
            match self {
                Self::Fresh(draft) => window.seal(draft, len).unwrap(),
                Self::Reused(segment) => {
                    window.keep(segment.as_fd(), len).unwrap();
                    segment.lend(len).unwrap().1
                }
            }
        }
    }

    #[test]
    fn a_short_segment_backs_no_window() {
        let segment =
            ReusableSegment::new(NonZeroUsize::new(page_len().unwrap()).unwrap()).unwrap();
        let mut memory = Reserved::new(2);
        assert!(memory.window(0, 2).alias(&segment).is_err());
        assert!(memory.window(1, 1).alias(&segment).is_ok());
    }

    #[test]
    fn only_whole_pages_are_a_window() {
        let page = page_len().unwrap();
        let reserved = Reserved::new(2);
        let base: *mut u8 = reserved.0.as_ptr().cast();
        for (offset, len, good) in [(0, page, true), (1, page, false), (0, 1, false), (0, 0, false)]
        {
            // SAFETY:
            // - inside our mapping, and nothing is done with it.
            let window = unsafe { Window::new(base.add(offset), len) };
            assert_eq!(window.is_some(), good, "{offset} {len}");
        }
    }

    #[test]
    fn sealed_bytes_never_change() {
        let (mut producer, mut consumer) = (Reserved::new(PAGES), Reserved::new(PAGES));
        producer.bytes().fill(0xff);
        let open = producer.window(1, 20).share().unwrap();
        let page = page_len().unwrap();
        assert!(producer.bytes()[page..21 * page].iter().all(|byte| *byte == 0));
        let len = 10 * page + 100;
        producer.bytes()[page..21 * page].fill(7);
        let segment = producer.window(1, 20).seal(open, len).unwrap();
        assert_eq!(segment.len(), len as u64);
        assert!(producer.bytes()[page..page + len].iter().all(|byte| *byte == 7));
        assert!(producer.bytes()[page + len..21 * page].iter().all(|byte| *byte == 0));
        assert!(producer.bytes()[21 * page..].iter().all(|byte| *byte == 0xff));
        consumer.window(0, 11).map_sealed(segment.as_fd()).unwrap();
        producer.bytes()[page] = 1;
        consumer.bytes()[1] = 2;
        assert!(segment.to_vec().unwrap() == vec![7; len]);
        assert_eq!((producer.bytes()[page + 1], consumer.bytes()[0]), (7, 7));
        assert!(consumer.bytes()[len..11 * page].iter().all(|byte| *byte == 0));
        consumer.window(0, 11).clear().unwrap();
        assert!(consumer.bytes().iter().all(|byte| *byte == 0));
        // Neither a write nor a new size gets through the seals.
        assert!(Segment::accept(segment.copied_fd(), len as u64).is_ok());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn windows_of_any_length_arrive(
            start in 0..PAGES, pages in 1..PAGES, len: usize, seed: u8, reused: bool,
        ) {
            let pages = pages.min(PAGES - start);
            let page = page_len().unwrap();
            let len = len % (pages * page + 1);
            let mut memory = Reserved::new(PAGES);
            memory.bytes().fill(0xff);
            let backing = Backing::new(&mut memory.window(start, pages), reused);
            let shared = &memory.bytes()[start * page..(start + pages) * page];
            prop_assert!(shared.iter().all(|byte| *byte == 0));
            let bytes = pattern(len, seed);
            memory.bytes()[start * page..start * page + len].copy_from_slice(&bytes);
            let segment = backing.seal(&mut memory.window(start, pages), len);
            prop_assert!(segment.to_vec().unwrap() == bytes);
            prop_assert!(memory.bytes()[start * page..start * page + len] == bytes);
            let (before, after) = (start * page, (start + pages) * page);
            prop_assert!(memory.bytes()[..before].iter().all(|byte| *byte == 0xff));
            prop_assert!(memory.bytes()[after..].iter().all(|byte| *byte == 0xff));
            // Nothing that is written here afterwards gets there.
            memory.bytes()[start * page..(start + pages) * page].fill(0xdd);
            prop_assert!(segment.to_vec().unwrap() == bytes);
            let mut consumer = Reserved::new(PAGES);
            if len > 0 {
                let pages = len.div_ceil(page);
                consumer.window(0, pages).map_sealed(segment.as_fd()).unwrap();
                prop_assert!(consumer.bytes()[..len] == bytes);
                prop_assert!(consumer.bytes()[len..].iter().all(|byte| *byte == 0));
                consumer.bytes().fill(0xcc);
                prop_assert!(segment.to_vec().unwrap() == bytes);
            }
            if !reused {
                prop_assert!(Segment::accept(segment.copied_fd(), len as u64).is_ok());
            }
        }
    }
}
