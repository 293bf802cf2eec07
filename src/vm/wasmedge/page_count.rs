//! Reduces the number of pages of a linear memory, which the engine can only grow. Runs in a worker.
//!
//! The engine keeps the number in the memory's type, and returns a pointer to that for reading. A trial with a memory
//! of our own finds the number's offset, once per process. If the trial fails, grown memories stay as they are.
#![expect(unsafe_code, reason = "C API")]

use std::ptr::NonNull;

use wasmedge_sys::ffi;

use super::VERSION;
use super::handles::{MemoryInstance, MemoryType};

/// Pages of the trial memory: a number that does not occur near it.
const TRIED: u32 = 3;
/// Its limit.
const TRIED_MAX: u32 = 0x5a17;
/// Steps into a memory's type in which the number is searched; the type is at least that long.
const STEPS: usize = 3;

/// Offset of the number of pages in a memory's type, in steps of four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageCount(usize);

impl PageCount {
    /// Finds it; `None` for an unknown engine.
    pub(super) fn find() -> Option<Self> {
        if super::version() != VERSION {
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
        // Exactly that number follows the memory's growth, and the memory follows the number.
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

    /// Shrinks `memory`, which has at least `pages` pages, to `pages`.
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
