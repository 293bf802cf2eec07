//! A large image of a linear memory, as a memfd that is mapped into that memory.
//!
//! The memory maps the file's pages privately until it is written to. The kernel's page map shows which
//! pages were written; only these are restored.
#![expect(unsafe_code, reason = "mmap over memory that is in use")]

use std::ffi::c_void;
use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use cwasi_sys::segment::{Segment, SegmentError};

/// Pages between two others that are taken into the file though they are zero: each run is a mapping of its own.
const GAP_MAX: u32 = 16;

/// Pages one after the other, in the memory and in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PageRun {
    /// Number of the first one in the memory.
    first: u32,
    pages: u32,
    /// Number of the first one in the file.
    file_page: u32,
}

/// Pages of a memory in a file.
#[derive(Debug)]
pub(super) struct ImageFile {
    page_size: usize,
    runs: Vec<PageRun>,
    segment: Segment,
    /// All of the file, to be read.
    bytes: NonNull<c_void>,
    len: NonZeroUsize,
}

impl ImageFile {
    /// `contents` of the pages with these `numbers`, which ascend, one after the other; `None` when there are none.
    pub(super) fn new(
        page_size: usize,
        numbers: &[u32],
        contents: &[u8],
    ) -> io::Result<Option<Self>> {
        let mut runs: Vec<PageRun> = Vec::new();
        let mut bytes = Vec::new();
        for (number, content) in numbers.iter().zip(contents.chunks_exact(page_size)) {
            let file_page = u32::try_from(bytes.len() / page_size).map_err(io::Error::other)?;
            match runs.last_mut() {
                Some(run) if number - (run.first + run.pages) <= GAP_MAX => {
                    let gap = number - (run.first + run.pages);
                    bytes.resize(bytes.len() + gap as usize * page_size, 0);
                    run.pages += gap + 1;
                }
                _ => runs.push(PageRun { first: *number, pages: 1, file_page }),
            }
            bytes.extend_from_slice(content);
        }
        let Some(len) = NonZeroUsize::new(bytes.len()) else { return Ok(None) };
        let segment =
            Segment::copy_of(&bytes).map_err(|error: SegmentError| io::Error::other(error))?;
        let access = ProtFlags::PROT_READ;
        // SAFETY:
        // - a fresh mapping at an address of the kernel's choice, of a file that never changes.
        let bytes = unsafe { mmap(None, len, access, MapFlags::MAP_SHARED, segment.as_fd(), 0) }?;
        Ok(Some(Self { page_size, runs, segment, bytes, len }))
    }

    /// What the image holds at this page; `None` where that is not in the file, and zero.
    pub(super) fn content(&self, number: u32) -> Option<&[u8]> {
        let after = self.runs.partition_point(|run| run.first <= number);
        let run = self.runs[..after].last()?;
        let inside = number - run.first;
        if inside >= run.pages {
            return None;
        }
        let start = (run.file_page + inside) as usize * self.page_size;
        // SAFETY:
        // - mapped as long as this lives, and sealed against writing.
        let bytes: &[u8] =
            unsafe { std::slice::from_raw_parts(self.bytes.as_ptr().cast(), self.len.get()) };
        bytes.get(start..start + self.page_size)
    }

    /// Maps the file's pages over those of the memory at `start` whose numbers are among `pages`.
    ///
    /// # Safety
    /// These pages of the memory are the caller's to replace, and no reference to them exists.
    pub(super) unsafe fn map(&self, start: NonNull<c_void>, pages: Range<u32>) -> io::Result<()> {
        for run in &self.runs {
            let first = run.first.max(pages.start);
            let end = (run.first + run.pages).min(pages.end);
            let Some(len) = NonZeroUsize::new(end.saturating_sub(first) as usize * self.page_size)
            else {
                continue;
            };
            let address = start.addr().checked_add(first as usize * self.page_size);
            let offset = (run.file_page + first - run.first) as usize * self.page_size;
            let offset = i64::try_from(offset).map_err(io::Error::other)?;
            let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
            let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED | MapFlags::MAP_NORESERVE;
            // SAFETY:
            // - the caller's condition; the file is that long and cannot shrink.
            unsafe { mmap(address, len, access, flags, self.segment.as_fd(), offset) }?;
        }
        Ok(())
    }
}

impl Drop for ImageFile {
    fn drop(&mut self) {
        // SAFETY:
        // - our mapping, and no reference to it is left. Memory that maps the file has mappings of its own.
        let _unmapped = unsafe { munmap(self.bytes, self.len.get()) };
    }
}
