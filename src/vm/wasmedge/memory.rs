//! Linear memories by the engine's handle.
#![expect(unsafe_code, reason = "C API")]

use cwasi_abi::Errno;
use cwasi_host_functions::{GuestMemory, GuestPtr, OtherMemory};
use wasmedge_sys::ffi;

use super::PAGE_LEN;

/// A memory of an instance that is alive as long as this is used, or none at all (null): that is empty.
///
/// Only used while the guests of its VM wait for the host: nobody else reads, writes or grows it then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RawMemory(*mut ffi::WasmEdge_MemoryInstanceContext);

impl RawMemory {
    /// # Safety
    /// `memory` is null or outlives every use, and guests run on this thread only.
    pub(super) const unsafe fn new(memory: *mut ffi::WasmEdge_MemoryInstanceContext) -> Self {
        Self(memory)
    }
}

impl GuestMemory for RawMemory {
    fn bytes(&self) -> &[u8] {
        // SAFETY:
        // - alive, and nobody writes or grows it meanwhile: the constructor's conditions.
        unsafe { memory_bytes(self.0) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY:
        // - as above, and `self` is borrowed uniquely; whoever uses two handles sees to it that they name
        //   different memories.
        unsafe { memory_bytes_mut(self.0) }
    }
}

impl OtherMemory for RawMemory {
    fn copy_to(&self, ptr: GuestPtr, target: &mut [u8]) -> Result<(), Errno> {
        let len = u32::try_from(target.len()).map_err(|_| Errno::BadPointer)?;
        target.copy_from_slice(self.slice(ptr, len)?);
        Ok(())
    }
}

/// All of a linear memory; empty for a null pointer.
///
/// # Safety
/// The memory instance is alive, and nobody writes or grows the memory for `'a`.
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
/// As [`memory_bytes`], and nobody reads it for `'a`.
pub(super) unsafe fn memory_bytes_mut<'a>(
    memory: *mut ffi::WasmEdge_MemoryInstanceContext,
) -> &'a mut [u8] {
    if memory.is_null() {
        return &mut [];
    }
    // SAFETY:
    // - alive, says the caller.
    let pages = unsafe { ffi::WasmEdge_MemoryInstanceGetPageSize(memory) };
    let Ok(len) = usize::try_from(u64::from(pages) * PAGE_LEN) else {
        return &mut [];
    };
    // The engine takes 32-bit lengths, which is one byte less than the largest memory.
    let asked = u32::try_from(len).unwrap_or(u32::MAX);
    // SAFETY:
    // - alive, says the caller.
    let base = unsafe { ffi::WasmEdge_MemoryInstanceGetPointer(memory, 0, asked) };
    if base.is_null() || len == 0 {
        return &mut [];
    }
    // SAFETY:
    // - the engine backs `pages` pages from `base` on, readable and writable.
    // - the caller guarantees that nobody else touches them for `'a`; the base does not move.
    unsafe { std::slice::from_raw_parts_mut(base, len) }
}
