//! One instance of a function with its own objects: a VM. Runs in a worker.
#![expect(unsafe_code, reason = "C API")]

use std::rc::Rc;

use cwasi_abi::export;
use cwasi_host_functions::{GuestPtr, Host, MapTarget, PagesError};
use wasmedge_sys::ffi;

use super::engine_code::{EngineCode, check};
use super::handles::ModuleInstance;
use super::memory::{self, RawMemory};
use super::page_count::PageCount;
use super::program::Part;
use super::renewal::{Origin, Renewal};
use super::resources::PooledResources;
use super::sockets::Wasi;
use super::stderr_tail;
use super::vm_builder::{InstantiatedModule, VmBuilder};
use cwasi_sys::huge::HUGE_PAGE;
use cwasi_sys::segment::Segment;
use cwasi_vm::engine::{GuestStop, Instance, NotRenewed, Start, Trap, VmError};
use cwasi_vm::host_calls::embedded::{CalleeBuffers, CalleeMemory};

/// The engine's message for a call of a missing function.
const NO_SUCH_EXPORT: &str = "no such export";

/// An instance, with the instances of its embedded modules. All are made and dropped together.
///
/// Fields are dropped in this order: the guest before its imports, everything before its resources, which keep the
/// modules' code.
#[derive(Debug)]
pub struct WasmEdgeInstance {
    guest: InstantiatedModule,
    /// Each after its imports.
    embedded: Vec<InstantiatedModule>,
    wasi: Rc<Wasi>,
    renewing: Renewability,
    /// Pages of each memory before the first request: the embedded modules', then the guest's own.
    first_pages: Vec<u32>,
    resources: PooledResources,
}

/// Whether an instance can be renewed.
#[derive(Debug)]
pub(super) enum Renewability {
    /// Possibly: the state with which instances of its module start.
    Origin(Rc<Origin>, Option<PageCount>),
    Ready(Renewal),
    /// It cannot; with the reason if that is the module's. Without a reason, the guest stopped, or its initial state
    /// is unknown.
    Never(Option<NotRenewed>),
}

impl WasmEdgeInstance {
    pub(super) fn new(
        resources: PooledResources,
        wasi: Rc<Wasi>,
        renewing: Renewability,
        host: &mut Host,
    ) -> Result<Self, VmError> {
        let program = Rc::clone(&resources.program);
        let mut placing = VmBuilder { resources: &resources, host };
        let mut embedded: Vec<InstantiatedModule> = Vec::with_capacity(program.embedded.len());
        for part in &program.embedded {
            let placed = placing.embedded(part, &embedded)?;
            embedded.push(placed);
        }
        let guest = placing.root(&wasi, &embedded)?;
        let memory_of = |placed: &InstantiatedModule| {
            // SAFETY:
            // - the memory belongs to an instance of this VM, and the binding is not used after it.
            unsafe { RawMemory::new(placed.instance.memory(export::MEMORY)) }
        };
        let callee = |(placed, part): (&InstantiatedModule, &Part)| {
            let buffers = part.code.interface.has_payload_buffer().then(|| CalleeBuffers {
                payload: GuestPtr(address(&placed.instance, export::PAYLOAD)),
                response: GuestPtr(address(&placed.instance, export::RESPONSE)),
            });
            CalleeMemory { memory: memory_of(placed), buffers }
        };
        let callees = embedded.iter().zip(&program.embedded).map(callee).collect();
        resources.binding.embedded.borrow_mut().set_memories(memory_of(&guest), callees);
        let first_pages = Vec::new();
        let mut this = Self { guest, embedded, wasi, renewing, first_pages, resources };
        this.initialize(host)?;
        this.first_pages = this.pages();
        Ok(this)
    }

    /// Runs `_initialize` of each module, embedded ones before their importers.
    fn initialize(&mut self, host: &mut Host) -> Result<(), VmError> {
        let program = Rc::clone(&self.resources.program);
        for (index, part) in program.embedded.iter().enumerate() {
            if part.code.interface.initializes() {
                let function = self.embedded[index].instance.function(export::INITIALIZE);
                let run = self.resources.binding.lend(host, || self.invoke(function, &[]));
                run.map_err(|code| VmError::Initialize {
                    reason: format!("embedded {}: {}", part.name, self.ended(code, host)),
                })?;
            }
        }
        if program.root.code.interface.initializes() {
            self.initialize_root(host)?;
        }
        Ok(())
    }

    /// Pages of each memory: the embedded modules', then the guest's own.
    fn pages(&self) -> Vec<u32> {
        // SAFETY:
        // - a memory of a live instance, or null.
        let pages = |placed: &InstantiatedModule| unsafe {
            memory::pages_of(placed.instance.memory(export::MEMORY))
        };
        self.embedded.iter().chain([&self.guest]).map(pages).collect()
    }

    /// Values of the exported mutable globals.
    #[cfg(test)]
    pub(super) fn global_bits(&self) -> Vec<u128> {
        super::renewal::global_bits(&self.guest.instance)
    }

    fn initialize_root(&mut self, host: &mut Host) -> Result<(), VmError> {
        match self.call(export::INITIALIZE, &[], host) {
            Ok(_) => Ok(()),
            Err(GuestStop::Trapped(trap)) => Err(VmError::Initialize { reason: trap.to_string() }),
            Err(GuestStop::Exited(code)) => Err(VmError::Initialize {
                reason: format!("`{}` exited with code {code}", export::INITIALIZE),
            }),
        }
    }

    /// The function's own memory, for one statement of a `&mut self`.
    fn raw_memory(&mut self) -> RawMemory {
        // SAFETY:
        // - owned by the live guest, which does not run as long as `self` is borrowed uniquely.
        unsafe { RawMemory::new(self.guest.instance.memory(export::MEMORY)) }
    }

    /// The reason why a guest stopped, and in which embedded module.
    fn ended(&self, code: EngineCode, host: &mut Host) -> String {
        let message = match (code.is_exit(), &self.resources.imports.embedded_wasi) {
            (true, Some(wasi)) => format!("it called exit({})", wasi.exit_code()),
            _ => code.to_string(),
        };
        let message = match host.take_trap_message() {
            Some(said) => format!("{message}: {said}"),
            None => message,
        };
        match self.resources.binding.running() {
            running if running.is_empty() => message,
            running => format!("in embedded {}: {message}", running.join(", which called ")),
        }
    }

    fn invoke(
        &self,
        function: *const ffi::WasmEdge_FunctionInstanceContext,
        params: &[ffi::WasmEdge_Value],
    ) -> Result<Option<i32>, EngineCode> {
        // SAFETY:
        // - reads the length from a live function's type.
        let returns = unsafe {
            ffi::WasmEdge_FunctionTypeGetReturnsLength(
                ffi::WasmEdge_FunctionInstanceGetFunctionType(function),
            )
        };
        // SAFETY:
        // - no arguments.
        let mut result = unsafe { ffi::WasmEdge_ValueGenI32(0) };
        let params_len = u32::try_from(params.len()).unwrap_or(u32::MAX);
        // SAFETY:
        // - executor and function live; the list has `params_len` values; room for the one result asked for.
        // - the engine checks the values against the function's type.
        check(unsafe {
            ffi::WasmEdge_ExecutorInvoke(
                self.resources.executor.raw(),
                function,
                params.as_ptr(),
                params_len,
                &raw mut result,
                1,
            )
        })?;
        // SAFETY:
        // - a value; `Module::check` and the fixed names see to it that it is an `i32`.
        Ok((returns > 0).then(|| unsafe { ffi::WasmEdge_ValueGetI32(result) }))
    }
}

impl Instance for WasmEdgeInstance {
    fn call(
        &mut self,
        export: &str,
        params: &[i32],
        host: &mut Host,
    ) -> Result<Option<i32>, GuestStop> {
        let trap = |reason: String| GuestStop::Trapped(Trap { export: export.to_owned(), reason });
        let function = self.guest.instance.function(export);
        if function.is_null() {
            return Err(trap(NO_SUCH_EXPORT.to_owned()));
        }
        let values: Vec<_> = params
            .iter()
            // SAFETY:
            // - makes a value.
            .map(|param| unsafe { ffi::WasmEdge_ValueGenI32(*param) })
            .collect();
        let called = self.resources.binding.lend(host, || self.invoke(function, &values));
        if called.is_err() {
            self.renewing = Renewability::Never(None);
        }
        called.map_err(|code| {
            if code.is_exit() && self.resources.binding.running().is_empty() {
                return GuestStop::Exited(self.wasi.exit_code());
            }
            trap(self.ended(code, host))
        })
    }

    fn memory_max(&self) -> Option<u64> {
        self.resources.program.composition.memory_max
    }

    fn exports(&self, function: &str) -> bool {
        !self.guest.instance.function(function).is_null()
    }

    fn address(&self, global: &str) -> Option<u32> {
        let lends = self.resources.program.root.code.interface.lends_response;
        (lends && global == export::RESPONSE).then(|| address(&self.guest.instance, global))
    }

    fn is_nearly_full(&self) -> bool {
        let program = &self.resources.program;
        let parts = program.embedded.iter().chain([&program.root]);
        let mut pages = self.pages().into_iter().zip(&self.first_pages).zip(parts);
        pages.any(|((pages, first), part)| {
            pages > *first && part.code.interface.is_nearly_full(pages, u32::MAX)
        })
    }

    fn memory(&self) -> &[u8] {
        // SAFETY:
        // - owned by the live guest; only `&mut self` runs the guest.
        unsafe { memory::memory_bytes(self.guest.instance.memory(export::MEMORY)) }
    }

    fn memory_mut(&mut self) -> &mut [u8] {
        // SAFETY:
        // - as above, and `self` is borrowed uniquely.
        unsafe { memory::memory_bytes_mut(self.guest.instance.memory(export::MEMORY)) }
    }

    fn aligns_huge_pages(&self) -> bool {
        self.memory().as_ptr().addr().is_multiple_of(HUGE_PAGE)
    }

    fn remember(&mut self, start: Start) {
        let Renewability::Origin(origin, page_count) = &self.renewing else { return };
        // It would have to share memory again before each request.
        if self.resources.binding.regions.borrow().touched().is_some() {
            self.renewing = Renewability::Never(Some(NotRenewed::SharesAtStart));
            return;
        }
        let guest = &self.guest.instance;
        let state = match start {
            Start::Alike(variant) => origin.of(guest, variant),
            Start::Snapshot => origin.snapshot(guest).map(Some),
        };
        let renewal = |state| Renewal::new(guest, state, *page_count, origin.populated());
        self.renewing = match state.map(|state| state.and_then(renewal)) {
            Ok(Some(renewal)) => Renewability::Ready(renewal),
            Ok(None) => Renewability::Never(None),
            Err(reason) => Renewability::Never(Some(reason)),
        };
    }

    fn renew(&mut self) -> bool {
        let Renewability::Ready(renewal) = &self.renewing else { return false };
        let touched = self.resources.binding.regions.borrow().touched();
        // SAFETY:
        // - this instance, which is borrowed uniquely.
        match unsafe { renewal.renew(&self.guest.instance, touched) } {
            Ok(()) => self.resources.binding.renew(),
            Err(reason) => self.renewing = Renewability::Never(reason),
        }
        matches!(self.renewing, Renewability::Ready(_))
    }

    fn not_renewed(&self) -> Option<NotRenewed> {
        match &self.renewing {
            Renewability::Never(reason) => *reason,
            _ => None,
        }
    }

    fn map(&mut self, (ptr, room): (u32, u32), segment: &Segment) -> bool {
        let mut memory = self.raw_memory();
        let mut regions = self.resources.binding.regions.borrow_mut();
        regions.map(&mut memory, (GuestPtr(ptr), room), segment, MapTarget::Payload)
    }

    fn map_parts(&mut self, (ptr, len): (u32, u32), parts: &[(u32, &Segment)]) -> usize {
        let mut memory = self.raw_memory();
        let mut regions = self.resources.binding.regions.borrow_mut();
        regions.map_parts(&mut memory, (GuestPtr(ptr), len), parts.iter().copied())
    }

    fn unmap(&mut self) {
        let mut memory = self.raw_memory();
        self.resources.binding.regions.borrow_mut().unmap_payload(&mut memory);
    }

    fn keep_stderr(&mut self) {
        stderr_tail::begin();
    }

    fn stderr_tail(&mut self) -> Vec<u8> {
        stderr_tail::end();
        stderr_tail::get()
    }

    fn answer(&mut self, (ptr, len): (u32, u32)) -> Result<Option<Segment>, PagesError> {
        let mut memory = self.raw_memory();
        let mut regions = self.resources.binding.regions.borrow_mut();
        Ok(regions.answer(&mut memory, GuestPtr(ptr), len)?.cloned())
    }
}

/// An address in an exported global, which [`NativeCode`](super::code::NativeCode) has found to be an `i32`.
fn address(instance: &ModuleInstance, global: &str) -> u32 {
    // SAFETY:
    // - an exported global of the live instance, of type `i32`, says the caller.
    let value = unsafe {
        ffi::WasmEdge_ValueGetI32(ffi::WasmEdge_GlobalInstanceGetValue(instance.global(global)))
    };
    value.cast_unsigned()
}
