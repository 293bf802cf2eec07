//! Objects around an instance that the next instance uses again: executor and host functions. Runs in a worker.
//!
//! Making them costs a hundred allocations. Invariant: they hold nothing of a guest when the binding is empty.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use cwasi_abi::IMPORT_MODULE;

use super::EngineShared;
use super::handles::{Executor, ModuleInstance};
use super::host_function::Binding;
use super::imports;
use super::program::Program;
use super::sockets::Wasi;
use super::wasi::{ReusableWasi, WASI};
use cwasi_vm::engine::{InstanceSpec, VmError};
use cwasi_vm::trampoline;

/// Most resources that wait for an instance: one runs, one is made ahead.
const POOLED_MAX: usize = 2;

/// What an instance needs beside its own code and memory. Fields are dropped in this order: what is bound to the
/// binding before the binding.
#[derive(Debug)]
pub(super) struct InstanceResources {
    pub(super) imports: Imports,
    pub(super) executor: Executor,
    pub(super) binding: Box<Binding>,
    pub(super) program: Rc<Program>,
}

/// What all modules of a VM import.
#[derive(Debug)]
pub(super) struct Imports {
    pub(super) host: ModuleInstance,
    /// The host functions under the name that a dispatch trampoline imports.
    pub(super) trampoline_host: Option<(ModuleInstance, ModuleInstance)>,
    /// Embedded modules get nothing of the container: no arguments, no variables, no directories.
    pub(super) embedded_wasi: Option<Rc<Wasi>>,
}

impl InstanceResources {
    fn new(
        engine: &EngineShared,
        program: &Rc<Program>,
        embedded: &ReusableWasi,
    ) -> Result<Self, VmError> {
        let executor = Executor::new(&engine.configure)?;
        let binding = Box::new(Binding::new(Rc::clone(&program.composition), None));
        Ok(Self {
            imports: Imports::new(&binding, program, embedded)?,
            executor,
            binding,
            program: Rc::clone(program),
        })
    }
}

impl Imports {
    fn new(binding: &Binding, program: &Program, embedded: &ReusableWasi) -> Result<Self, VmError> {
        let parts = &program.embedded;
        let trampoline_host = if parts.is_empty() {
            None
        } else {
            Some((
                imports::trampoline_module(binding)?,
                imports::module(trampoline::HOST, binding)?,
            ))
        };
        let embedded_wasi = if parts.iter().any(|part| part.code.interface.imports_from(WASI)) {
            let imports = parts.iter().flat_map(|part| part.code.interface.imported_from(WASI));
            Some(embedded.shared_or_new(&InstanceSpec::default(), imports, None)?)
        } else {
            None
        };
        Ok(Self { host: imports::module(IMPORT_MODULE, binding)?, trampoline_host, embedded_wasi })
    }
}

/// Makes instances' resources, and pools those that no instance uses.
#[derive(Debug)]
pub(super) struct ResourcePool {
    engine: Rc<EngineShared>,
    program: Rc<Program>,
    /// The WASI of embedded modules.
    embedded_wasi: ReusableWasi,
    unused: RefCell<Vec<InstanceResources>>,
}

impl ResourcePool {
    /// Of one loaded function.
    pub(super) fn new(engine: Rc<EngineShared>, program: Rc<Program>) -> Self {
        Self { engine, program, embedded_wasi: ReusableWasi::default(), unused: RefCell::default() }
    }

    pub(super) fn lend(self: &Rc<Self>, spec: &InstanceSpec) -> Result<PooledResources, VmError> {
        let unused = self.unused.borrow_mut().pop();
        let mut lent = match unused {
            Some(unused) => unused,
            None => InstanceResources::new(&self.engine, &self.program, &self.embedded_wasi)?,
        };
        lent.binding.serve(spec.pool.clone());
        Ok(PooledResources { lent: Some(lent), pool: Rc::clone(self) })
    }
}

/// Resources in use; they return to the pool when this is dropped, after everything that was made in them.
#[derive(Debug)]
pub(super) struct PooledResources {
    /// Always there until it is dropped.
    lent: Option<InstanceResources>,
    pool: Rc<ResourcePool>,
}

impl Deref for PooledResources {
    type Target = InstanceResources;

    fn deref(&self) -> &InstanceResources {
        self.lent.as_ref().expect("taken out when dropped only")
    }
}

impl DerefMut for PooledResources {
    fn deref_mut(&mut self) -> &mut InstanceResources {
        self.lent.as_mut().expect("taken out when dropped only")
    }
}

impl Drop for PooledResources {
    fn drop(&mut self) {
        let Some(mut lent) = self.lent.take() else { return };
        lent.binding.empty();
        let mut unused = self.pool.unused.borrow_mut();
        if unused.len() < POOLED_MAX {
            unused.push(lent);
        }
    }
}
