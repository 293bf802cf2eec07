//! Linear memories by the engine's handle. Runs in a worker.
#![expect(unsafe_code, reason = "C API")]

use std::os::fd::BorrowedFd;
use std::ptr;

use cwasi_abi::Errno;
use cwasi_host_functions::{GuestMemory, GuestPtr, OtherMemory, PagedMemory, Pages, PagesError};
use wasmedge_sys::ffi;

use super::PAGE_LEN;
use cwasi_modes::pool::WritableBacking;
use cwasi_sys::segment::Segment;
use cwasi_vm::linear_memory::{LinearMemory, RegionSource};

/// A memory of an instance that is alive as long as this is used, or none at all (null): that is empty.
///
/// Only used while the guests of its VM wait for the host: no other code reads, writes or grows it then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RawMemory(*mut ffi::WasmEdge_MemoryInstanceContext);

impl RawMemory {
    /// # Safety
    /// - `memory` is null or outlives every use, and guests run on this thread only.
    /// - Handles are copied, so the borrow checker does not see two of one memory: while a slice of [`Self::bytes_mut`]
    ///   lives, nothing of the same memory is read or written through another handle. Who uses two handles at a time,
    ///   as embedded calls do, makes them of different memories.
    pub(super) const unsafe fn new(memory: *mut ffi::WasmEdge_MemoryInstanceContext) -> Self {
        Self(memory)
    }
}

impl RawMemory {
    /// Its address and length now.
    fn now(&self) -> LinearMemory {
        // SAFETY:
        // - alive: the constructor's condition.
        let (base, len) = unsafe { extent(self.0) };
        // SAFETY:
        // - the engine reserves it as one private mapping, makes it accessible from its start on as it grows, and unmaps
        //   it as a whole.
        // - the constructor's conditions.
        unsafe { LinearMemory::new(base, len) }
    }
}

impl GuestMemory for RawMemory {
    fn bytes(&self) -> &[u8] {
        // SAFETY:
        // - alive, and no code writes or grows it meanwhile: the constructor's conditions.
        unsafe { memory_bytes(self.0) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY:
        // - as above, and `self` is borrowed uniquely; no other handle of the same memory is used meanwhile: the
        //   constructor's second condition.
        unsafe { memory_bytes_mut(self.0) }
    }
}

impl OtherMemory for RawMemory {
    fn copy_to(&self, ptr: GuestPtr, target: &mut [u8]) -> Result<(), Errno> {
        self.now().copy_to(ptr, target)
    }
}

impl PagedMemory for RawMemory {
    type Open = WritableBacking;
    type Source = RegionSource;

    fn share(
        &mut self,
        source: &RegionSource,
        pages: Pages,
    ) -> Result<WritableBacking, PagesError> {
        self.now().share(source, pages)
    }

    fn seal(
        &mut self,
        pages: Pages,
        open: WritableBacking,
        len: u32,
    ) -> Result<Segment, PagesError> {
        self.now().seal(pages, open, len)
    }

    fn map(&mut self, pages: Pages, sealed: BorrowedFd<'_>) -> Result<(), PagesError> {
        self.now().map(pages, sealed)
    }

    fn is_unchanged(&self, source: &RegionSource, pages: Pages) -> bool {
        self.now().is_unchanged(source, pages)
    }

    fn clear(&mut self, pages: Pages) -> Result<(), PagesError> {
        self.now().clear(pages)
    }

    fn phase(&self, modulus: u32) -> Option<u32> {
        self.now().phase(modulus)
    }
}

/// All of a linear memory; empty for a null pointer.
///
/// # Safety
/// The memory instance is alive, and no code writes or grows the memory for `'a`.
pub(super) unsafe fn memory_bytes<'a>(
    memory: *mut ffi::WasmEdge_MemoryInstanceContext,
) -> &'a [u8] {
    // SAFETY:
    // - passed on to the caller; a shared borrow of what could be borrowed uniquely.
    unsafe { memory_bytes_mut(memory) }
}

/// All of a linear memory, for writing; empty for a null pointer.
///
/// # Safety
/// As [`memory_bytes`], and no other code reads it for `'a`.
pub(super) unsafe fn memory_bytes_mut<'a>(
    memory: *mut ffi::WasmEdge_MemoryInstanceContext,
) -> &'a mut [u8] {
    // SAFETY:
    // - alive, says the caller.
    let (base, len) = unsafe { extent(memory) };
    if len == 0 {
        return &mut [];
    }
    // SAFETY:
    // - the engine backs `len` bytes from `base` on, readable and writable.
    // - the caller guarantees that no other code touches them for `'a`; the base does not move.
    unsafe { std::slice::from_raw_parts_mut(base, len) }
}

/// Start and length of a linear memory; length 0 for a null pointer.
///
/// # Safety
/// The memory instance is alive.
pub(super) unsafe fn extent(memory: *mut ffi::WasmEdge_MemoryInstanceContext) -> (*mut u8, usize) {
    const NOTHING: (*mut u8, usize) = (ptr::null_mut(), 0);
    if memory.is_null() {
        return NOTHING;
    }
    // SAFETY:
    // - alive, says the caller.
    let pages = unsafe { page_count(memory) };
    let Ok(len) = usize::try_from(u64::from(pages) * PAGE_LEN) else {
        return NOTHING;
    };
    // The engine takes 32-bit lengths, which is one byte less than the largest memory.
    let asked = u32::try_from(len).unwrap_or(u32::MAX);
    // SAFETY:
    // - alive, says the caller.
    let base = unsafe { ffi::WasmEdge_MemoryInstanceGetPointer(memory, 0, asked) };
    if base.is_null() { NOTHING } else { (base, len) }
}

/// Wasm pages of a linear memory; 0 for a null pointer.
///
/// # Safety
/// The memory instance is alive, if it is one.
pub(super) unsafe fn pages_of(memory: *const ffi::WasmEdge_MemoryInstanceContext) -> u32 {
    if memory.is_null() {
        return 0;
    }
    // SAFETY:
    // - alive, says the caller.
    unsafe { page_count(memory) }
}

/// Wasm pages of a linear memory.
///
/// # Safety
/// The memory instance is alive.
pub(super) unsafe fn page_count(memory: *const ffi::WasmEdge_MemoryInstanceContext) -> u32 {
    // SAFETY:
    // - alive, says the caller.
    unsafe { ffi::WasmEdge_MemoryInstanceGetPageSize(memory) }
}
