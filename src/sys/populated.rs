//! The kernel's page map of this process: which pages exist (every other page of anonymous memory reads as zero), and
//! which pages of a private file mapping were written.
//!
//! Uses `PAGEMAP_SCAN` (Linux 6.7 and later), which answers with ranges in one step. Older kernels provide the map as a
//! file with one number for each page, which only [`Populated::is_written`] reads. Without `/proc` there is no map, and
//! callers do without it.
#![expect(unsafe_code, reason = "an ioctl that fills memory")]

use std::cell::OnceCell;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::rc::Rc;

/// Ranges that one system call returns; further ones take another call.
const RANGES: usize = 32;
/// Numbers of the map that are read at once.
const ENTRIES: usize = 512;
/// Bits of such a number (`Documentation/admin-guide/mm/pagemap.rst`).
const ENTRY_FILE: u64 = 1 << 61;
const ENTRY_THERE: u64 = 0b11 << 62;
/// Kinds of pages (`linux/fs.h`).
const FILE: u64 = 1 << 2;
const PRESENT: u64 = 1 << 3;
const SWAPPED: u64 = 1 << 4;
/// The kernel's one page of zeros: only ever read.
const ZEROS: u64 = 1 << 5;

/// `struct page_region`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct PageRegion {
    start: u64,
    end: u64,
    kinds: u64,
}

/// `struct pm_scan_arg`.
#[derive(Debug)]
#[repr(C)]
struct ScanArgs {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walked_to: u64,
    regions: u64,
    regions_len: u64,
    pages_max: u64,
    kinds_inverted: u64,
    kinds_all: u64,
    kinds_any: u64,
    kinds_told: u64,
}

nix::ioctl_readwrite!(
    /// `PAGEMAP_SCAN`: how many regions were filled.
    pagemap_scan,
    b'f',
    16,
    ScanArgs
);

/// This process' page map. A child must not use it: it stays the parent's map.
#[derive(Debug)]
pub struct Populated {
    map: File,
    /// The kernel knows `PAGEMAP_SCAN`.
    scans: bool,
}

/// Opened by the first process that uses it (a worker), which keeps it.
#[derive(Clone, Debug, Default)]
pub struct LazyPopulated(Rc<OnceCell<Option<Rc<Populated>>>>);

impl LazyPopulated {
    /// `None` where the kernel cannot be asked.
    #[must_use]
    pub fn get(&self) -> Option<Rc<Populated>> {
        self.0.get_or_init(|| Populated::open().map(Rc::new)).clone()
    }
}

/// Selects pages of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageFilter {
    Present,
    /// Those that exist and are no file's: anonymous memory, and what was written in private mappings of files.
    Anonymous,
}

impl Populated {
    /// Opens it; `None` where the kernel cannot be asked.
    #[must_use]
    pub fn open() -> Option<Self> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        let map = OpenOptions::new().read(true).custom_flags(flags).open("/proc/self/pagemap");
        let mut this = Self { map: map.ok()?, scans: true };
        // Whatever lies there in a container's root file system: only the kernel's own file answers.
        let here = std::ptr::from_ref(&this).addr();
        let page = super::mapping::page_len()?;
        let around = here / page * page..here / page * page + page;
        let mut found = false;
        this.scans = this.each(around.clone(), PageFilter::Present, |_| found = true).is_ok();
        if !this.scans {
            found = this.is_written(around).ok()?;
        }
        found.then_some(this)
    }

    /// True when [`Self::each`] answers.
    #[must_use]
    pub const fn scans(&self) -> bool {
        self.scans
    }

    /// Whether a page among `addresses`, which are whole pages of private mappings of files, was written.
    ///
    /// # Errors
    /// When the kernel does not say; then nothing is known.
    pub fn is_written(&self, addresses: Range<usize>) -> io::Result<bool> {
        if self.scans {
            let mut written = false;
            self.each(addresses, PageFilter::Anonymous, |_| written = true)?;
            return Ok(written);
        }
        let page = super::mapping::page_len().ok_or(io::ErrorKind::Unsupported)?;
        let pages = addresses.start / page..addresses.end.div_ceil(page);
        let mut numbers = [0; ENTRIES * size_of::<u64>()];
        for first in pages.clone().step_by(ENTRIES) {
            let count = ENTRIES.min(pages.end - first);
            let bytes = &mut numbers[..count * size_of::<u64>()];
            self.map.read_exact_at(bytes, (first * size_of::<u64>()) as u64)?;
            let written = |number: &[u8; 8]| {
                let number = u64::from_ne_bytes(*number);
                number & ENTRY_THERE != 0 && number & ENTRY_FILE == 0
            };
            if bytes.as_chunks().0.iter().any(written) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Calls `found` with each range of pages among `addresses` that are `wanted`, in ascending order, as addresses.
    ///
    /// # Errors
    /// When the kernel does not say; then nothing is known.
    pub fn each(
        &self,
        addresses: Range<usize>,
        wanted: PageFilter,
        mut found: impl FnMut(Range<usize>),
    ) -> io::Result<()> {
        if !self.scans {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let unwanted = match wanted {
            PageFilter::Present => ZEROS,
            PageFilter::Anonymous => ZEROS | FILE,
        };
        let mut regions = [PageRegion::default(); RANGES];
        let mut start = addresses.start as u64;
        let end = addresses.end as u64;
        while start < end {
            let mut question = ScanArgs {
                size: size_of::<ScanArgs>() as u64,
                flags: 0,
                start,
                end,
                walked_to: 0,
                regions: regions.as_mut_ptr().addr() as u64,
                regions_len: RANGES as u64,
                pages_max: 0,
                kinds_inverted: unwanted,
                kinds_all: unwanted,
                kinds_any: PRESENT | SWAPPED,
                kinds_told: PRESENT | SWAPPED,
            };
            // SAFETY:
            // - the kernel fills at most so many regions, which live longer than the call.
            let filled = unsafe { pagemap_scan(self.map.as_raw_fd(), &raw mut question) }?;
            let filled = usize::try_from(filled).unwrap_or(0).min(RANGES);
            for region in &regions[..filled] {
                if let (Ok(start), Ok(end)) = (region.start.try_into(), region.end.try_into()) {
                    found(start..end);
                }
            }
            if question.walked_to <= start {
                return Err(io::ErrorKind::InvalidData.into());
            }
            start = question.walked_to;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::ptr::NonNull;

    use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

    use super::*;
    use crate::mapping::page_len;
    use crate::segment::Segment;

    /// More ranges than one system call returns.
    const PAGES: usize = 4 * RANGES;

    #[test]
    fn written_pages_are_populated() {
        let page = page_len().unwrap();
        let len = NonZeroUsize::new(PAGES * page).unwrap();
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY:
        // - a fresh mapping at an address of the kernel's choice.
        let start: NonNull<u8> =
            unsafe { mmap_anonymous(None, len, access, MapFlags::MAP_PRIVATE) }.unwrap().cast();
        let Some(populated) = Populated::open() else { return };
        let there = || {
            let mut numbers = Vec::new();
            let first = start.addr().get();
            let found = populated.each(first..first + len.get(), PageFilter::Present, |range| {
                numbers.extend((range.start - first) / page..(range.end - first) / page);
            });
            found.unwrap();
            numbers
        };
        assert!(there().is_empty());
        for number in 0..PAGES {
            // SAFETY:
            // - inside the mapping, to which no reference exists.
            unsafe {
                let at = start.add(number * page);
                match number % 2 {
                    0 => at.write_volatile(7),
                    _ => assert_eq!(at.read_volatile(), 0),
                }
            }
        }
        assert_eq!(there(), (0..PAGES).step_by(2).collect::<Vec<_>>());
        // SAFETY:
        // - our mapping, not used any more.
        unsafe { munmap(start.cast(), len.get()) }.unwrap();
    }

    #[test]
    fn written_pages_of_file_mappings_are_found() {
        let page = page_len().unwrap();
        let pages = ENTRIES + 100;
        let memory = Segment::copy_of(&vec![7; pages * page]).unwrap();
        let len = NonZeroUsize::new(pages * page).unwrap();
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let map = || {
            // SAFETY:
            // - a fresh mapping at an address of the kernel's choice.
            let start =
                unsafe { mmap(None, len, access, MapFlags::MAP_PRIVATE, memory.as_fd(), 0) };
            start.unwrap().cast::<u8>()
        };
        let Some(scans) = Populated::open() else { return };
        let reads = Populated { map: scans.map.try_clone().unwrap(), scans: false };
        for number in [0, 17, ENTRIES - 1, ENTRIES, pages - 1] {
            let start = map();
            let first = start.addr().get();
            let written = |range: Range<usize>| {
                let range = first + range.start * page..first + range.end * page;
                let answers = [&scans, &reads].map(|map| map.is_written(range.clone()).unwrap());
                assert_eq!(answers[0], answers[1]);
                answers[0]
            };
            assert!(!written(0..pages));
            // SAFETY:
            // - inside the mapping, to which no reference exists.
            unsafe {
                (0..pages).for_each(|page_at| {
                    assert_eq!(start.add(page_at * page).read_volatile(), 7);
                });
                assert!(!written(0..pages), "only read");
                start.add(number * page + 5).write_volatile(8);
            }
            assert!(written(0..pages) && written(number..number + 1));
            assert!(!written(0..number) && !written(number + 1..pages));
            // SAFETY:
            // - our mapping, not used any more.
            unsafe { munmap(start.cast(), len.get()) }.unwrap();
        }
    }
}
