//! Whole pages of a linear memory, and the trait of a memory with replaceable pages. Runs in a worker.
//!
//! Pure arithmetic over offsets; the engine's side replaces pages.

use std::fmt::Debug;
use std::os::fd::BorrowedFd;

use cwasi_abi::{Errno, REGION_PAGE};
use cwasi_sys::segment::Segment;

use crate::{GuestMemory, GuestPtr};

/// One past the last offset of the largest linear memory.
const MEMORY_END: u64 = 1 << 32;

/// At least one whole page of a linear memory of any size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages {
    start: u32,
    len: u32,
}

impl Pages {
    /// The block of `len` bytes at `ptr`.
    ///
    /// # Errors
    /// [`Errno::InvalidArgument`] unless both are multiples of [`REGION_PAGE`] and `len` is not 0;
    /// [`Errno::BadPointer`] when it ends beyond every memory.
    pub fn new(ptr: GuestPtr, len: u32) -> Result<Self, Errno> {
        let GuestPtr(start) = ptr;
        if len == 0 || !start.is_multiple_of(REGION_PAGE) || !len.is_multiple_of(REGION_PAGE) {
            return Err(Errno::InvalidArgument);
        }
        if u64::from(start) + u64::from(len) > MEMORY_END {
            return Err(Errno::BadPointer);
        }
        Ok(Self { start, len })
    }

    /// The pages of `len` bytes from `ptr` on; `None` if `ptr` is not the start of a page, there are no bytes, or
    /// they end beyond every memory.
    #[must_use]
    pub fn holding(ptr: GuestPtr, len: u64) -> Option<Self> {
        let rounded = len.checked_next_multiple_of(u64::from(REGION_PAGE))?;
        Self::new(ptr, u32::try_from(rounded).ok()?).ok()
    }

    /// The pages of `len` bytes from `offset` on, counted from the first of these; `None` unless all of them are
    /// among these.
    #[must_use]
    pub fn inside(self, offset: u32, len: u64) -> Option<Self> {
        let start = self.start.checked_add(offset)?;
        let pages = Self::holding(GuestPtr(start), len)?;
        let end = u64::from(offset) + u64::from(pages.len);
        (end <= u64::from(self.len)).then_some(pages)
    }

    /// Offset of the first byte.
    #[must_use]
    pub const fn start(self) -> GuestPtr {
        GuestPtr(self.start)
    }

    /// Length in bytes.
    #[must_use]
    pub const fn byte_len(self) -> u32 {
        self.len
    }

    /// True when they share a page with `other`.
    #[must_use]
    pub fn overlap(self, other: Self) -> bool {
        let end = |pages: Self| u64::from(pages.start) + u64::from(pages.len);
        u64::from(self.start) < end(other) && u64::from(other.start) < end(self)
    }

    /// The pages behind the first `len` bytes, `len` being at most [`Self::byte_len`]; `None` when there are none.
    #[must_use]
    pub fn behind(self, len: u32) -> Option<Self> {
        let head = len.checked_next_multiple_of(REGION_PAGE)?;
        let rest = self.len.checked_sub(head).filter(|rest| *rest > 0)?;
        Some(Self { start: self.start.checked_add(head)?, len: rest })
    }
}

/// Pages could not be replaced. The bytes are unchanged, or zero.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PagesError {
    /// Impossible on this host.
    #[error("this host's pages do not have {REGION_PAGE} bytes")]
    Unsupported,
    /// The system refused.
    #[error("{reason}")]
    Failed {
        /// For the host's log.
        reason: String,
    },
}

/// A linear memory whose pages shared memory can back.
///
/// The pages that are passed lie inside the memory. No slice of it is alive during any of these calls.
pub trait PagedMemory: GuestMemory {
    /// Shared memory that the guest still writes through its pages.
    type Open: Debug;
    /// Source of shared memory.
    type Source: Default + Debug;

    /// Backs `pages` with shared memory; they become zero.
    ///
    /// # Errors
    /// When the system refuses.
    fn share(&mut self, source: &Self::Source, pages: Pages) -> Result<Self::Open, PagesError>;

    /// Ends [`Self::share`]: `pages` become the guest's own again, the first `len` bytes unchanged and the others
    /// zero. No guest can change the segment of `len` bytes from here on.
    ///
    /// # Errors
    /// When the system refuses; the first `len` bytes are unchanged.
    fn seal(&mut self, pages: Pages, open: Self::Open, len: u32) -> Result<Segment, PagesError>;

    /// Maps shared memory, which is at least as long as `pages`, in their place. The guest's writes stay private.
    ///
    /// # Errors
    /// When the system refuses.
    fn map(&mut self, pages: Pages, sealed: BorrowedFd<'_>) -> Result<(), PagesError>;

    /// True if the guest has changed nothing in `pages` since [`Self::map`]; false also if the host cannot tell.
    fn is_unchanged(&self, source: &Self::Source, pages: Pages) -> bool;

    /// Makes `pages` ordinary, zeroed memory.
    ///
    /// # Errors
    /// When the system refuses.
    fn clear(&mut self, pages: Pages) -> Result<(), PagesError>;

    /// Host address of offset 0 modulo `modulus`; `None` if no page can be replaced.
    fn phase(&self, modulus: u32) -> Option<u32>;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAGE: u32 = REGION_PAGE;

    #[test]
    fn only_whole_pages_inside_4_gib_are_pages() {
        let last = u32::MAX - PAGE + 1;
        for (ptr, len, expected) in [
            (0, PAGE, Ok(())),
            (last, PAGE, Ok(())),
            (PAGE, last, Ok(())),
            (0, 0, Err(Errno::InvalidArgument)),
            (1, PAGE, Err(Errno::InvalidArgument)),
            (PAGE, 1, Err(Errno::InvalidArgument)),
            (last, 2 * PAGE, Err(Errno::BadPointer)),
            (2 * PAGE, last, Err(Errno::BadPointer)),
            (u32::MAX, u32::MAX, Err(Errno::InvalidArgument)),
        ] {
            assert_eq!(Pages::new(GuestPtr(ptr), len).map(|_| ()), expected, "{ptr} {len}");
        }
    }

    fn pages() -> impl Strategy<Value = Pages> {
        (0_u32..40, 1_u32..40)
            .prop_map(|(start, len)| Pages { start: start * PAGE, len: len * PAGE })
    }

    fn set(pages: Pages) -> std::collections::BTreeSet<u32> {
        (pages.start / PAGE..(pages.start + pages.len) / PAGE).collect()
    }

    proptest! {
        #[test]
        fn overlap_is_a_common_page(a in pages(), b in pages()) {
            prop_assert_eq!(a.overlap(b), !set(a).is_disjoint(&set(b)));
            prop_assert_eq!(a.overlap(b), b.overlap(a));
        }

        #[test]
        fn head_and_rest_are_all_pages(all in pages(), len: u32) {
            let len = len % (all.len + 1);
            let head = Pages::holding(all.start(), u64::from(len)).map(set).unwrap_or_default();
            let rest = all.behind(len).map(set).unwrap_or_default();
            prop_assert!(head.is_disjoint(&rest));
            prop_assert_eq!(&head | &rest, set(all));
        }

        #[test]
        fn holding_pages_are_the_fewest_that_hold(ptr: u32, len: u64, small: bool) {
            let len = if small { len % 100_000 } else { len };
            let start = ptr - ptr % PAGE;
            if let Some(pages) = Pages::holding(GuestPtr(start), len) {
                prop_assert!(u64::from(pages.len) >= len && u64::from(pages.len - PAGE) < len);
                prop_assert_eq!(pages.start, start);
            } else {
                let end = u64::from(start).saturating_add(len);
                prop_assert!(len == 0 || end > MEMORY_END - u64::from(PAGE));
            }
            prop_assert!(ptr == start || Pages::holding(GuestPtr(ptr), len).is_none());
        }

        #[test]
        fn pages_inside_are_a_part(all in pages(), offset in 0..45 * PAGE, len in 0..200_000_u64, aligned: bool) {
            let offset = if aligned { offset - offset % PAGE } else { offset };
            let end = u64::from(offset) + len.next_multiple_of(u64::from(PAGE));
            let fits = offset % PAGE == 0 && len > 0 && end <= u64::from(all.len);
            let inside = all.inside(offset, len);
            prop_assert_eq!(inside.is_some(), fits);
            if let Some(inside) = inside {
                prop_assert!(set(inside).is_subset(&set(all)));
                prop_assert_eq!(inside.start, all.start + offset);
            }
        }

        #[test]
        fn any_arguments_are_pages_or_an_errno(ptr: u32, len: u32) {
            if let Ok(pages) = Pages::new(GuestPtr(ptr), len) {
                prop_assert!(pages.start % PAGE == 0 && pages.len % PAGE == 0 && pages.len > 0);
            }
        }
    }
}
