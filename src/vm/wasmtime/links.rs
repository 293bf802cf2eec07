//! Calls of linked functions that skip the host: what [`wrap`](cwasi_vm::linked_calls::wrap) added to their callers. Runs
//! in builder and workers.
//!
//! A wrapper counts each call and calls the callee. Most calls need no more. The others go through
//! [`linked`](crate::embedded::linked), which also reports the calls before it:
//!
//! - one of 64, so that its time stands for theirs;
//! - those that have spans: the first of an invocation in a recorded trace;
//! - all, if a module passes buffers, which need a frame for each call; or if a module is dispatched to, whose
//!   unread responses are copied before it runs again.

use cwasi_abi::{
    IMPORT_MODULE, LINKED_CALLEES_EXPORT, LINKED_CALLS_EXPORT, LINKED_MASK_EXPORT,
    LINKED_RUNNING_EXPORT, import,
};
use cwasi_vm::host_calls::embedded_call::Direct;
use cwasi_vm::interface::ModuleInterface;
use cwasi_vm::linked_calls::is_linked;
use wasmtime::{AsContextMut, Global, Instance, Module, ModuleExport, Ref, Store, Val};

use super::embedded::serve;
use super::program::Program;
use super::vm::{Binding, VmData};

/// Of the calls of a function, one of 64 goes through the host.
const TIMED: u64 = 63;
/// All calls go through the host.
const ALL: u64 = 0;

/// The functions that pass buffers.
const BUFFERS: [&str; 4] =
    [import::LINK_OFFER, import::LINK_READ, import::LINK_RETURN, import::LINK_RESULT];

/// True if a module passes buffers to or from linked ones.
#[must_use]
pub(super) fn passes_buffers(interface: &ModuleInterface) -> bool {
    interface.imported_from(IMPORT_MODULE).any(|name| BUFFERS.contains(&name))
}

/// Places of what was added to a module.
pub(super) struct LinkExports {
    callees: ModuleExport,
    mask: ModuleExport,
    running: ModuleExport,
    /// Of each import of a linked function, in their order.
    calls: Vec<ModuleExport>,
    /// The module's imports of linked functions, in their order.
    imports: Vec<(String, String)>,
}

impl LinkExports {
    /// `None` for a module that was not changed.
    pub(super) fn of(module: &Module, interface: &ModuleInterface) -> Option<Self> {
        let imports = interface.imports.iter().filter(|import| is_linked(&import.module));
        let imports: Vec<_> =
            imports.map(|import| (import.module.clone(), import.name.clone())).collect();
        let place = |name: &str| module.get_export_index(name);
        let calls =
            (0..imports.len()).map(|number| place(&format!("{LINKED_CALLS_EXPORT}{number}")));
        Some(Self {
            callees: place(LINKED_CALLEES_EXPORT)?,
            mask: place(LINKED_MASK_EXPORT)?,
            running: place(LINKED_RUNNING_EXPORT)?,
            calls: calls.collect::<Option<_>>()?,
            imports,
        })
    }
}

/// The linked calls of one VM.
pub(super) struct Links {
    parts: Vec<PartLinks>,
    /// As it was set last.
    mask: Option<u64>,
}

/// The linked calls of one module's instance.
struct PartLinks {
    mask: Global,
    running: Global,
    counters: Vec<Counter>,
}

/// Calls of one import.
struct Counter {
    calls: Global,
    /// The function's number in the VM.
    number: u32,
    /// Calls that were counted in metrics.
    reported: u64,
}

impl Links {
    /// Puts the callees into the tables of `instances`, the VM's.
    pub(super) fn new(
        store: &mut Store<VmData>,
        program: &Program,
        instances: &[Option<Instance>],
    ) -> Option<Self> {
        let mut parts = Vec::new();
        for (index, (part, instance)) in program.parts.iter().zip(instances).enumerate() {
            let (Some(exports), Some(instance)) = (&part.links, instance) else { continue };
            let caller = (index < program.embedded().len()).then_some(index);
            let numbers = exports.imports.iter().map(|(module, name)| {
                program.composition.functions.iter().position(|function| {
                    function.caller == caller
                        && function.name == *name
                        && program.composition.name(function.callee) == module
                })
            });
            let numbers: Vec<usize> = numbers.collect::<Option<_>>()?;
            parts.push(PartLinks::new(store, *instance, exports, &numbers)?);
        }
        Some(Self { parts, mask: None })
    }

    /// Decides which calls go through the host from now on: those that have spans all do.
    pub(super) fn choose(
        &mut self,
        mut store: impl AsContextMut<Data = VmData>,
        have_spans: bool,
    ) -> wasmtime::Result<()> {
        let mask = if have_spans { ALL } else { TIMED };
        if self.mask == Some(mask) {
            return Ok(());
        }
        for part in &self.parts {
            part.mask.set(&mut store, Val::I64(mask.cast_signed()))?;
        }
        self.mask = Some(mask);
        Ok(())
    }

    /// After an invocation: counts the calls that have not gone through the host.
    pub(super) fn end(&mut self, store: &mut Store<VmData>, binding: &Binding) {
        for counter in self.parts.iter_mut().flat_map(|part| &mut part.counters) {
            counter.report(&mut *store, binding);
        }
    }

    /// In a call that goes through the host: counts the calls before it. It counts itself.
    pub(super) fn end_one(
        &mut self,
        mut store: impl AsContextMut<Data = VmData>,
        binding: &Binding,
        number: u32,
    ) {
        let mut counters = self.parts.iter_mut().flat_map(|part| &mut part.counters);
        if let Some(counter) = counters.find(|counter| counter.number == number) {
            counter.report(&mut store, binding);
            // The wrapper counts this call when it returns.
            counter.reported += 1;
        }
    }

    /// The numbers of the linked functions that run, outermost first: a module calls one at a time, of a module before
    /// it.
    pub(super) fn running(&self, store: &mut Store<VmData>) -> Vec<u32> {
        self.parts.iter().rev().filter_map(|part| part.running(store)).collect()
    }
}

impl PartLinks {
    fn new(
        store: &mut Store<VmData>,
        instance: Instance,
        exports: &LinkExports,
        numbers: &[usize],
    ) -> Option<Self> {
        let callees = instance.get_module_export(&mut *store, &exports.callees)?.into_table()?;
        let mut counters = Vec::with_capacity(numbers.len());
        for (place, (number, calls)) in (0..).zip(numbers.iter().zip(&exports.calls)) {
            let function = *store.data().linked.get(*number)?;
            callees.set(&mut *store, place, Ref::Func(Some(function))).ok()?;
            let calls = instance.get_module_export(&mut *store, calls)?.into_global()?;
            counters.push(Counter { calls, number: u32::try_from(*number).ok()?, reported: 0 });
        }
        let mut global = |place| instance.get_module_export(&mut *store, place)?.into_global();
        Some(Self { mask: global(&exports.mask)?, running: global(&exports.running)?, counters })
    }

    /// The number of the linked function that runs.
    fn running(&self, store: &mut Store<VmData>) -> Option<u32> {
        let place = self.running.get(store).i32()?.checked_sub(1)?;
        Some(self.counters.get(usize::try_from(place).ok()?)?.number)
    }
}

impl Counter {
    /// Counts the calls since the last report.
    fn report(&mut self, mut store: impl AsContextMut, binding: &Binding) {
        let calls = self.calls.get(&mut store).i64().unwrap_or_default().cast_unsigned();
        let since = u32::try_from(calls.saturating_sub(self.reported)).unwrap_or(u32::MAX);
        self.reported = calls;
        if since > 0 {
            let _counted = serve::<Direct, 2>(binding, [self.number, since]);
        }
    }
}
