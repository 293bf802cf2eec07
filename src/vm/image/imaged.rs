//! Memory with an image, and its restoration.
#![expect(unsafe_code, reason = "mmap and madvise over memory that is in use")]

use std::ffi::c_void;
use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous};

use super::file::ImageFile;
use super::{MemoryImage, is_zero};
use cwasi_sys::populated::{PageFilter, Populated};

/// Most bytes beyond the image's own that stay in memory for the next request. Clearing such a page takes a fraction of
/// the time of a fault for a new one.
pub(super) const KEPT_MAX: usize = 1 << 20;

/// Pages that exist or may exist. Other addresses read as zero.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ResidentPages {
    pages: Range<u32>,
    /// False: they may be swapped out.
    in_memory: bool,
}

/// Memory with an image, and the pages that were appended to it since.
#[derive(Debug)]
pub struct ImagedMemory<'a> {
    start: NonNull<c_void>,
    len: usize,
    image: &'a MemoryImage,
}

impl<'a> ImagedMemory<'a> {
    /// The `len` bytes at `start`, the first of which `image` is of; `None` when they are fewer.
    ///
    /// # Safety
    /// - They are one private reservation, accessible from its start on, whose owner unmaps all of it in the end,
    ///   whatever is mapped there by then, and makes what follows the accessible part accessible by mapping over it.
    /// - As long as this lives, no Rust reference to them exists, and no other code reads or writes them.
    #[must_use]
    pub unsafe fn new(start: *mut u8, len: usize, image: &'a MemoryImage) -> Option<Self> {
        let aligned = start.addr().is_multiple_of(image.page) && len.is_multiple_of(image.page);
        let start = NonNull::new(start.cast())?;
        (aligned && image.len <= len).then_some(Self { start, len, image })
    }

    /// Restores the memory to the image, and makes appended pages inaccessible. `replaced`: whole pages over which
    /// other memory may have been mapped. `populated`: the page map.
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
            // As the owner makes it accessible, but for the flag: with it these pages are not joined to those around
            // them, and the next payload that is mapped there need not part them again.
            let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
            self.map(replaced.start, len, access, MapFlags::MAP_NORESERVE)?;
            self.map_file(replaced.start..replaced.start + replaced_len)?;
        }
        if let Some(file) = &self.image.file {
            let populated = populated.ok_or(io::ErrorKind::Unsupported)?;
            let written = self.populated(populated, PageFilter::Anonymous)?;
            return self.rewrite_written(file, &written);
        }
        let held = match populated
            .and_then(|populated| self.populated(populated, PageFilter::Present).ok())
        {
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
        // - inside the reservation, which is ours to change, and no reference to it exists: the constructor's
        //   conditions.
        unsafe { mmap_anonymous(address, len, access, flags) }?;
        Ok(())
    }

    /// Begins: gives back all pages that the image does not hold, because reading them for the image brought them into
    /// memory, and [`Self::restore`] would look at them every time; and maps the image, if it is in a file.
    ///
    /// # Errors
    /// As [`Self::restore`].
    pub fn settle(&mut self) -> io::Result<()> {
        if self.image.file.is_some() {
            self.give_back(0..self.len)?;
            return self.map_file(0..self.len);
        }
        let count = u32::try_from(self.len / self.image.page).unwrap_or(u32::MAX);
        self.rewrite(&[ResidentPages { pages: 0..count, in_memory: false }])
    }

    /// Shows the image's file in these bytes, which are whole pages.
    fn map_file(&mut self, bytes: Range<usize>) -> io::Result<()> {
        let Some(file) = &self.image.file else { return Ok(()) };
        let number = |at: usize| u32::try_from(at / self.image.page).unwrap_or(u32::MAX);
        // SAFETY:
        // - inside the accessible part, which is ours to change, and no reference to it exists: the constructor's
        //   conditions.
        unsafe { file.map(self.start, number(bytes.start)..number(bytes.end)) }
    }

    /// [`Self::rewrite`] of a mapped image: `written` pages only; all others map the file, or nothing.
    fn rewrite_written(&mut self, file: &ImageFile, written: &[ResidentPages]) -> io::Result<()> {
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
    fn rewrite(&mut self, held: &[ResidentPages]) -> io::Result<()> {
        let page = self.image.page;
        // Another reference, so that pages can be written meanwhile.
        let image = self.image;
        let mut images = image.pages.iter().zip(image.bytes.chunks_exact(page)).peekable();
        let mut left = KEPT_MAX / page;
        let mut gone = 0..0;
        for ResidentPages { pages, in_memory } in held {
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
        // - inside the accessible part, to which no reference exists: the constructor's conditions.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().cast::<u8>().add(at), len) }
    }

    /// Which pages there are.
    fn populated(
        &self,
        populated: &Populated,
        wanted: PageFilter,
    ) -> io::Result<Vec<ResidentPages>> {
        let page = self.image.page;
        let start = self.start.addr().get();
        let mut held = Vec::new();
        let number = |at: usize| u32::try_from((at - start) / page).unwrap_or(u32::MAX);
        populated.each(start..start + self.len, wanted, |found| {
            held.push(ResidentPages {
                pages: number(found.start)..number(found.end),
                in_memory: true,
            });
        })?;
        Ok(held)
    }

    /// Which of the first `len` bytes' pages are in memory. Of the others there may be some: swapped out.
    fn resident(&self, len: NonZeroUsize) -> io::Result<Vec<ResidentPages>> {
        let mut resident = vec![0; len.get() / self.image.page];
        // SAFETY:
        // - whole mapped pages; one byte for each of them.
        let asked = unsafe { libc::mincore(self.start.as_ptr(), len.get(), resident.as_mut_ptr()) };
        if asked != 0 {
            return Err(io::Error::last_os_error());
        }
        let mut held: Vec<ResidentPages> = Vec::new();
        for (number, resident) in (0..).zip(resident) {
            let in_memory = resident & 1 == 1;
            match held.last_mut().filter(|last| last.in_memory == in_memory) {
                Some(last) => last.pages.end = number + 1,
                None => held.push(ResidentPages { pages: number..number + 1, in_memory }),
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
        // - inside the accessible part, which is private and anonymous; no reference to it exists: the constructor's
        //   conditions.
        unsafe {
            let start = self.start.byte_add(bytes.start);
            madvise(start, bytes.len(), MmapAdvise::MADV_DONTNEED)
        }?;
        Ok(())
    }
}
