//! Restores an instance to its state before the first request, instead of making a new one. Runs in a worker.
//!
//! The compiler decides what a guest can change (`vm::state`): one memory and numeric globals, or there is no
//! renewal. The initial state is known when two new instances are equal. A module whose start reads random bytes or
//! the time differs in every instance: each request gets a new instance, unless the function asks for one snapshot
//! per worker. A request that called a WASI function that leaves state (`vm::wasi_calls`) ends its instance.
//!
//! Invariant: a restored instance equals a new one, or with `cwasi.isolation=snapshot` the worker's snapshot.
#![expect(unsafe_code, reason = "C API, memory that guests use")]

use std::cell::{Cell, OnceCell, RefCell};
use std::hash::{BuildHasher as _, Hash, RandomState};
use std::ops::Range;
use std::rc::Rc;

use cwasi_abi::{GLOBAL_EXPORT, WASI_CALLED_EXPORT, export};
use wasmedge_sys::ffi;

use super::PAGE_LEN;
use super::handles::ModuleInstance;
use super::memory::{extent, memory_bytes, page_count};
use super::page_count::PageCount;
use cwasi_sys::populated::{LazyPopulated, Populated};
use cwasi_vm::engine::{InstanceSpec, NotRenewed};
use cwasi_vm::image::{ImagedMemory, MemoryImage};

/// Longest linear memory that is searched for non-zero pages, in bytes, when the kernel has no page map.
const MEMORY_MAX: usize = 64 << 20;
/// Longest image, in bytes, that each worker writes before each request.
const COPIED_MAX: usize = 2 << 20;
/// Longest image, in bytes, of which only changed pages are written.
const MAPPED_MAX: usize = 32 << 20;

/// The initial state of one module's instances.
#[derive(Debug)]
pub(super) struct Origin {
    hasher: RandomState,
    /// The specification of the first instance.
    spec: OnceCell<InstanceSpec>,
    /// Variants of the known instances.
    variant: Cell<u64>,
    known: RefCell<InitialState>,
    /// This process's page map; opened with the first state, which only workers have.
    populated: LazyPopulated,
}

#[derive(Debug)]
enum InitialState {
    Nothing,
    /// A digest of the first instance's state, so that a worker without requests keeps no image.
    First(u64),
    State(Rc<InstanceState>),
    /// No state: instances cannot be restored.
    Never(NotRenewed),
}

impl Origin {
    /// Nothing is known yet; `populated` reports the pages that guests have touched.
    pub(super) fn new(populated: LazyPopulated) -> Self {
        let known = RefCell::new(InitialState::Nothing);
        let hasher = RandomState::new();
        Self { hasher, spec: OnceCell::new(), variant: Cell::new(0), known, populated }
    }

    /// True if an instance of `spec` may start with the same state as others.
    pub(super) fn covers(&self, spec: &InstanceSpec) -> bool {
        self.spec.get_or_init(|| spec.clone()) == spec
    }

    /// The initial state of the new `instance`, if it is worth keeping and others of this `variant` started with the
    /// same. `None` until there was another.
    pub(super) fn of(
        &self,
        instance: &ModuleInstance,
        variant: u64,
    ) -> Result<Option<Rc<InstanceState>>, NotRenewed> {
        let mut known = self.known.borrow_mut();
        if self.variant.replace(variant) != variant && !matches!(*known, InitialState::Never(_)) {
            *known = InitialState::Nothing;
        }
        let digest = match &*known {
            InitialState::State(state) => return Ok(Some(Rc::clone(state))),
            InitialState::Never(reason) => return Err(*reason),
            InitialState::Nothing => None,
            InitialState::First(digest) => Some(*digest),
        };
        *known = match (InstanceState::of(instance, self.populated().as_deref()), digest) {
            (Err(reason), _) => InitialState::Never(reason),
            (Ok(state), None) => InitialState::First(self.digest(&state)),
            (Ok(state), Some(digest)) if self.digest(&state) == digest => {
                InitialState::State(Rc::new(state.settled()?))
            }
            (Ok(_), Some(_)) => InitialState::Never(NotRenewed::Varies),
        };
        match &*known {
            InitialState::State(state) => Ok(Some(Rc::clone(state))),
            InitialState::Never(reason) => Err(*reason),
            _ => Ok(None),
        }
    }

    /// The initial state of the new `instance`, whatever the state of others (`cwasi.isolation=snapshot`).
    pub(super) fn snapshot(
        &self,
        instance: &ModuleInstance,
    ) -> Result<Rc<InstanceState>, NotRenewed> {
        InstanceState::of(instance, self.populated().as_deref())?.settled().map(Rc::new)
    }

    /// The page map for pages that a guest has touched.
    pub(super) fn populated(&self) -> Option<Rc<Populated>> {
        self.populated.get()
    }

    fn digest(&self, state: &InstanceState) -> u64 {
        self.hasher.hash_one(state)
    }
}

/// Everything that a guest can change.
#[derive(Debug)]
pub(super) struct InstanceState {
    image: MemoryImage,
    pages: u32,
    globals: Vec<ffi::WasmEdge_Value>,
}

impl Hash for InstanceState {
    fn hash<H: std::hash::Hasher>(&self, hasher: &mut H) {
        self.image.hash(hasher);
        self.globals.iter().for_each(|value| value.Value.hash(hasher));
    }
}

impl InstanceState {
    fn of(instance: &ModuleInstance, populated: Option<&Populated>) -> Result<Self, NotRenewed> {
        if wasi_called(instance) {
            return Err(NotRenewed::OpensAtStart);
        }
        let memory = instance.memory(export::MEMORY);
        // SAFETY:
        // - owned by the live instance, in which no guest runs.
        let bytes = unsafe { memory_bytes(memory) };
        let maps = populated.is_some_and(Populated::scans);
        if bytes.len() > MEMORY_MAX && !maps {
            return Err(NotRenewed::TooLarge);
        }
        let longest = if maps { MAPPED_MAX } else { COPIED_MAX };
        let image = MemoryImage::of(bytes, longest, populated).ok_or(NotRenewed::TooLarge)?;
        let globals = values(instance);
        // SAFETY:
        // - alive, as above.
        let pages = unsafe { page_count(memory) };
        Ok(Self { image, pages, globals })
    }

    /// A state to restore.
    fn settled(mut self) -> Result<Self, NotRenewed> {
        self.image.settle().map_err(|_no_memory| NotRenewed::TooLarge)?;
        Ok(self)
    }
}

/// True if its guest has called a WASI function that leaves state (`vm::wasi_calls`).
fn wasi_called(instance: &ModuleInstance) -> bool {
    let called = instance.global(WASI_CALLED_EXPORT);
    // SAFETY:
    // - a live global of the instance, of type `i32`: our compiler made it.
    !called.is_null()
        && unsafe { ffi::WasmEdge_ValueGetI32(ffi::WasmEdge_GlobalInstanceGetValue(called)) } != 0
}

/// Restores an instance to a state.
#[derive(Debug)]
pub(super) struct Renewal {
    state: Rc<InstanceState>,
    /// The instance's globals, in the order of the state's values.
    globals: Vec<*mut ffi::WasmEdge_GlobalInstanceContext>,
    page_count: Option<PageCount>,
    populated: Option<Rc<Populated>>,
}

impl Renewal {
    /// For a new instance in the state `state`; `None` when mappings run out.
    pub(super) fn new(
        instance: &ModuleInstance,
        state: Rc<InstanceState>,
        page_count: Option<PageCount>,
        populated: Option<Rc<Populated>>,
    ) -> Option<Self> {
        // SAFETY:
        // - owned by the live instance.
        let (start, len) = unsafe { extent(instance.memory(export::MEMORY)) };
        // SAFETY:
        // - a linear memory as the engine makes it (`PagedMemory::window`), to which no reference exists.
        unsafe { ImagedMemory::new(start, len, &state.image) }?.settle().ok()?;
        Some(Self { globals: globals(instance), state, page_count, populated })
    }

    /// Restores the state. After an error `instance` must not be used; the error has the reason if that is the
    /// module's. `touched`: ranges that other memory was mapped over since.
    ///
    /// # Safety
    /// `instance` is the one that this was made for; no guest runs in it, and no reference to its memory exists.
    pub(super) unsafe fn renew(
        &self,
        instance: &ModuleInstance,
        touched: Option<Range<u64>>,
    ) -> Result<(), Option<NotRenewed>> {
        if wasi_called(instance) {
            return Err(Some(NotRenewed::Opens));
        }
        let memory = instance.memory(export::MEMORY);
        // SAFETY:
        // - owned by the live instance.
        let (start, len) = unsafe { extent(memory) };
        let image = &self.state.image;
        let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
        let replaced = touched.map_or(0..0, |touched| place(touched.start)..place(touched.end));
        if len != image.len() && self.page_count.is_none() {
            return Err(None);
        }
        // SAFETY:
        // - a linear memory as the engine makes it (`PagedMemory::window`), to which no reference exists.
        let imaged = unsafe { ImagedMemory::new(start, len, image) };
        let populated = self.populated.as_deref();
        let restored = imaged.is_some_and(|mut imaged| imaged.restore(replaced, populated).is_ok());
        if !restored || !self.set_page_count(memory, len) {
            return Err(None);
        }
        for (global, value) in self.globals.iter().zip(&self.state.globals) {
            // SAFETY:
            // - a live global of the instance, and a value that it had.
            unsafe { ffi::WasmEdge_GlobalInstanceSetValue(*global, *value) };
        }
        Ok(())
    }

    fn set_page_count(&self, memory: *mut ffi::WasmEdge_MemoryInstanceContext, len: usize) -> bool {
        let pages = self.state.pages;
        if len as u64 == u64::from(pages) * PAGE_LEN {
            return true;
        }
        // SAFETY:
        // - alive, of this engine, in which no guest runs.
        // - what followed these pages is not accessible any more.
        self.page_count.is_some_and(|place| unsafe { place.set(memory, pages) }.is_some())
    }
}

/// The mutable globals, in the order of their numbers; owned by the instance.
fn globals(instance: &ModuleInstance) -> Vec<*mut ffi::WasmEdge_GlobalInstanceContext> {
    let found = (0_u32..).map(|number| instance.global(&format!("{GLOBAL_EXPORT}{number}")));
    found.take_while(|global| !global.is_null()).collect()
}

fn values(instance: &ModuleInstance) -> Vec<ffi::WasmEdge_Value> {
    // SAFETY:
    // - live globals of the instance.
    let value = |global: *mut _| unsafe { ffi::WasmEdge_GlobalInstanceGetValue(global) };
    globals(instance).into_iter().map(value).collect()
}

/// [`values`] as bits.
#[cfg(test)]
pub(super) fn global_bits(instance: &ModuleInstance) -> Vec<u128> {
    values(instance).iter().map(|value| value.Value).collect()
}
