//! The state of an instance after its start, from which each request of its worker begins
//! (`cwasi.isolation=snapshot`). Runs in a worker.
//!
//! A request gets a fresh instance, into which the state is copied instead of running `_initialize`.

use cwasi_abi::{GLOBAL_EXPORT, STATE_EXPORT};
use cwasi_vm::engine::NotRenewed;
use cwasi_wasi::Wasi;
use wasmtime::{Global, Instance, Memory, Store, Val};

use super::vm::VmData;

/// Bytes that are kept at most.
const BYTES_MAX: usize = 32 << 20;
/// Bytes are compared with zero, and copied, in steps of this.
const STEP: usize = 4096;

/// A snapshot of one module without embedded ones.
#[derive(Debug)]
pub(super) struct Snapshot {
    /// Steps that a new instance does not have as they are, by their offset.
    steps: Vec<(usize, Box<[u8]>)>,
    /// Pages of linear memory.
    pages: u64,
    globals: Vec<Val>,
    wasi: Wasi,
}

impl Snapshot {
    /// Of an instance whose module initializes memory up to `image_end`.
    pub(super) fn of(
        store: &mut Store<VmData>,
        instance: Instance,
        memory: Memory,
        image_end: u64,
    ) -> Result<Self, NotRenewed> {
        if instance.get_global(&mut *store, STATE_EXPORT).is_none() {
            return Err(NotRenewed::State);
        }
        let globals = globals(&mut *store, instance);
        let globals = globals.into_iter().map(|global| global.get(&mut *store)).collect();
        let data = store.data();
        let wasi = data.parts.last().and_then(|root| root.wasi.copy_without_files());
        let wasi = wasi.ok_or(NotRenewed::OpensAtStart)?;
        let mut steps = Vec::new();
        for (number, step) in memory.data(&*store).chunks(STEP).enumerate() {
            let at = number * STEP;
            // A new instance has zeros behind what the module initializes.
            if (at as u64) < image_end || step.iter().any(|byte| *byte != 0) {
                if steps.len() * STEP >= BYTES_MAX {
                    return Err(NotRenewed::TooLarge);
                }
                steps.push((at, step.into()));
            }
        }
        Ok(Self { steps, pages: memory.size(&*store), globals, wasi })
    }

    /// Copies it into a new instance; false if that has no room for it.
    pub(super) fn restore(
        &self,
        store: &mut Store<VmData>,
        instance: Instance,
        memory: Memory,
    ) -> bool {
        let more = self.pages.saturating_sub(memory.size(&*store));
        let Some(wasi) = self.wasi.copy_without_files() else { return false };
        if more > 0 && memory.grow(&mut *store, more).is_err() {
            return false;
        }
        let bytes = memory.data_mut(&mut *store);
        for (at, step) in &self.steps {
            let Some(target) = bytes.get_mut(*at..*at + step.len()) else { return false };
            target.copy_from_slice(step);
        }
        let globals = globals(&mut *store, instance);
        let mut values = globals.iter().zip(&self.globals);
        let restored = values.all(|(global, value)| global.set(&mut *store, *value).is_ok());
        if let Some(root) = store.data_mut().parts.last_mut() {
            root.wasi = wasi;
        }
        restored
    }
}

/// The mutable globals, which the compiler has exported, in the order of their numbers.
fn globals(store: &mut Store<VmData>, instance: Instance) -> Vec<Global> {
    let mut found = Vec::new();
    while let Some(global) =
        instance.get_global(&mut *store, &format!("{GLOBAL_EXPORT}{}", found.len()))
    {
        found.push(global);
    }
    found
}
