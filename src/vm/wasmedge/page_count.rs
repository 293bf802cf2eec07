//! The number of pages of a linear memory, made smaller again: the engine can only grow one.
//!
//! The engine keeps the number in the memory's type, which it hands out to be read. Where in it is found out by a
//! memory of our own, once; where that does not go as expected, memories that grew stay as they are.
#![expect(unsafe_code, reason = "C API")]

use std::ptr::NonNull;

use wasmedge_sys::ffi;

use super::handles::{MemoryInstance, MemoryType};
use crate::vm::fingerprint::ENGINE_VERSION;

/// Pages of the memory that is tried; no other number near it is the same.
const TRIED: u32 = 3;
/// Its limit.
const TRIED_MAX: u32 = 0x5a17;
/// How far into a memory's type the number is looked for, in steps of its own length: the type is that long at least.
const STEPS: usize = 3;

/// Where in a memory's type its number of pages is, in steps of four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageCount(usize);

impl PageCount {
    /// Finds it; `None` when this engine is another than the one that is known.
    pub(super) fn find() -> Option<Self> {
        if super::version() != ENGINE_VERSION {
            return None;
        }
        let ty = MemoryType::new(TRIED, TRIED_MAX).ok()?;
        let memory = MemoryInstance::new(&ty).ok()?;
        let numbers = || {
            let numbers = place(memory.raw())?;
            // SAFETY:
            // - the type is longer than that: flags and two numbers.
            Some([0, 1, 2].map(|step| unsafe { numbers.add(step).read() }))
        };
        let before = numbers()?;
        let mut found = (0..STEPS).filter(|step| before[*step] == TRIED);
        let (Some(step), None) = (found.next(), found.next()) else { return None };
        // Exactly that one number follows the memory's growth, and the memory follows the number.
        let this = Self(step);
        memory.grow(1).ok()?;
        let mut grown = before;
        grown[step] = TRIED + 1;
        (numbers()? == grown).then_some(())?;
        // SAFETY:
        // - our own memory; what is behind its first pages is not used any more.
        unsafe { this.set(memory.raw(), TRIED) }?;
        (memory.pages() == TRIED && numbers()? == before).then_some(this)
    }

    /// Has `memory` end after its first `pages`, of which it has at least so many.
    ///
    /// # Safety
    /// - The memory instance is alive, of the engine that this was found in, and no guest runs.
    /// - What follows these pages is not accessible, or is made so before a guest runs.
    pub(super) unsafe fn set(
        self,
        memory: *mut ffi::WasmEdge_MemoryInstanceContext,
        pages: u32,
    ) -> Option<()> {
        // SAFETY:
        // - the number's place, as `find` has tried it; the object is the engine's own, which is not constant.
        unsafe { place(memory)?.add(self.0).write(pages) };
        Some(())
    }
}

/// The start of a live memory's type.
fn place(memory: *mut ffi::WasmEdge_MemoryInstanceContext) -> Option<NonNull<u32>> {
    // SAFETY:
    // - alive, say the callers; the type is part of it.
    let ty = unsafe { ffi::WasmEdge_MemoryInstanceGetMemoryType(memory) };
    let place = NonNull::new(ty.cast_mut().cast::<u32>())?;
    place.is_aligned().then_some(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memory_grows_again_after_it_was_made_smaller() {
        let place = PageCount::find().unwrap();
        let memory = MemoryInstance::new(&MemoryType::new(2, 6).unwrap()).unwrap();
        for _ in 0..3 {
            memory.grow(4).unwrap();
            assert!(memory.grow(1).is_err());
            // SAFETY:
            // - our own memory, in which no guest runs.
            unsafe { place.set(memory.raw(), 2) }.unwrap();
            assert_eq!(memory.pages(), 2);
        }
    }
}
