//! The data that the host functions of one VM act on. Runs in a worker.
#![expect(unsafe_code, reason = "lends a borrow through the engine")]

use std::cell::{Cell, RefCell};
use std::ptr;
use std::rc::Rc;

use cwasi_host_functions::{Host, LinkedCalls, Regions};

use super::embedded::EmbeddedCallState;
use super::memory::{RawMemory, RegionSource};
use super::program::Program;
use cwasi_modes::pool::SegmentPool;

/// Bound to every host function of a VM; outlives its instances.
#[derive(Debug)]
pub(super) struct HostBinding {
    /// The host, while a guest runs; null otherwise.
    host: Cell<*mut Host>,
    /// Calls between linked modules.
    pub(super) links: RefCell<LinkedCalls<RawMemory>>,
    /// Regions of the function's own memory.
    pub(super) regions: RefCell<Regions<RawMemory>>,
    /// Regions of the embedded modules' memories, in their order.
    pub(super) embedded_regions: Vec<RefCell<Regions<RawMemory>>>,
    /// Calls of embedded functions.
    pub(super) embedded: RefCell<EmbeddedCallState>,
    pub(super) program: Rc<Program>,
}

impl HostBinding {
    /// A binding; `pool` provides regions' memory, if there is one.
    pub(super) fn new(program: Rc<Program>, pool: Option<SegmentPool>) -> Self {
        let source = RegionSource { pool, populated: program.populated.clone() };
        let regions = || RefCell::new(Regions::new(source.clone()));
        Self {
            host: Cell::new(ptr::null_mut()),
            links: RefCell::default(),
            regions: regions(),
            embedded_regions: program.embedded.iter().map(|_| regions()).collect(),
            embedded: RefCell::default(),
            program,
        }
    }

    /// Clears everything that guests left; the address stays the same.
    pub(super) fn empty(&mut self) {
        *self = Self::new(Rc::clone(&self.program), None);
    }

    /// Clears everything that the last request left. No region is mapped any more.
    pub(super) fn renew(&mut self) {
        *self.links.get_mut() = LinkedCalls::default();
        self.regions.get_mut().forget();
    }

    /// Sets the pool for regions' memory.
    pub(super) fn serve(&mut self, pool: Option<SegmentPool>) {
        let source = RegionSource { pool, populated: self.program.populated.clone() };
        for regions in &mut self.embedded_regions {
            *regions.get_mut() = Regions::new(source.clone());
        }
        *self.regions.get_mut() = Regions::new(source);
    }

    /// The regions of the module with this memory; a trampoline has none.
    pub(super) fn regions_of(&self, memory: RawMemory) -> Option<&RefCell<Regions<RawMemory>>> {
        let embedded = self.embedded.borrow();
        if embedded.caller() == Some(memory) {
            return Some(&self.regions);
        }
        self.embedded_regions.get(embedded.index_of(memory)?)
    }

    /// Lends `host` to the host functions while `run` runs.
    pub(super) fn lend<T>(&self, host: &mut Host, run: impl FnOnce() -> T) -> T {
        struct Reset<'a>(&'a HostBinding);
        impl Drop for Reset<'_> {
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
    pub(super) unsafe fn host(&self) -> Option<&mut Host> {
        // SAFETY:
        // - `lend` put a unique borrow there for as long as the guest runs, and takes it away after.
        // - the caller makes no second reference.
        unsafe { self.host.get().as_mut() }
    }

    /// The running embedded functions, outermost first, for messages; empty without one.
    pub(super) fn running(&self) -> Vec<String> {
        let called =
            self.embedded.borrow().callee().map(|index| self.program.name(index).to_owned());
        let links = self.links.borrow();
        let linked = links.running().filter_map(|number| self.program.function(number));
        called
            .into_iter()
            .chain(linked.map(|function| {
                format!("{} (`{}`)", self.program.name(function.callee), function.name)
            }))
            .collect()
    }
}
