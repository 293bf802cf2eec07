//! What is around an instance and serves the next one as well: the executor and the host functions. Making them costs a
//! hundred allocations, and nothing in them belongs to a guest once the slot is empty.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use cwasi_abi::IMPORT_MODULE;

use super::handles::{Executor, ModuleInstance};
use super::imports;
use super::module::WasmEdgeModule;
use super::slot::Slot;
use super::sockets::Wasi;
use super::wasi::WASI;
use crate::vm::engine::{InstanceSpec, VmError};
use crate::vm::gate;

/// Most surroundings that wait for an instance: one runs, one is made ahead.
const SPARES_MAX: usize = 2;

/// What an instance needs beside its own code and memory. Fields are dropped in this order: what is bound to the slot
/// before the slot.
#[derive(Debug)]
pub(super) struct Surroundings {
    pub(super) imports: Imports,
    pub(super) executor: Executor,
    pub(super) slot: Box<Slot>,
}

/// What all modules of a VM import.
#[derive(Debug)]
pub(super) struct Imports {
    pub(super) host: ModuleInstance,
    /// The host functions under the name that a dispatch gate imports.
    pub(super) gate_host: Option<(ModuleInstance, ModuleInstance)>,
    /// Embedded modules get nothing of the container: no arguments, no variables, no directories.
    pub(super) embedded_wasi: Option<Rc<Wasi>>,
}

impl Surroundings {
    fn new(module: &WasmEdgeModule) -> Result<Self, VmError> {
        let executor = Executor::new(&module.engine.configure)?;
        let slot = Box::new(Slot::new(Rc::clone(&module.program), None));
        Ok(Self { imports: Imports::new(module, &slot)?, executor, slot })
    }
}

impl Imports {
    fn new(module: &WasmEdgeModule, slot: &Slot) -> Result<Self, VmError> {
        let embedded = &slot.program.embedded;
        let gate_host = if embedded.is_empty() {
            None
        } else {
            Some((imports::gate_module(slot)?, imports::module(gate::HOST, slot)?))
        };
        let needs_wasi = embedded.iter().any(|part| part.code.imports_from(WASI));
        let embedded_wasi = if needs_wasi { Some(module.embedded_wasi()?) } else { None };
        Ok(Self { host: imports::module(IMPORT_MODULE, slot)?, gate_host, embedded_wasi })
    }
}

/// Surroundings that no instance uses.
#[derive(Debug, Default)]
pub(super) struct Spares(RefCell<Vec<Surroundings>>);

impl Spares {
    /// Surroundings for one instance of `module`, whose spares these are.
    pub(super) fn lend(
        self: &Rc<Self>,
        module: &WasmEdgeModule,
        spec: &InstanceSpec,
    ) -> Result<Lent, VmError> {
        let spare = self.0.borrow_mut().pop();
        let mut lent = match spare {
            Some(spare) => spare,
            None => Surroundings::new(module)?,
        };
        lent.slot.serve(spec.pool.clone());
        Ok(Lent { lent: Some(lent), spares: Rc::clone(self) })
    }
}

/// Surroundings in use; they come back when this is dropped, after everything that was made in them.
#[derive(Debug)]
pub(super) struct Lent {
    /// Always there until it is dropped.
    lent: Option<Surroundings>,
    spares: Rc<Spares>,
}

impl Deref for Lent {
    type Target = Surroundings;

    fn deref(&self) -> &Surroundings {
        self.lent.as_ref().expect("taken out when dropped only")
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut Surroundings {
        self.lent.as_mut().expect("taken out when dropped only")
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let Some(mut lent) = self.lent.take() else { return };
        lent.slot.empty();
        let mut spares = self.spares.0.borrow_mut();
        if spares.len() < SPARES_MAX {
            spares.push(lent);
        }
    }
}
