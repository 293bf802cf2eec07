//! What is around an instance and serves the next one as well: the executor and the host functions. Making them costs a
//! hundred allocations, and nothing in them belongs to a guest once the slot is empty.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use cwasi_abi::IMPORT_MODULE;

use super::Shared;
use super::handles::{Executor, ModuleInstance};
use super::imports;
use super::program::Program;
use super::slot::Slot;
use super::sockets::Wasi;
use super::wasi::{Passed, WASI};
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
    fn new(engine: &Shared, program: &Rc<Program>, embedded: &Passed) -> Result<Self, VmError> {
        let executor = Executor::new(&engine.configure)?;
        let slot = Box::new(Slot::new(Rc::clone(program), None));
        Ok(Self { imports: Imports::new(&slot, embedded)?, executor, slot })
    }
}

impl Imports {
    fn new(slot: &Slot, embedded: &Passed) -> Result<Self, VmError> {
        let parts = &slot.program.embedded;
        let gate_host = if parts.is_empty() {
            None
        } else {
            Some((imports::gate_module(slot)?, imports::module(gate::HOST, slot)?))
        };
        let embedded_wasi = if parts.iter().any(|part| part.code.imports_from(WASI)) {
            let imports = parts.iter().flat_map(|part| part.code.imported_from(WASI));
            Some(embedded.or_fresh(&InstanceSpec::default(), imports, None)?)
        } else {
            None
        };
        Ok(Self { host: imports::module(IMPORT_MODULE, slot)?, gate_host, embedded_wasi })
    }
}

/// Makes surroundings, and keeps those that no instance uses.
#[derive(Debug)]
pub(super) struct Spares {
    engine: Rc<Shared>,
    program: Rc<Program>,
    /// The WASI of embedded modules.
    embedded_wasi: Passed,
    unused: RefCell<Vec<Surroundings>>,
}

impl Spares {
    /// Of one loaded function.
    pub(super) fn new(engine: Rc<Shared>, program: Rc<Program>) -> Self {
        Self { engine, program, embedded_wasi: Passed::default(), unused: RefCell::default() }
    }

    /// Surroundings for one instance.
    pub(super) fn lend(self: &Rc<Self>, spec: &InstanceSpec) -> Result<Lent, VmError> {
        let unused = self.unused.borrow_mut().pop();
        let mut lent = match unused {
            Some(unused) => unused,
            None => Surroundings::new(&self.engine, &self.program, &self.embedded_wasi)?,
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
        let mut unused = self.spares.unused.borrow_mut();
        if unused.len() < SPARES_MAX {
            unused.push(lent);
        }
    }
}
