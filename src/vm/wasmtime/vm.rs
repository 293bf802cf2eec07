//! The data of one VM in wasmtime's store: a function and its embedded modules. Runs in a worker.
#![expect(unsafe_code, reason = "linear memory belongs to the engine")]

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use cwasi_abi::export;
use cwasi_components::{EmbeddedComponent, MemoryLimit};
use cwasi_vm::linear_memory::LinearMemory;
use cwasi_wasi::Wasi;
use wasmtime::{AsContext, Caller, Extern, Func, Memory, TypedFunc};

use super::binding::Binding;
use super::links::Links;

pub(super) struct VmData {
    pub(super) binding: Rc<Binding>,
    /// The embedded modules in their order, then the function itself.
    pub(super) parts: Vec<PartData>,
    /// The functions behind the numbers of linked calls.
    pub(super) linked: Vec<Func>,
    /// `None` if all linked calls go through the host, or there are none.
    pub(super) links: Option<Rc<RefCell<Links>>>,
    pub(super) limit: MemoryLimit,
}

/// One module's instance in a VM.
pub(super) struct PartData {
    /// `None` before it exists, and without one.
    pub(super) memory: Option<Memory>,
    /// Behind the last byte that the module initializes.
    pub(super) image_end: u64,
    pub(super) wasi: Wasi,
    /// Of an embedded module that can be dispatched to.
    pub(super) callee: Option<Rc<Callee>>,
    /// Of an embedded component, which has a store of its own.
    pub(super) component: Option<Rc<RefCell<EmbeddedComponent>>>,
}

/// What a dispatch calls in an embedded module.
pub(super) struct Callee {
    pub(super) alloc: TypedFunc<(u32, u32), u32>,
    pub(super) handle: TypedFunc<(u32, u32, u32), i32>,
    pub(super) free: Option<TypedFunc<(u32, u32, u32), ()>>,
    /// The global with the address for its response.
    pub(super) response: Option<u32>,
    /// The blocks of its last call, which it gets back at the next one: its response may lie there until then.
    pub(super) asked: Cell<CalleeBlocks>,
}

/// Blocks that a callee has allocated; address 0 = none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CalleeBlocks {
    pub(super) response: u32,
    pub(super) payload: u32,
    pub(super) len: u32,
    pub(super) align: u32,
}

impl VmData {
    /// The memory of a part as it is now.
    pub(super) fn memory(&self, store: impl AsContext<Data = Self>, part: usize) -> LinearMemory {
        let Some(PartData { memory: Some(memory), image_end, .. }) = self.parts.get(part) else {
            return LinearMemory::NONE;
        };
        linear(*memory, store, *image_end)
    }
}

/// A memory by its address and length now.
pub(super) fn linear(
    memory: Memory,
    store: impl AsContext<Data = VmData>,
    image_end: u64,
) -> LinearMemory {
    let store = &store.as_context();
    // SAFETY:
    // - wasmtime reserves it as one private mapping that does not move (the settings reserve 4 GiB), makes it accessible
    //   from its start on as it grows, and keeps it as long as the store.
    // - the handle is used while guests of this store wait for the host, or in the binding of the same VM.
    unsafe { LinearMemory::new(memory.data_ptr(store), memory.data_size(store)) }
        .with_image(image_end)
}

/// The memory of the calling part.
pub(super) fn memory_of(caller: &mut Caller<'_, VmData>, part: usize) -> LinearMemory {
    let Some(PartData { memory, image_end, .. }) = caller.data().parts.get(part) else {
        return LinearMemory::NONE;
    };
    let (known, image_end) = (*memory, *image_end);
    let memory = match known {
        Some(memory) => memory,
        None => {
            let Some(Extern::Memory(memory)) = caller.get_export(export::MEMORY) else {
                return LinearMemory::NONE;
            };
            // The module's start function has called.
            caller.data_mut().parts[part].memory = Some(memory);
            memory
        }
    };
    let bytes = memory.data_mut(&mut *caller);
    // SAFETY:
    // - as in `linear`.
    unsafe { LinearMemory::new(bytes.as_mut_ptr(), bytes.len()) }.with_image(image_end)
}

/// Tells the binding the function's own memory as it is now: it may have grown.
pub(super) fn refresh_own(caller: &mut Caller<'_, VmData>) {
    let root = caller.data().parts.len().saturating_sub(1);
    let own = memory_of(caller, root);
    caller.data().binding.embedded.borrow_mut().set_caller(own);
}

/// Tells the binding the memory of a callee that has run.
pub(super) fn refresh_callee(caller: &mut Caller<'_, VmData>, index: usize) {
    let memory = memory_of(caller, index);
    caller.data().binding.embedded.borrow_mut().set_callee(index, memory);
}
