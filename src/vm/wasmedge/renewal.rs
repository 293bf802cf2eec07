//! Instances that are brought back to the state that they had before their first request: as new, without being made anew.
//!
//! What a guest can change is decided when its module is compiled (`vm::state`): one memory and globals of numbers, or
//! there is no renewal. What it started with is known once two fresh instances agree in it. A module whose start reads
//! random bytes or the time has other bytes in every instance: each request gets an instance of its own, unless the
//! function asks to have all of a worker's requests start from one snapshot. A request that called a function of WASI's that leaves
//! something (`vm::wasi_calls`) ends its instance.
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
use crate::sys::image::{Image, Imaged};
use crate::sys::populated::{LazyPopulated, Populated};
use crate::vm::engine::{InstanceSpec, NotRenewed};

/// Longest linear memory that is looked through, in bytes, where the kernel does not say which pages there are.
const MEMORY_MAX: usize = 64 << 20;
/// Longest image, in bytes, that is written before each request, by every worker.
const COPIED_MAX: usize = 2 << 20;
/// Longest image, in bytes, where only what a request has written is written.
const MAPPED_MAX: usize = 32 << 20;

/// What instances of one module start with.
#[derive(Debug)]
pub(super) struct Origin {
    hasher: RandomState,
    /// What the first of them was made with.
    spec: OnceCell<InstanceSpec>,
    /// What was done in those that are known.
    variant: Cell<u64>,
    known: RefCell<Known>,
    /// This process' pages; asked for with the first state, which workers have only.
    populated: LazyPopulated,
}

#[derive(Debug)]
enum Known {
    Nothing,
    /// A digest of the first instance's state: a worker that never gets a request keeps no image.
    First(u64),
    State(Rc<State>),
    /// Nothing that instances could be brought back to.
    Never(NotRenewed),
}

impl Origin {
    /// Nothing is known yet; `populated` is asked for the pages that guests have brought into being.
    pub(super) fn new(populated: LazyPopulated) -> Self {
        let known = RefCell::new(Known::Nothing);
        let hasher = RandomState::new();
        Self { hasher, spec: OnceCell::new(), variant: Cell::new(0), known, populated }
    }

    /// Whether an instance that is made with `spec` may start as the others do.
    pub(super) fn covers(&self, spec: &InstanceSpec) -> bool {
        self.spec.get_or_init(|| spec.clone()) == spec
    }

    /// The state that `instance`, which is fresh, starts with, if it is worth being kept and others of this `variant` started
    /// with the same; `None` as long as there was no other.
    pub(super) fn of(
        &self,
        instance: &ModuleInstance,
        variant: u64,
    ) -> Result<Option<Rc<State>>, NotRenewed> {
        let mut known = self.known.borrow_mut();
        if self.variant.replace(variant) != variant && !matches!(*known, Known::Never(_)) {
            *known = Known::Nothing;
        }
        let digest = match &*known {
            Known::State(state) => return Ok(Some(Rc::clone(state))),
            Known::Never(reason) => return Err(*reason),
            Known::Nothing => None,
            Known::First(digest) => Some(*digest),
        };
        *known = match (State::of(instance, self.populated().as_deref()), digest) {
            (Err(reason), _) => Known::Never(reason),
            (Ok(state), None) => Known::First(self.digest(&state)),
            (Ok(state), Some(digest)) if self.digest(&state) == digest => {
                Known::State(Rc::new(state.settled()?))
            }
            (Ok(_), Some(_)) => Known::Never(NotRenewed::Varies),
        };
        match &*known {
            Known::State(state) => Ok(Some(Rc::clone(state))),
            Known::Never(reason) => Err(*reason),
            _ => Ok(None),
        }
    }

    /// The state that `instance`, which is fresh, starts with, whatever others started with (`cwasi.isolation=snapshot`).
    pub(super) fn snapshot(&self, instance: &ModuleInstance) -> Result<Rc<State>, NotRenewed> {
        State::of(instance, self.populated().as_deref())?.settled().map(Rc::new)
    }

    /// What to ask for the pages that a guest has brought into being.
    pub(super) fn populated(&self) -> Option<Rc<Populated>> {
        self.populated.get()
    }

    fn digest(&self, state: &State) -> u64 {
        self.hasher.hash_one(state)
    }
}

/// Everything that a guest can change.
#[derive(Debug)]
pub(super) struct State {
    image: Image,
    pages: u32,
    globals: Vec<ffi::WasmEdge_Value>,
}

impl Hash for State {
    fn hash<H: std::hash::Hasher>(&self, hasher: &mut H) {
        self.image.hash(hasher);
        self.globals.iter().for_each(|value| value.Value.hash(hasher));
    }
}

impl State {
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
        let image = Image::of(bytes, longest, populated).ok_or(NotRenewed::TooLarge)?;
        let globals = values(instance);
        // SAFETY:
        // - alive, as above.
        let pages = unsafe { page_count(memory) };
        Ok(Self { image, pages, globals })
    }

    /// Ready to be gone back to.
    fn settled(mut self) -> Result<Self, NotRenewed> {
        self.image.settle().map_err(|_no_memory| NotRenewed::TooLarge)?;
        Ok(self)
    }
}

/// Whether its guest has called a function of WASI that leaves something (`vm::wasi_calls`).
fn wasi_called(instance: &ModuleInstance) -> bool {
    let called = instance.global(WASI_CALLED_EXPORT);
    // SAFETY:
    // - a live global of the instance, of type `i32`: our compiler made it.
    !called.is_null()
        && unsafe { ffi::WasmEdge_ValueGetI32(ffi::WasmEdge_GlobalInstanceGetValue(called)) } != 0
}

/// An instance's way back to a state.
#[derive(Debug)]
pub(super) struct Renewal {
    state: Rc<State>,
    /// Those of the instance, in the order of the state's values.
    globals: Vec<*mut ffi::WasmEdge_GlobalInstanceContext>,
    page_count: Option<PageCount>,
    populated: Option<Rc<Populated>>,
}

impl Renewal {
    /// For an instance that is fresh, and is as `state` says; `None` when mappings run out.
    pub(super) fn new(
        instance: &ModuleInstance,
        state: Rc<State>,
        page_count: Option<PageCount>,
        populated: Option<Rc<Populated>>,
    ) -> Option<Self> {
        // SAFETY:
        // - owned by the live instance.
        let (start, len) = unsafe { extent(instance.memory(export::MEMORY)) };
        // SAFETY:
        // - a linear memory as the engine makes it (`PagedMemory::window`), to which nobody refers.
        unsafe { Imaged::new(start, len, &state.image) }?.settle().ok()?;
        Some(Self { globals: globals(instance), state, page_count, populated })
    }

    /// Brings it back; an error when that cannot be, and then `instance` must not be used; with the reason where that is the
    /// module's. `touched`: where other memory has
    /// been mapped into its own since.
    ///
    /// # Safety
    /// `instance` is the one that this was made for; no guest runs in it, and nobody refers to its memory.
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
        // - a linear memory as the engine makes it (`PagedMemory::window`), to which nobody refers.
        let imaged = unsafe { Imaged::new(start, len, image) };
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

/// What is in them.
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
