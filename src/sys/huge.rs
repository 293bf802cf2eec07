//! Huge pages for fresh memfds.
//!
//! `MADV_COLLAPSE` replaces one small page by a huge page where the kernel allows it, also with `shmem_enabled=never`.
//! In a fresh memfd there is nothing to copy, and filling it afterwards costs less than the faults of small pages
//! would: 11 instead of 80 ms of processor time for 100 MiB.
#![expect(unsafe_code, reason = "a mapping for as long as it takes")]

use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// `MADV_COLLAPSE` of Linux 6.1, which the C library's headers may lack.
const MADV_COLLAPSE: libc::c_int = 25;
/// Length of a huge page in bytes.
pub const HUGE_PAGE: usize = cwasi_abi::HUGE_PAGE as usize;
/// Most bytes of one memfd that get huge pages at once, whether they will be filled or not.
pub const EAGER_MAX: usize = 256 << 20;

/// This kernel has no huge pages for memfds: it is not asked again.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// True if this kernel gives memfds huge pages: tries it with one, whatever it answered before.
#[must_use]
pub fn are_available() -> bool {
    let made = memfd_create(c"cwasi-huge-page", MFdFlags::MFD_CLOEXEC);
    let Ok(file) = made.map(File::from) else { return false };
    let len = const { NonZeroUsize::new(HUGE_PAGE).expect("a constant above 0") };
    file.set_len(HUGE_PAGE as u64).is_ok()
        && Aligned::of(&file, len).is_some_and(|mapped| mapped.collapse(HUGE_PAGE).is_ok())
}

/// Backs the whole huge pages of a fresh memfd of `len` bytes by such; its bytes stay zero. Where there are none
/// (any more), the rest gets small pages when it is written to.
pub(super) fn back(file: &impl AsFd, len: u64) {
    let whole = usize::try_from(len).unwrap_or(usize::MAX).min(EAGER_MAX);
    let Some(whole) = NonZeroUsize::new(whole - whole % HUGE_PAGE) else { return };
    if REFUSED.load(Ordering::Relaxed) {
        return;
    }
    // Small pages do as well.
    if let Some(mapped) = Aligned::of(file, whole) {
        mapped.take_huge_pages();
    }
}

/// The first bytes of a file, mapped where a huge page may begin.
#[derive(Debug)]
pub(super) struct Aligned {
    reserved: NonNull<std::ffi::c_void>,
    reserved_len: usize,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY:
// - a mapping belongs to the process; the owner of this value writes there.
unsafe impl Send for Aligned {}

impl Aligned {
    /// `len` bytes, readable, writable and shared with all mappings of the file; `None` when there is no room.
    pub(super) fn of(file: &impl AsFd, len: NonZeroUsize) -> Option<Self> {
        let reserved_len = len.checked_add(HUGE_PAGE)?;
        let nothing = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY:
        // - a fresh mapping at an address of the kernel's choice.
        let reserved =
            unsafe { mmap_anonymous(None, reserved_len, ProtFlags::PROT_NONE, nothing) }.ok()?;
        let skipped = reserved.addr().get().next_multiple_of(HUGE_PAGE) - reserved.addr().get();
        // SAFETY:
        // - at most one huge page, which was reserved in addition.
        let start = unsafe { reserved.byte_add(skipped) };
        let mapped = Self {
            reserved,
            reserved_len: reserved_len.get(),
            start: start.cast(),
            len: len.get(),
        };
        let shared = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY:
        // - inside what was reserved, where nothing is yet.
        unsafe { mmap(Some(start.addr()), len, protection, shared, file, 0) }.ok()?;
        Some(mapped)
    }

    /// Where the file's first byte is.
    pub(super) const fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Backs the whole huge pages of a fresh file by such, at most [`EAGER_MAX`] bytes.
    pub(super) fn take_huge_pages(&self) {
        let whole = self.len.min(EAGER_MAX);
        let whole = whole - whole % HUGE_PAGE;
        if whole > 0
            && !REFUSED.load(Ordering::Relaxed)
            && self.collapse(whole) == Err(Errno::EINVAL)
        {
            REFUSED.store(true, Ordering::Relaxed);
        }
    }

    /// Asks for huge pages in the first `len` bytes. The file has no other writer yet.
    fn collapse(&self, len: usize) -> nix::Result<()> {
        // There must be a page to put a huge one in the place of.
        for at in (0..len).step_by(HUGE_PAGE) {
            // SAFETY:
            // - inside the mapping, to which no reference exists. A fresh memfd has all of its length, and where memory
            //   runs out this process is ended, as it is by any write.
            unsafe { self.start.byte_add(at).write_volatile(0) };
        }
        // SAFETY:
        // - changes what backs our mapping, not its contents.
        let refused = unsafe { libc::madvise(self.start.as_ptr().cast(), len, MADV_COLLAPSE) };
        Errno::result(refused).map(drop)
    }
}

impl Drop for Aligned {
    fn drop(&mut self) {
        // SAFETY:
        // - our mapping, and no reference to it is left.
        let _unmapped = unsafe { munmap(self.reserved, self.reserved_len) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use nix::sys::stat::fstat;

    use super::*;

    fn memfd(len: usize) -> File {
        let file = File::from(memfd_create(c"t", MFdFlags::MFD_CLOEXEC).unwrap());
        file.set_len(len as u64).unwrap();
        file
    }

    #[test]
    fn fresh_memfds_get_zeroed_huge_pages() {
        let huge = are_available();
        for (len, whole) in [(1, 0), (HUGE_PAGE - 1, 0), (HUGE_PAGE, 1), (3 * HUGE_PAGE + 5, 3)] {
            let file = memfd(len);
            back(&file, len as u64);
            let taken = usize::try_from(fstat(&file).unwrap().st_blocks * 512).unwrap();
            if huge {
                assert_eq!(taken, whole * HUGE_PAGE, "{len}");
            }
            let mut bytes = vec![1; len];
            file.read_exact_at(&mut bytes, 0).unwrap();
            assert!(bytes.iter().all(|byte| *byte == 0), "{len}");
        }
    }

    #[test]
    fn eager_huge_pages_are_bounded() {
        let len = EAGER_MAX as u64 * 4;
        let file = memfd(0);
        file.set_len(len).unwrap();
        back(&file, len);
        assert!(fstat(&file).unwrap().st_blocks * 512 <= i64::try_from(EAGER_MAX).unwrap());
    }
}
