//! Calls of linked functions that skip the host: what [`wrap`](cwasi_vm::linked_calls::wrap) added to their callers. Runs
//! in builder and workers.
//!
//! A wrapper counts each call and calls the callee. Most calls need no more. The others go through
//! [`linked`](crate::embedded::linked), which also reports the calls before it:
//!
//! - the first of an invocation and one of 64, so that their times stand for the others';
//! - those that have spans: the first of an invocation in a recorded trace;
//! - all, if a module passes buffers, which need a frame for each call; or if a module is dispatched to, whose
//!   unread responses are copied before it runs again.

use cwasi_vm::host_calls::embedded_call::Direct;
use wasmtime::{AsContextMut, Func, Global, Instance, Ref, Val};

use super::binding::{Binding, serve};
use super::link_exports::LinkExports;

/// Of the calls of a function, one of 64 goes through the host.
const TIMED: u64 = 63;
/// All calls go through the host.
const ALL: u64 = 0;

/// The linked calls of one VM.
#[derive(Default)]
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
    /// Puts the callees into the table of a caller's instance. `numbers` are those of its imports in the VM, `functions`
    /// the callees by number. False if the instance has not what it should have.
    #[must_use]
    pub(super) fn add(
        &mut self,
        store: impl AsContextMut,
        instance: Instance,
        exports: &LinkExports,
        (numbers, functions): (&[usize], &[Func]),
    ) -> bool {
        let part = PartLinks::new(store, instance, exports, numbers, functions);
        part.map(|part| self.parts.push(part)).is_some()
    }

    /// Decides which calls go through the host from now on: those that have spans all do.
    pub(super) fn choose(
        &mut self,
        mut store: impl AsContextMut,
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

    /// After an invocation: counts the calls that have not gone through the host. The first call of the next one does.
    pub(super) fn end(&mut self, mut store: impl AsContextMut, binding: &Binding) {
        for counter in self.parts.iter_mut().flat_map(|part| &mut part.counters) {
            counter.report(&mut store, binding);
            counter.begin_again(&mut store);
        }
    }

    /// In a call that goes through the host: counts the calls before it. It counts itself.
    pub(super) fn end_one(&mut self, mut store: impl AsContextMut, binding: &Binding, number: u32) {
        let mut counters = self.parts.iter_mut().flat_map(|part| &mut part.counters);
        if let Some(counter) = counters.find(|counter| counter.number == number) {
            counter.report(&mut store, binding);
            // The wrapper counts this call when it returns.
            counter.reported += 1;
        }
    }

    /// The numbers of the linked functions that run, outermost first: a module calls one at a time, of a module before
    /// it.
    pub(super) fn running(&self, mut store: impl AsContextMut) -> Vec<u32> {
        self.parts.iter().rev().filter_map(|part| part.running(&mut store)).collect()
    }
}

impl PartLinks {
    fn new(
        mut store: impl AsContextMut,
        instance: Instance,
        exports: &LinkExports,
        numbers: &[usize],
        functions: &[Func],
    ) -> Option<Self> {
        let callees = instance.get_module_export(&mut store, &exports.callees)?.into_table()?;
        let mut counters = Vec::with_capacity(numbers.len());
        for (place, (number, calls)) in (0..).zip(numbers.iter().zip(&exports.calls)) {
            let function = *functions.get(*number)?;
            callees.set(&mut store, place, Ref::Func(Some(function))).ok()?;
            let calls = instance.get_module_export(&mut store, calls)?.into_global()?;
            // Those of a start function have gone through the host.
            let reported = calls.get(&mut store).i64().unwrap_or_default().cast_unsigned();
            counters.push(Counter { calls, number: u32::try_from(*number).ok()?, reported });
        }
        let mut global = |place| instance.get_module_export(&mut store, place)?.into_global();
        Some(Self { mask: global(&exports.mask)?, running: global(&exports.running)?, counters })
    }

    /// The number of the linked function that runs.
    fn running(&self, store: impl AsContextMut) -> Option<u32> {
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
    /// Counts from 0 on. All calls are reported.
    fn begin_again(&mut self, store: impl AsContextMut) {
        if self.reported > 0 && self.calls.set(store, Val::I64(0)).is_ok() {
            self.reported = 0;
        }
    }
}
