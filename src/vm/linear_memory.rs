//! A linear memory by its address, for the host functions of any engine. Runs in a worker.
#![expect(unsafe_code, reason = "linear memory belongs to the engine")]

use std::fmt::Debug;
use std::os::fd::BorrowedFd;

use cwasi_abi::{Errno, REGION_PAGE};
use cwasi_host_functions::{GuestMemory, GuestPtr, OtherMemory, PagedMemory, Pages, PagesError};
use cwasi_modes::pool::{SegmentPool, WritableBacking};
use cwasi_sys::mapping::{MappingError, Window, page_len};
use cwasi_sys::populated::{LazyPopulated, Populated};
use cwasi_sys::segment::Segment;

/// A memory that calls between modules of one VM can name: a handle that is copied.
pub trait VmMemory:
    PagedMemory<Open = WritableBacking, Source = RegionSource> + OtherMemory + Copy + Debug + 'static
{
}

impl<M> VmMemory for M where
    M: PagedMemory<Open = WritableBacking, Source = RegionSource>
        + OtherMemory
        + Copy
        + Debug
        + 'static
{
}

/// Regions' access to their process.
#[derive(Clone, Debug, Default)]
pub struct RegionSource {
    /// Source of their memory; `None`: a new memfd for each.
    pub pool: Option<SegmentPool>,
    /// Reports which pages guests have changed.
    pub populated: LazyPopulated,
}

/// Address and length of a linear memory, as they were when a guest called the host.
///
/// A memory neither moves nor shrinks, so an older handle still names its first bytes. Two handles are equal if they
/// name the same memory.
#[derive(Clone, Copy, Debug)]
pub struct LinearMemory {
    base: *mut u8,
    len: usize,
    /// No page that begins before it can be replaced.
    image_end: u64,
}

impl LinearMemory {
    /// No memory: it is empty.
    pub const NONE: Self = Self { base: std::ptr::null_mut(), len: 0, image_end: 0 };

    /// # Safety
    /// - `len` bytes from `base` on are readable and writable, do not move, and outlive every use; guests run on this
    ///   thread only, and wait for the host during each use.
    /// - They lie in one private mapping of the engine, which is made accessible from its start on as it grows, and
    ///   unmapped as a whole.
    /// - Handles are copied, so the borrow checker does not see two of one memory: while a slice of
    ///   [`GuestMemory::bytes_mut`] lives, nothing of the same memory is used through another handle. Who uses two
    ///   handles at a time, as embedded calls do, makes them of different memories.
    #[must_use]
    pub const unsafe fn new(base: *mut u8, len: usize) -> Self {
        Self { base, len, image_end: 0 }
    }

    /// Of a module that initializes bytes before `end`, which the engine restores for the next instance: the pages
    /// there have to stay where they are.
    #[must_use]
    pub const fn with_image(self, end: u64) -> Self {
        Self { image_end: end, ..self }
    }

    fn can_replace(&self, pages: Pages) -> Result<(), PagesError> {
        if u64::from(pages.start().0) < self.image_end {
            return Err(PagesError::Unsupported);
        }
        Ok(())
    }

    /// Host addresses of `pages`.
    fn window(&mut self, pages: Pages) -> Result<Window, PagesError> {
        if page_len() != usize::try_from(REGION_PAGE).ok() {
            return Err(PagesError::Unsupported);
        }
        let (start, len) = (pages.start().0 as usize, pages.byte_len() as usize);
        if start.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(PagesError::Failed { reason: "pages outside linear memory".to_owned() });
        }
        // SAFETY:
        // - inside linear memory, one private mapping: the constructor's condition.
        // - guests wait, and the caller keeps no slice: the condition of `PagedMemory`.
        unsafe { Window::new(self.base.add(start), len) }.ok_or(PagesError::Unsupported)
    }
}

impl PartialEq for LinearMemory {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.base, other.base)
    }
}

impl GuestMemory for LinearMemory {
    fn bytes(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY:
        // - alive, and no code writes or grows it meanwhile: the constructor's conditions.
        unsafe { std::slice::from_raw_parts(self.base, self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY:
        // - as above, and `self` is borrowed uniquely; no other handle of the same memory is used meanwhile: the
        //   constructor's last condition.
        unsafe { std::slice::from_raw_parts_mut(self.base, self.len) }
    }
}

impl OtherMemory for LinearMemory {
    fn copy_to(&self, ptr: GuestPtr, target: &mut [u8]) -> Result<(), Errno> {
        let len = u32::try_from(target.len()).map_err(|_| Errno::BadPointer)?;
        target.copy_from_slice(self.slice(ptr, len)?);
        Ok(())
    }
}

impl PagedMemory for LinearMemory {
    type Open = WritableBacking;
    type Source = RegionSource;

    fn share(
        &mut self,
        source: &RegionSource,
        pages: Pages,
    ) -> Result<WritableBacking, PagesError> {
        self.can_replace(pages)?;
        WritableBacking::share(&mut self.window(pages)?, source.pool.as_ref()).map_err(failed)
    }

    fn seal(
        &mut self,
        pages: Pages,
        open: WritableBacking,
        len: u32,
    ) -> Result<Segment, PagesError> {
        open.seal(&mut self.window(pages)?, len as usize).map_err(failed)
    }

    fn map(&mut self, pages: Pages, sealed: BorrowedFd<'_>) -> Result<(), PagesError> {
        self.can_replace(pages)?;
        self.window(pages)?.map_sealed(sealed).map_err(failed)
    }

    fn is_unchanged(&self, source: &RegionSource, pages: Pages) -> bool {
        let start = self.base.addr() + pages.start().0 as usize;
        let written = |map: &Populated| map.is_written(start..start + pages.byte_len() as usize);
        source.populated.get().is_some_and(|map| matches!(written(&map), Ok(false)))
    }

    fn clear(&mut self, pages: Pages) -> Result<(), PagesError> {
        self.window(pages)?.clear().map_err(failed)
    }

    fn phase(&self, modulus: u32) -> Option<u32> {
        if page_len() != usize::try_from(REGION_PAGE).ok() {
            return None;
        }
        let phase = self.base.addr().checked_rem(modulus as usize)?;
        if self.len == 0 { None } else { u32::try_from(phase).ok() }
    }
}

fn failed(error: MappingError) -> PagesError {
    PagesError::Failed { reason: error.to_string() }
}
