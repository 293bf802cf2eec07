//! The data that the host functions of one VM act on. Runs in a worker.
#![expect(unsafe_code, reason = "lends a borrow through the engine")]

use std::cell::{Cell, RefCell};
use std::ptr;
use std::rc::Rc;

use cwasi_host_functions::{Host, LinkedCalls, Regions};

use super::embedded::EmbeddedCallState;
use crate::linear_memory::{RegionSource, VmMemory};
use cwasi_modes::pool::SegmentPool;
use cwasi_sys::populated::LazyPopulated;

/// The modules of one VM: a function and those that it embeds.
#[derive(Debug, Default)]
pub struct Composition {
    /// Names of the embedded modules, each after its own imports.
    pub embedded: Vec<String>,
    /// The functions that modules import from embedded ones, by number.
    pub functions: Vec<LinkedImport>,
    /// [`EngineOptions::memory_max`](crate::EngineOptions::memory_max).
    pub memory_max: Option<u64>,
    /// The page map of the worker's process.
    pub populated: LazyPopulated,
}

/// A function that one module imports from an embedded one.
#[derive(Debug)]
pub struct LinkedImport {
    /// The importing embedded module; `None` for the function itself.
    pub caller: Option<usize>,
    pub callee: usize,
    pub name: String,
}

impl Composition {
    /// Name of an embedded module.
    #[must_use]
    pub fn name(&self, embedded: usize) -> &str {
        self.embedded.get(embedded).map_or("", String::as_str)
    }

    #[must_use]
    pub fn function(&self, number: u32) -> Option<&LinkedImport> {
        self.functions.get(usize::try_from(number).ok()?)
    }
}

/// Bound to every host function of a VM; outlives its instances.
#[derive(Debug)]
pub struct HostBinding<M: VmMemory> {
    /// The host, while a guest runs; null otherwise.
    host: Cell<*mut Host>,
    /// Calls between linked modules.
    pub links: RefCell<LinkedCalls<M>>,
    /// Regions of the function's own memory.
    pub regions: RefCell<Regions<M>>,
    /// Regions of the embedded modules' memories, in their order.
    pub embedded_regions: Vec<RefCell<Regions<M>>>,
    /// Calls of embedded functions.
    pub embedded: RefCell<EmbeddedCallState<M>>,
    pub composition: Rc<Composition>,
}

impl<M: VmMemory> HostBinding<M> {
    /// A binding; `pool` provides regions' memory, if there is one.
    #[must_use]
    pub fn new(composition: Rc<Composition>, pool: Option<SegmentPool>) -> Self {
        let source = RegionSource { pool, populated: composition.populated.clone() };
        let regions = || RefCell::new(Regions::new(source.clone()));
        Self {
            host: Cell::new(ptr::null_mut()),
            links: RefCell::default(),
            regions: regions(),
            embedded_regions: composition.embedded.iter().map(|_| regions()).collect(),
            embedded: RefCell::default(),
            composition,
        }
    }

    /// Clears everything that guests left; the address stays the same.
    pub fn empty(&mut self) {
        *self = Self::new(Rc::clone(&self.composition), None);
    }

    /// Clears everything that the last request left. No region is mapped any more.
    pub fn renew(&mut self) {
        *self.links.get_mut() = LinkedCalls::default();
        self.regions.get_mut().forget();
    }

    /// Sets the pool for regions' memory.
    pub fn serve(&mut self, pool: Option<SegmentPool>) {
        let source = RegionSource { pool, populated: self.composition.populated.clone() };
        for regions in &mut self.embedded_regions {
            *regions.get_mut() = Regions::new(source.clone());
        }
        *self.regions.get_mut() = Regions::new(source);
    }

    /// The regions of the module with this memory; a trampoline has none.
    #[must_use]
    pub fn regions_of(&self, memory: M) -> Option<&RefCell<Regions<M>>> {
        let embedded = self.embedded.borrow();
        if embedded.caller() == Some(memory) {
            return Some(&self.regions);
        }
        self.embedded_regions.get(embedded.index_of(memory)?)
    }

    /// Lends `host` to the host functions while `run` runs.
    pub fn lend<T>(&self, host: &mut Host, run: impl FnOnce() -> T) -> T {
        struct Reset<'a, M: VmMemory>(&'a HostBinding<M>);
        impl<M: VmMemory> Drop for Reset<'_, M> {
            fn drop(&mut self) {
                self.0.host.set(ptr::null_mut());
            }
        }
        self.host.set(host);
        let _reset = Reset(self);
        run()
    }

    /// Returns the lent host.
    ///
    /// # Safety
    /// At most one reference made by this is in use: host functions do not nest.
    #[expect(clippy::mut_from_ref, reason = "a borrow that `lend` put there")]
    pub unsafe fn host(&self) -> Option<&mut Host> {
        // SAFETY:
        // - `lend` put a unique borrow there for as long as the guest runs, and takes it away after.
        // - the caller makes no second reference.
        unsafe { self.host.get().as_mut() }
    }

    /// The running embedded functions, outermost first, for messages; empty without one.
    #[must_use]
    pub fn running(&self) -> Vec<String> {
        self.names(self.links.borrow().running())
    }

    /// [`Self::running`] with these linked functions.
    pub fn names(&self, linked: impl IntoIterator<Item = u32>) -> Vec<String> {
        let called =
            self.embedded.borrow().callee().map(|index| self.composition.name(index).to_owned());
        let linked = linked.into_iter().filter_map(|number| self.composition.function(number));
        called
            .into_iter()
            .chain(linked.map(|function| {
                format!("{} (`{}`)", self.composition.name(function.callee), function.name)
            }))
            .collect()
    }
}
