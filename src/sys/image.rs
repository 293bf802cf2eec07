//! Memory that is brought back to what it was: an image of it, taken once, and the pages that were changed since.
//!
//! A small image is written as a whole each time. A large one is mapped into the memory (`image_file`), and what is written
//! are pages that were written since.
//!
//! Runs in workers. Whoever ran in the memory between image and restoration finds nothing of what it left there.
#![expect(unsafe_code, reason = "mmap and madvise over memory that is in use")]

use std::ffi::c_void;
use std::hash::{Hash, Hasher};
use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous};

use super::image_file::ImageFile;
use super::mapping::page_len;
use super::populated::{Populated, Wanted};

/// Bytes beyond the image's own that stay in memory for whoever comes next, at most. Making such a page zero takes a
/// fraction of the fault that would bring a new one.
const KEPT_MAX: usize = 1 << 20;

/// Longest image that is written as a whole, in bytes.
const COPIED_MAX: usize = 256 << 10;

/// What was in a memory that is not zero, page by page.
#[derive(Debug)]
pub struct Image {
    /// Length of the memory in bytes.
    len: usize,
    page: usize,
    /// Numbers of the pages, ascending.
    pages: Vec<u32>,
    /// What is in them, one after the other; empty when that is in a file.
    bytes: Vec<u8>,
    file: Option<ImageFile>,
}

/// Of an image that is not in a file.
impl Hash for Image {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (self.len, &self.pages, &self.bytes).hash(hasher);
    }
}

impl Image {
    /// The image of `memory`, private and of nothing else than this process'; `None` unless that is whole pages, with at
    /// most `max` bytes in those that are not zero. `populated` is asked which pages there are: others need not be read.
    #[must_use]
    pub fn of(memory: &[u8], max: usize, populated: Option<&Populated>) -> Option<Self> {
        let page = page_len()?;
        let start = memory.as_ptr().addr();
        let whole = start.is_multiple_of(page) && memory.len().is_multiple_of(page);
        if !whole && !memory.is_empty() || u32::try_from(memory.len() / page).is_err() {
            return None;
        }
        let mut there = Vec::new();
        let asked = populated.map(|populated| {
            populated.each(start..start + memory.len(), Wanted::Present, |found| {
                there.push(found.start - start..found.end - start);
            })
        });
        if !matches!(asked, Some(Ok(()))) {
            there = std::iter::once(0..memory.len()).collect();
        }
        let (mut pages, mut bytes) = (Vec::new(), Vec::new());
        for at in there.into_iter().flat_map(|range| range.step_by(page)) {
            let content = &memory[at..at + page];
            if !is_zero(content) {
                if bytes.len() + page > max {
                    return None;
                }
                pages.push(u32::try_from(at / page).ok()?);
                bytes.extend_from_slice(content);
            }
        }
        bytes.shrink_to_fit();
        Some(Self { len: memory.len(), page, pages, bytes, file: None })
    }

    /// Puts it into a file, if it is so large that it is to be mapped. Then [`Imaged::restore`] needs to ask which pages there are.
    ///
    /// # Errors
    /// When memory, mappings or descriptors run out.
    pub fn settle(&mut self) -> io::Result<()> {
        if self.file.is_none() && self.bytes.len() > COPIED_MAX {
            self.file = ImageFile::new(self.page, &self.pages, &self.bytes)?;
            (self.pages, self.bytes) = (Vec::new(), Vec::new());
        }
        Ok(())
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

/// Pages that there are, or may be: others are only addresses, where zeros are read.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    /// Their numbers.
    pages: Range<u32>,
    /// False: they may be swapped out.
    in_memory: bool,
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

    /// Brings back what the image shows, and makes inaccessible what was appended. `replaced`: whole pages over some of
    /// which other memory may have been mapped. `populated` is asked which pages there are.
    ///
    /// # Errors
    /// When mappings run out; then the memory is in no state to be used.
    pub fn restore(
        &mut self,
        replaced: Range<usize>,
        populated: Option<&Populated>,
    ) -> io::Result<()> {
        if let Some(appended) = NonZeroUsize::new(self.len - self.image.len) {
            // As the owner reserved it.
            let flags = MapFlags::MAP_NORESERVE;
            self.map(self.image.len, appended, ProtFlags::PROT_NONE, flags)?;
            self.len = self.image.len;
        }
        let Some(len) = NonZeroUsize::new(self.len) else { return Ok(()) };
        let replaced_len = replaced.end.min(self.len).saturating_sub(replaced.start);
        if let Some(len) = NonZeroUsize::new(replaced_len) {
            // As the owner makes it accessible, but for the flag: with it these pages are not joined to those around them,
            // and the next payload that is mapped there need not part them again.
            let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
            self.map(replaced.start, len, access, MapFlags::MAP_NORESERVE)?;
            self.show_file(replaced.start..replaced.start + replaced_len)?;
        }
        if let Some(file) = &self.image.file {
            let populated = populated.ok_or(io::ErrorKind::Unsupported)?;
            let written = self.populated(populated, Wanted::Anonymous)?;
            return self.rewrite_written(file, &written);
        }
        let held =
            match populated.and_then(|populated| self.populated(populated, Wanted::Present).ok()) {
                Some(held) => held,
                None => self.resident(len)?,
            };
        self.rewrite(&held)
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

    /// Begins: gives back all pages that the image does not show, because reading them for the image brought them into memory, and
    /// [`Self::restore`] would look at them every time; and maps the image, if it is in a file.
    ///
    /// # Errors
    /// As [`Self::restore`].
    pub fn settle(&mut self) -> io::Result<()> {
        if self.image.file.is_some() {
            self.give_back(0..self.len)?;
            return self.show_file(0..self.len);
        }
        let count = u32::try_from(self.len / self.image.page).unwrap_or(u32::MAX);
        self.rewrite(&[Held { pages: 0..count, in_memory: false }])
    }

    /// Shows the image's file in these bytes, which are whole pages.
    fn show_file(&mut self, bytes: Range<usize>) -> io::Result<()> {
        let Some(file) = &self.image.file else { return Ok(()) };
        let number = |at: usize| u32::try_from(at / self.image.page).unwrap_or(u32::MAX);
        // SAFETY:
        // - inside the accessible part, which is ours to change, and nobody refers to it: the constructor's conditions.
        unsafe { file.show(self.start, number(bytes.start)..number(bytes.end)) }
    }

    /// [`Self::rewrite`] of a mapped image: `written` pages only; all others show the file, or nothing.
    fn rewrite_written(&mut self, file: &ImageFile, written: &[Held]) -> io::Result<()> {
        let page = self.image.page;
        let mut left = KEPT_MAX / page;
        let mut gone = 0..0;
        for number in written.iter().flat_map(|held| held.pages.clone()) {
            if let Some(content) = file.content(number) {
                self.page(number).copy_from_slice(content);
            } else if left > 0 {
                left -= 1;
                self.page(number).fill(0);
            } else {
                let at = number as usize * page;
                if gone.end == at {
                    gone.end += page;
                } else {
                    self.give_back(std::mem::replace(&mut gone, at..at + page))?;
                }
            }
        }
        self.give_back(gone)
    }

    /// Every page that is there is written, or found to be zero, or given back: whether it is in memory decides what is
    /// faster, never what is in it afterwards. `held`: in ascending order.
    fn rewrite(&mut self, held: &[Held]) -> io::Result<()> {
        let page = self.image.page;
        // Another reference, so that pages can be written meanwhile.
        let image = self.image;
        let mut images = image.pages.iter().zip(image.bytes.chunks_exact(page)).peekable();
        let mut left = KEPT_MAX / page;
        let mut gone = 0..0;
        for Held { pages, in_memory } in held {
            for number in pages.clone() {
                while let Some((image, content)) = images.next_if(|(image, _)| **image < number) {
                    self.page(*image).copy_from_slice(content);
                }
                let image = images.next_if(|(image, _)| **image == number);
                let at = number as usize * page;
                if image.is_none() && (!in_memory || left == 0) {
                    if gone.end == at {
                        gone.end += page;
                    } else {
                        self.give_back(std::mem::replace(&mut gone, at..at + page))?;
                    }
                    continue;
                }
                let bytes = self.page(number);
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
        }
        for (image, content) in images {
            self.page(*image).copy_from_slice(content);
        }
        self.give_back(gone)
    }

    /// A page of the image's part.
    fn page(&mut self, number: u32) -> &mut [u8] {
        let len = self.image.page;
        let at = number as usize * len;
        assert!(at < self.image.len, "page {number} is not of the image");
        // SAFETY:
        // - inside the accessible part, which nobody refers to: the constructor's conditions.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().cast::<u8>().add(at), len) }
    }

    /// Which pages there are.
    fn populated(&self, populated: &Populated, wanted: Wanted) -> io::Result<Vec<Held>> {
        let page = self.image.page;
        let start = self.start.addr().get();
        let mut held = Vec::new();
        let number = |at: usize| u32::try_from((at - start) / page).unwrap_or(u32::MAX);
        populated.each(start..start + self.len, wanted, |found| {
            held.push(Held { pages: number(found.start)..number(found.end), in_memory: true });
        })?;
        Ok(held)
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
        let mut held: Vec<Held> = Vec::new();
        for (number, resident) in (0..).zip(resident) {
            let in_memory = resident & 1 == 1;
            match held.last_mut().filter(|last| last.in_memory == in_memory) {
                Some(last) => last.pages.end = number + 1,
                None => held.push(Held { pages: number..number + 1, in_memory }),
            }
        }
        Ok(held)
    }

    /// These bytes become zero, and their pages the kernel's.
    fn give_back(&mut self, bytes: Range<usize>) -> io::Result<()> {
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

        /// Maps other memory over some pages, as a payload's is.
        fn show(&mut self, pages: Range<usize>) {
            let page = page_len().unwrap();
            let Some(len) = NonZeroUsize::new(pages.len() * page) else { return };
            let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
            let flags = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED;
            let at = self.0.addr().checked_add(pages.start * page);
            // SAFETY:
            // - inside what is accessible.
            unsafe { mmap_anonymous(at, len, access, flags) }.unwrap();
            self.bytes()[pages.start * page..pages.end * page].fill(0xcc);
        }

        fn bytes(&mut self) -> &mut [u8] {
            // SAFETY:
            // - mapped, readable and writable.
            unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr().cast(), self.1) }
        }

        fn restore(
            &mut self,
            image: &Image,
            replaced: Range<usize>,
            populated: Option<&Populated>,
        ) {
            // SAFETY:
            // - our reservation, to which nobody refers.
            let imaged = unsafe { Imaged::new(self.0.as_ptr().cast(), self.1, image) };
            imaged.unwrap().restore(replaced, populated).unwrap();
            self.1 = image.len();
        }

        fn settle(&mut self, image: &Image) {
            // SAFETY:
            // - our reservation, to which nobody refers.
            let imaged = unsafe { Imaged::new(self.0.as_ptr().cast(), self.1, image) };
            imaged.unwrap().settle().unwrap();
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
        assert!(Image::of(&[0; 100], 0, None).is_none());
        let image = Image::of(&[], 0, None).unwrap();
        assert!(image.is_empty());
        let mut memory = Reserved::new();
        let image = Image::of(memory.bytes(), 0, None).unwrap();
        assert_eq!((image.len(), image.pages.len()), (FIRST * page_len().unwrap(), 0));
        let bytes = memory.bytes();
        assert!(Image::of(&bytes[..bytes.len() - 1], 0, None).is_none());
        assert!(Image::of(&bytes[1..=page_len().unwrap()], 0, None).is_none());
    }

    #[test]
    fn more_pages_than_are_kept_become_zero_too() {
        let mut memory = Reserved::new();
        memory.bytes()[7] = 7;
        let image = Image::of(memory.bytes(), usize::MAX, None).unwrap();
        for populated in [None, Populated::open()] {
            memory.bytes().fill(0xee);
            memory.restore(&image, 0..0, populated.as_ref());
            let now = Image::of(memory.bytes(), usize::MAX, None).unwrap();
            assert!(
                (now.len, now.pages, now.bytes)
                    == (image.len, image.pages.clone(), image.bytes.clone())
            );
        }
        assert!(FIRST * page_len().unwrap() > KEPT_MAX);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn whatever_was_written_is_gone(
            first in writes(FIRST),
            later in prop::collection::vec(
                (writes(PAGES), 0..PAGES - FIRST, (0..FIRST, 0..FIRST), any::<bool>()), 1..4,
            ),
            asks: bool,
        ) {
            let populated = asks.then(Populated::open).flatten();
            let mut memory = Reserved::new();
            for (at, value) in first {
                memory.bytes()[at] = value;
            }
            let expected = memory.bytes().to_vec();
            let mut image = Image::of(memory.bytes(), usize::MAX, populated.as_ref()).unwrap();
            if asks && populated.as_ref().is_some_and(Populated::scans) {
                // Large ones become files.
                image.settle().unwrap();
            }
            memory.settle(&image);
            prop_assert!(memory.bytes() == expected);
            for (writes, growth, (start, pages), shown) in later {
                if growth > 0 {
                    memory.grow(growth);
                }
                let end = if shown { start + pages } else { start };
                // What was appended goes anyway.
                memory.show(start..end.min(FIRST + growth));
                for (at, value) in writes {
                    if let Some(byte) = memory.bytes().get_mut(at) {
                        *byte = value;
                    }
                }
                let page = page_len().unwrap();
                memory.restore(&image, start * page..end * page, populated.as_ref());
                prop_assert!(memory.bytes() == expected);
            }
            memory.grow(PAGES - FIRST);
            prop_assert!(memory.bytes()[expected.len()..].iter().all(|byte| *byte == 0));
        }
    }
}
