//! One instance of a function, with the instances of its embedded modules: a VM. Runs in a worker.

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::rc::Rc;

use cwasi_abi::export;
use cwasi_components::{EmbeddedComponent, MemoryBudget, MemoryLimit};
use cwasi_host_functions::{GuestPtr, Host, MapTarget, PagesError};
use cwasi_modes::pool::SegmentPool;
use cwasi_sys::huge::HUGE_PAGE;
use cwasi_sys::segment::Segment;
use cwasi_vm::engine::{GuestStop, Instance, NotRenewed, Start, Trap, VmError};
use cwasi_vm::interface::PAGE_LEN;
use cwasi_vm::linear_memory::LinearMemory;
use cwasi_wasi::{Wasi, WasiTemplate};
use wasmtime::{Memory, Store, TypedFunc, Val};

use super::binding::Binding;
use super::program::{Part, Program};
use super::snapshot::Snapshot;
use super::stop;
use super::vm::{PartData, VmData};

mod start;

/// Message for a call of a missing function.
const NO_SUCH_EXPORT: &str = "no such export";

/// An instance. All modules of its VM are made and dropped together.
pub struct CoreInstance {
    program: Rc<Program>,
    /// Dropped by [`Self::drop`].
    store: ManuallyDrop<Store<VmData>>,
    /// The embedded modules', then the function's own; `None` for a component.
    instances: Vec<Option<wasmtime::Instance>>,
    memory: Option<Memory>,
    alloc: Option<TypedFunc<(i32, i32), i32>>,
    handle: Option<TypedFunc<(i32, i32, i32), i32>>,
    free: Option<TypedFunc<(i32, i32, i32), ()>>,
    response: Option<u32>,
    /// What the next instance gets.
    wasi: [Rc<WasiTemplate>; 2],
    pool: Option<SegmentPool>,
    /// The state from which requests start, or why there is none; `None` without [`Start::Snapshot`].
    snapshot: Option<Result<Rc<Snapshot>, NotRenewed>>,
    /// Bytes of each memory before the first request.
    first_lens: Vec<usize>,
}

impl std::fmt::Debug for CoreInstance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CoreInstance").field("program", &self.program).finish_non_exhaustive()
    }
}

impl CoreInstance {
    /// `wasi` is the embedded modules', then the function's own. All its memories take from the budget.
    pub(super) fn new(
        program: &Rc<Program>,
        wasi: [Rc<WasiTemplate>; 2],
        memory: (Option<SegmentPool>, MemoryBudget),
        host: &mut Host,
    ) -> Result<Self, VmError> {
        let mut this = Self::without_start(program, wasi, memory, Some(host))?;
        this.initialize(host)?;
        this.first_lens = this.memory_lens().collect();
        Ok(this)
    }

    /// One in which `_initialize` has not run. Without `host`, a start function's calls of the host fail.
    fn without_start(
        program: &Rc<Program>,
        wasi: [Rc<WasiTemplate>; 2],
        (pool, budget): (Option<SegmentPool>, MemoryBudget),
        host: Option<&mut Host>,
    ) -> Result<Self, VmError> {
        let [embedded_wasi, own_wasi] = &wasi;
        let binding = Rc::new(Binding::new(Rc::clone(&program.composition), pool.clone()));
        let part = |wasi: &Rc<WasiTemplate>, part: &Part| PartData {
            memory: None,
            image_end: part.image_end,
            wasi: Wasi::new(wasi),
            callee: None,
            component: None,
        };
        let mut parts = Vec::with_capacity(program.parts.len());
        for it in program.embedded() {
            let component = it.component().map(|component| {
                let component = EmbeddedComponent::new(Rc::clone(component), None, budget.clone());
                Rc::new(RefCell::new(component))
            });
            parts.push(PartData { component, ..part(embedded_wasi, it) });
        }
        parts.push(part(own_wasi, program.root()));
        let is_bounded = budget.is_bounded();
        let limit = MemoryLimit::new(budget);
        let data = VmData { binding, parts, linked: Vec::new(), links: None, limit };
        let mut store = Store::new(&program.engine, data);
        if is_bounded {
            store.limiter(|data| &mut data.limit);
        }
        let mut this = Self {
            program: Rc::clone(program),
            store: ManuallyDrop::new(store),
            instances: Vec::with_capacity(program.parts.len()),
            memory: None,
            alloc: None,
            handle: None,
            free: None,
            response: None,
            wasi,
            pool,
            snapshot: None,
            first_lens: Vec::new(),
        };
        this.instantiate(host)?;
        this.find_exports();
        Ok(this)
    }

    /// The function's own.
    fn own_instance(&self) -> Option<wasmtime::Instance> {
        self.instances.last().copied().flatten()
    }

    /// The memory of a part as it is now.
    fn linear(&self, part: usize) -> LinearMemory {
        self.store.data().memory(&*self.store, part)
    }

    /// The reason why a guest stopped, and in which embedded module.
    fn stopped(&mut self, export: &str, error: &wasmtime::Error, host: &mut Host) -> GuestStop {
        let data = self.store.data();
        let (binding, links) = (Rc::clone(&data.binding), data.links.clone());
        let running = match links {
            Some(links) => binding.names(links.borrow().running(&mut *self.store)),
            None => binding.running(),
        };
        if let Some(code) = stop::exit_code(error)
            && running.is_empty()
        {
            return GuestStop::Exited(code);
        }
        let message = stop::reason(error);
        let message = match host.take_trap_message() {
            Some(said) => format!("{message}: {said}"),
            None => message,
        };
        let reason = if running.is_empty() {
            message
        } else {
            format!("in embedded {}: {message}", running.join(", which called "))
        };
        GuestStop::Trapped(Trap { export: export.to_owned(), reason })
    }

    /// Calls an export by its name.
    fn call_by_name(&mut self, export: &str, params: &[i32]) -> wasmtime::Result<Option<i32>> {
        let instance = self.own_instance().ok_or_else(no_such_export)?;
        let function = instance.get_func(&mut *self.store, export).ok_or_else(no_such_export)?;
        let values: Vec<Val> = params.iter().map(|param| Val::I32(*param)).collect();
        let results = function.ty(&*self.store).results().len();
        let mut results = vec![Val::I32(0); results];
        function.call(&mut *self.store, &values, &mut results)?;
        Ok(results.first().and_then(Val::i32))
    }

    fn take_snapshot(&mut self) -> Result<Rc<Snapshot>, NotRenewed> {
        let root = self.program.root();
        if !self.program.embedded().is_empty() {
            return Err(NotRenewed::Embeds);
        }
        if self.store.data().binding.regions.borrow().touched().is_some() {
            return Err(NotRenewed::SharesAtStart);
        }
        let (Some(memory), Some(instance)) = (self.memory, self.own_instance()) else {
            return Err(NotRenewed::State);
        };
        Snapshot::of(&mut self.store, instance, memory, root.image_end).map(Rc::new)
    }

    /// A new instance with the state of `snapshot`.
    fn instance_from(&self, snapshot: Rc<Snapshot>) -> Option<Self> {
        let wasi = self.wasi.each_ref().map(Rc::clone);
        // It takes the place of this one, and of what this one has of its own budget.
        let budget = MemoryBudget::new(self.program.composition.memory_max);
        let memory = (self.pool.clone(), budget);
        let mut next = Self::without_start(&self.program, wasi, memory, None).ok()?;
        let (memory, instance) = (next.memory?, next.own_instance()?);
        if !snapshot.restore(&mut next.store, instance, memory) {
            return None;
        }
        next.first_lens.clone_from(&self.first_lens);
        next.snapshot = Some(Ok(snapshot));
        Some(next)
    }

    fn memory_lens(&self) -> impl Iterator<Item = usize> {
        let len = |part: &PartData| part.memory.map_or(0, |memory| memory.data_size(&*self.store));
        self.store.data().parts.iter().map(len)
    }

    /// The function's own memory as it is now.
    fn own_memory(&self) -> LinearMemory {
        self.linear(self.program.embedded().len())
    }

    /// Unmaps everything that other memory was mapped over; false if the system refused.
    fn clear_regions(&mut self) -> bool {
        let binding = Rc::clone(&self.store.data().binding);
        let root = binding.embedded_regions.len();
        let regions = binding.embedded_regions.iter().chain([&binding.regions]);
        let mut cleared = true;
        for (index, regions) in regions.enumerate().take(root + 1) {
            let mut regions = regions.borrow_mut();
            if regions.touched().is_some() {
                cleared &= regions.clear(&mut self.linear(index));
            }
        }
        cleared
    }
}

fn no_such_export() -> wasmtime::Error {
    wasmtime::Error::msg(NO_SUCH_EXPORT)
}

impl Drop for CoreInstance {
    #[expect(unsafe_code, reason = "a store that must not return to the pool is never dropped")]
    fn drop(&mut self) {
        // The next instance of the slot would see what is mapped. A VM that stays keeps its slots, and a worker without
        // free slots ends.
        if self.clear_regions() {
            // SAFETY:
            // - dropped here only, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.store) }
        }
    }
}

impl Instance for CoreInstance {
    fn call(
        &mut self,
        export: &str,
        params: &[i32],
        host: &mut Host,
    ) -> Result<Option<i32>, GuestStop> {
        let data = self.store.data();
        let (binding, links) = (Rc::clone(&data.binding), data.links.clone());
        let have_spans = links.is_some() && host.records_linked();
        let called = binding.lend(host, || {
            if let Some(links) = &links {
                links.borrow_mut().choose(&mut *self.store, have_spans)?;
            }
            let Self { store, alloc, handle, free, .. } = self;
            let store = &mut **store;
            match (export, params) {
                (export::HANDLE, &[ptr, len, out]) if let Some(handle) = handle => {
                    handle.call(store, (ptr, len, out)).map(Some)
                }
                (export::ALLOC, &[len, align]) if let Some(alloc) = alloc => {
                    alloc.call(store, (len, align)).map(Some)
                }
                (export::FREE, &[ptr, len, align]) if let Some(free) = free => {
                    free.call(store, (ptr, len, align)).map(|()| None)
                }
                _ => self.call_by_name(export, params),
            }
        });
        if let Some(links) = &links {
            binding.lend(host, || links.borrow_mut().end(&mut *self.store, &binding));
        }
        called.map_err(|error| self.stopped(export, &error, host))
    }

    fn memory_max(&self) -> Option<u64> {
        self.program.composition.memory_max
    }

    fn exports(&self, function: &str) -> bool {
        let exports = &self.program.root().interface.exports;
        exports.iter().any(|export| export.name == function)
    }

    fn address(&self, global: &str) -> Option<u32> {
        self.response.filter(|_| global == export::RESPONSE)
    }

    fn is_nearly_full(&self) -> bool {
        let pages = |len: usize| u32::try_from(len as u64 / PAGE_LEN).unwrap_or(u32::MAX);
        let left = pages(self.store.data().limit.budget().left());
        let mut lens = self.memory_lens().zip(&self.first_lens).zip(&self.program.parts);
        lens.any(|((len, first), part)| {
            len > *first && part.interface.is_nearly_full(pages(len), left)
        })
    }

    fn memory(&self) -> &[u8] {
        self.memory.map_or(&[], |memory| memory.data(&*self.store))
    }

    fn memory_mut(&mut self) -> &mut [u8] {
        self.memory.map_or(&mut [], |memory| memory.data_mut(&mut *self.store))
    }

    fn aligns_huge_pages(&self) -> bool {
        self.memory().as_ptr().addr().is_multiple_of(HUGE_PAGE)
    }

    fn remember(&mut self, start: Start) {
        // Whatever starts alike is made anew.
        if start == Start::Snapshot {
            self.snapshot = Some(self.take_snapshot());
        }
    }

    fn renew(&mut self) -> bool {
        let Some(Ok(snapshot)) = &self.snapshot else { return false };
        let next = self.instance_from(Rc::clone(snapshot));
        next.map(|next| *self = next).is_some()
    }

    fn not_renewed(&self) -> Option<NotRenewed> {
        self.snapshot.as_ref()?.as_ref().err().copied()
    }

    fn map(&mut self, (ptr, room): (u32, u32), segment: &Segment) -> bool {
        let mut memory = self.own_memory();
        let mut regions = self.store.data().binding.regions.borrow_mut();
        regions.map(&mut memory, (GuestPtr(ptr), room), segment, MapTarget::Payload)
    }

    fn map_parts(&mut self, (ptr, len): (u32, u32), parts: &[(u32, &Segment)]) -> usize {
        let mut memory = self.own_memory();
        let mut regions = self.store.data().binding.regions.borrow_mut();
        regions.map_parts(&mut memory, (GuestPtr(ptr), len), parts.iter().copied())
    }

    fn unmap(&mut self) {
        let mut memory = self.own_memory();
        self.store.data().binding.regions.borrow_mut().unmap_payload(&mut memory);
    }

    fn answer(&mut self, (ptr, len): (u32, u32)) -> Result<Option<Segment>, PagesError> {
        let mut memory = self.own_memory();
        let mut regions = self.store.data().binding.regions.borrow_mut();
        Ok(regions.answer(&mut memory, GuestPtr(ptr), len)?.cloned())
    }

    fn keep_stderr(&mut self) {
        if let Some(root) = self.store.data_mut().parts.last_mut() {
            root.wasi.keep_stderr();
        }
    }

    fn stderr_tail(&mut self) -> Vec<u8> {
        let root = self.store.data().parts.last();
        root.map(|root| root.wasi.stderr_tail().to_vec()).unwrap_or_default()
    }
}
