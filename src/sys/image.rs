//! Memory that is brought back to what it was: an image of it, taken once, and the pages that were changed since.
//!
//! Runs in workers. Whoever ran in the memory between image and restoration finds nothing of what it left there.
#![expect(unsafe_code, reason = "mmap and madvise over memory that is in use")]

use std::ffi::c_void;
use std::io;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous};

use super::mapping::page_len;
use super::populated::Populated;

/// Bytes beyond the image's own that stay in memory for whoever comes next, at most. Making such a page zero takes a
/// fraction of the fault that would bring a new one.
const KEPT_MAX: usize = 1 << 20;

/// What was in a memory that is not zero, page by page.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Image {
    /// Length of the memory in bytes.
    len: usize,
    page: usize,
    /// Numbers of the pages, ascending.
    pages: Vec<u32>,
    /// What is in them, one after the other.
    bytes: Vec<u8>,
}

impl Image {
    /// The image of `memory`; `None` unless that is whole pages, with at most `max` bytes in those that are not zero.
    #[must_use]
    pub fn of(memory: &[u8], max: usize) -> Option<Self> {
        let page = page_len()?;
        if !memory.len().is_multiple_of(page) || u32::try_from(memory.len() / page).is_err() {
            return None;
        }
        let (mut pages, mut bytes) = (Vec::new(), Vec::new());
        for (number, content) in (0..).zip(memory.chunks_exact(page)) {
            if !is_zero(content) {
                if bytes.len() + page > max {
                    return None;
                }
                pages.push(number);
                bytes.extend_from_slice(content);
            }
        }
        bytes.shrink_to_fit();
        Some(Self { len: memory.len(), page, pages, bytes })
    }

    /// Length of the memory in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// True for a memory without bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Whether there is a page, or only its address, where zeros are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    No,
    /// Not in memory; it may be swapped out.
    Perhaps,
    Yes,
}

/// Memory of which an image was taken, with what was appended to it since.
#[derive(Debug)]
pub struct Imaged<'a> {
    start: NonNull<c_void>,
    len: usize,
    image: &'a Image,
}

impl<'a> Imaged<'a> {
    /// The `len` bytes at `start`, the first of which `image` is of; `None` when they are fewer.
    ///
    /// # Safety
    /// - They are one private reservation, accessible from its start on, whose owner unmaps all of it in the end,
    ///   whatever is mapped there by then, and makes what follows the accessible part accessible by mapping over it.
    /// - As long as this lives, nobody refers to them (by a Rust reference) or reads or writes them.
    #[must_use]
    pub unsafe fn new(start: *mut u8, len: usize, image: &'a Image) -> Option<Self> {
        let aligned = start.addr().is_multiple_of(image.page) && len.is_multiple_of(image.page);
        let start = NonNull::new(start.cast())?;
        (aligned && image.len <= len).then_some(Self { start, len, image })
    }

    /// Brings back what the image shows, and makes inaccessible what was appended. `replaced`: other memory may have been
    /// mapped over some of the pages. `populated` is asked which pages there are.
    ///
    /// # Errors
    /// When mappings run out; then the memory is in no state to be used.
    pub fn restore(&mut self, replaced: bool, populated: Option<&Populated>) -> io::Result<()> {
        if let Some(appended) = NonZeroUsize::new(self.len - self.image.len) {
            // As the owner reserved it.
            let flags = MapFlags::MAP_NORESERVE;
            self.map(self.image.len, appended, ProtFlags::PROT_NONE, flags)?;
            self.len = self.image.len;
        }
        let Some(len) = NonZeroUsize::new(self.len) else { return Ok(()) };
        if replaced {
            // As the owner makes it accessible.
            let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
            self.map(0, len, access, MapFlags::empty())?;
        }
        let pages = match populated.and_then(|populated| self.populated(populated).ok()) {
            Some(pages) => pages,
            None => self.resident(len)?,
        };
        self.rewrite(&pages)
    }

    fn map(
        &mut self,
        from: usize,
        len: NonZeroUsize,
        access: ProtFlags,
        flags: MapFlags,
    ) -> io::Result<()> {
        let flags = flags | MapFlags::MAP_FIXED | MapFlags::MAP_PRIVATE;
        let address = self.start.addr().checked_add(from);
        // SAFETY:
        // - inside the reservation, which is ours to change, and nobody refers to it: the constructor's conditions.
        unsafe { mmap_anonymous(address, len, access, flags) }?;
        Ok(())
    }

    /// Gives back all pages that the image does not show. Reading them for the image brought them into memory, and
    /// [`Self::restore`] would look at them every time.
    ///
    /// # Errors
    /// As [`Self::restore`].
    pub fn settle(&mut self) -> io::Result<()> {
        let page = self.image.page;
        self.rewrite(&vec![Held::Perhaps; self.len / page])
    }

    /// Every page is written, or found to be zero, or given back, unless it is none yet: whether it is in memory decides
    /// what is faster, never what is in it afterwards.
    fn rewrite(&mut self, pages: &[Held]) -> io::Result<()> {
        let page = self.image.page;
        let mut images =
            self.image.pages.iter().zip(self.image.bytes.chunks_exact(page)).peekable();
        let mut left = KEPT_MAX / page;
        let mut gone = 0..0;
        for (number, held) in pages.iter().enumerate() {
            let at = number * page;
            let image = images.next_if(|(image, _)| **image as usize == number);
            let written = image.is_some() || (*held == Held::Yes && left > 0);
            if !written && *held != Held::No {
                gone.end = at + page;
                continue;
            }
            self.give_back(gone)?;
            gone = at + page..at + page;
            if !written {
                continue;
            }
            // SAFETY:
            // - inside the accessible part, which nobody refers to: the constructor's conditions.
            let bytes = unsafe {
                std::slice::from_raw_parts_mut(self.start.as_ptr().cast::<u8>().add(at), page)
            };
            match image {
                Some((_, content)) => bytes.copy_from_slice(content),
                None => {
                    left -= 1;
                    // A page that was only read is the kernel's one of zeros, and stays that.
                    if !is_zero(bytes) {
                        bytes.fill(0);
                    }
                }
            }
        }
        self.give_back(gone)
    }

    /// Which pages there are.
    fn populated(&self, populated: &Populated) -> io::Result<Vec<Held>> {
        let page = self.image.page;
        let start = self.start.addr().get();
        let mut pages = vec![Held::No; self.len / page];
        populated.each(start..start + self.len, |found| {
            let numbers = (found.start - start) / page..(found.end - start) / page;
            pages.get_mut(numbers).unwrap_or_default().fill(Held::Yes);
        })?;
        Ok(pages)
    }

    /// Which of the first `len` bytes' pages are in memory. Of the others there may be some: swapped out.
    fn resident(&self, len: NonZeroUsize) -> io::Result<Vec<Held>> {
        let mut resident = vec![0; len.get() / self.image.page];
        // SAFETY:
        // - whole mapped pages; one byte for each of them.
        let asked = unsafe { libc::mincore(self.start.as_ptr(), len.get(), resident.as_mut_ptr()) };
        if asked != 0 {
            return Err(io::Error::last_os_error());
        }
        let held = |resident: u8| if resident & 1 == 1 { Held::Yes } else { Held::Perhaps };
        Ok(resident.into_iter().map(held).collect())
    }

    /// These bytes become zero, and their pages the kernel's.
    fn give_back(&mut self, bytes: std::ops::Range<usize>) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY:
        // - inside the accessible part, which is private and anonymous; nobody refers to it: the constructor's conditions.
        unsafe {
            let start = self.start.byte_add(bytes.start);
            madvise(start, bytes.len(), MmapAdvise::MADV_DONTNEED)
        }?;
        Ok(())
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    static ZEROS: [u8; 4096] = [0; 4096];
    bytes.chunks(ZEROS.len()).all(|chunk| *chunk == ZEROS[..chunk.len()])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Pages of the reservation; the first [`FIRST`] of them are accessible when the image is taken.
    const PAGES: usize = 600;
    const FIRST: usize = 300;

    /// A reservation as the engine makes it.
    struct Reserved(NonNull<c_void>, usize);

    impl Reserved {
        fn new() -> Self {
            let len = PAGES * page_len().unwrap();
            let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
            // SAFETY:
            // - a fresh mapping at an address of the kernel's choice.
            let start = unsafe {
                mmap_anonymous(None, NonZeroUsize::new(len).unwrap(), ProtFlags::PROT_NONE, flags)
            };
            let mut this = Self(start.unwrap(), 0);
            this.grow(FIRST);
            this
        }

        fn grow(&mut self, pages: usize) {
            let len = NonZeroUsize::new(pages * page_len().unwrap()).unwrap();
            let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
            let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED;
            let at = self.0.addr().checked_add(self.1);
            // SAFETY:
            // - inside the reservation, behind what is accessible.
            unsafe { mmap_anonymous(at, len, access, flags) }.unwrap();
            self.1 += len.get();
        }

        fn bytes(&mut self) -> &mut [u8] {
            // SAFETY:
            // - mapped, readable and writable.
            unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr().cast(), self.1) }
        }

        fn restore(&mut self, image: &Image, replaced: bool, populated: Option<&Populated>) {
            // SAFETY:
            // - our reservation, to which nobody refers.
            let imaged = unsafe { Imaged::new(self.0.as_ptr().cast(), self.1, image) };
            imaged.unwrap().restore(replaced, populated).unwrap();
            self.1 = image.len();
        }
    }

    impl Drop for Reserved {
        fn drop(&mut self) {
            // SAFETY:
            // - our mapping, not used any more.
            unsafe { nix::sys::mman::munmap(self.0, PAGES * page_len().unwrap()) }.unwrap();
        }
    }

    fn writes(pages: usize) -> impl Strategy<Value = Vec<(usize, u8)>> {
        prop::collection::vec((0..pages * page_len().unwrap(), any::<u8>()), 0..400)
    }

    #[test]
    fn only_whole_pages_have_an_image() {
        assert!(Image::of(&[0; 100], 0).is_none());
        let image = Image::of(&[], 0).unwrap();
        assert!(image.is_empty());
        let image = Image::of(&vec![0; 4 * page_len().unwrap()], 0).unwrap();
        assert_eq!((image.len(), image.pages.len()), (4 * page_len().unwrap(), 0));
    }

    #[test]
    fn more_pages_than_are_kept_become_zero_too() {
        let mut memory = Reserved::new();
        memory.bytes()[7] = 7;
        let image = Image::of(memory.bytes(), usize::MAX).unwrap();
        for populated in [None, Populated::open()] {
            memory.bytes().fill(0xee);
            memory.restore(&image, false, populated.as_ref());
            assert_eq!(Image::of(memory.bytes(), usize::MAX).unwrap(), image);
        }
        assert!(FIRST * page_len().unwrap() > KEPT_MAX);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn whatever_was_written_is_gone(
            first in writes(FIRST),
            later in prop::collection::vec((writes(PAGES), 0..PAGES - FIRST, any::<bool>()), 1..4),
            asks: bool,
        ) {
            let populated = asks.then(Populated::open).flatten();
            let mut memory = Reserved::new();
            for (at, value) in first {
                memory.bytes()[at] = value;
            }
            let expected = memory.bytes().to_vec();
            let image = Image::of(memory.bytes(), usize::MAX).unwrap();
            for (writes, growth, replaced) in later {
                if growth > 0 {
                    memory.grow(growth);
                }
                for (at, value) in writes {
                    if let Some(byte) = memory.bytes().get_mut(at) {
                        *byte = value;
                    }
                }
                memory.restore(&image, replaced, populated.as_ref());
                prop_assert!(memory.bytes() == expected);
            }
            memory.grow(PAGES - FIRST);
            prop_assert!(memory.bytes()[expected.len()..].iter().all(|byte| *byte == 0));
        }
    }
}
