//! Which pages of this process are there at all: in memory, or swapped out. Every other page is zero when it is read.
//!
//! Asks the kernel by `PAGEMAP_SCAN` (Linux 6.7 and later), which says it of ranges and in one step; where that is
//! missing, or there is no `/proc`, callers do without.
#![expect(unsafe_code, reason = "an ioctl that fills memory")]

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt as _;

/// Ranges that one question brings; more are asked for again.
const RANGES: usize = 32;
/// Kinds of pages (`linux/fs.h`).
const PRESENT: u64 = 1 << 3;
const SWAPPED: u64 = 1 << 4;
/// The kernel's one page of zeros: only ever read.
const ZEROS: u64 = 1 << 5;

/// `struct page_region`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Region {
    start: u64,
    end: u64,
    kinds: u64,
}

/// `struct pm_scan_arg`.
#[derive(Debug)]
#[repr(C)]
struct Question {
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
    Question
);

/// This process' page map. A child of it must not use it: it goes on being the parent's.
#[derive(Debug)]
pub struct Populated(File);

impl Populated {
    /// Opens it; `None` where the kernel cannot be asked.
    #[must_use]
    pub fn open() -> Option<Self> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        let map = OpenOptions::new().read(true).custom_flags(flags).open("/proc/self/pagemap");
        let this = Self(map.ok()?);
        // Whatever lies there in a container's root file system: only the kernel's own file answers.
        let here = std::ptr::from_ref(&this).addr();
        let page = super::mapping::page_len()?;
        let around = here / page * page;
        let mut found = false;
        this.each(around..around + page, |_| found = true).ok()?;
        found.then_some(this)
    }

    /// Calls `found` with each range of pages among `addresses` that are there, in ascending order, as addresses.
    ///
    /// # Errors
    /// When the kernel does not say; then nothing is known.
    pub fn each(
        &self,
        addresses: Range<usize>,
        mut found: impl FnMut(Range<usize>),
    ) -> io::Result<()> {
        let mut regions = [Region::default(); RANGES];
        let mut start = addresses.start as u64;
        let end = addresses.end as u64;
        while start < end {
            let mut question = Question {
                size: size_of::<Question>() as u64,
                flags: 0,
                start,
                end,
                walked_to: 0,
                regions: regions.as_mut_ptr().addr() as u64,
                regions_len: RANGES as u64,
                pages_max: 0,
                kinds_inverted: ZEROS,
                kinds_all: ZEROS,
                kinds_any: PRESENT | SWAPPED,
                kinds_told: PRESENT | SWAPPED,
            };
            // SAFETY:
            // - the kernel fills at most so many regions, which live longer than the call.
            let filled = unsafe { pagemap_scan(self.0.as_raw_fd(), &raw mut question) }?;
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

    use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    use super::*;
    use crate::sys::mapping::page_len;

    /// More ranges than one question brings.
    const PAGES: usize = 4 * RANGES;

    #[test]
    fn what_was_written_is_there_and_what_was_read_is_not() {
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
            let found = populated.each(first..first + len.get(), |range| {
                numbers.extend((range.start - first) / page..(range.end - first) / page);
            });
            found.unwrap();
            numbers
        };
        assert!(there().is_empty());
        for number in 0..PAGES {
            // SAFETY:
            // - inside the mapping, to which nobody refers.
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
}
