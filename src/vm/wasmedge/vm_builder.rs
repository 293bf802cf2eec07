//! Builds a VM: instantiates a function and its embedded modules, each with its imports and trampolines. Runs in a
//! worker.

use std::rc::Rc;

use cwasi_abi::IMPORT_MODULE;
use cwasi_host_functions::Host;

use super::engine_code::EngineCode;
use super::handles::{Executor, LoadFault, ModuleInstance, Store};
use super::program::Part;
use super::resources::InstanceResources;
use cwasi_vm::engine::VmError;
use cwasi_vm::trampoline;

/// Why a start function's call of a linked function has trapped.
const NO_LINKED_CALLS: &str = "with WasmEdge a start function cannot call linked functions; call them in \
    `_initialize` or in an export, or set cwasi.engine=wasmtime";

/// One module's instance, with its imported trampolines.
#[derive(Debug)]
pub(super) struct InstantiatedModule {
    pub(super) instance: ModuleInstance,
    _trampolines: Vec<ModuleInstance>,
    _store: Store,
}

/// Modules during the construction of a VM.
pub(super) struct VmBuilder<'a> {
    pub(super) resources: &'a InstanceResources,
    pub(super) host: &'a mut Host,
}

impl VmBuilder<'_> {
    /// Instantiates an embedded module, after those that it imports.
    pub(super) fn embedded(
        &mut self,
        part: &Part,
        before: &[InstantiatedModule],
    ) -> Result<InstantiatedModule, VmError> {
        let refused = |code: EngineCode| instantiate_error(&part.name, &code.to_string());
        let store = Store::new()?;
        if let Some(wasi) = &self.resources.imports.embedded_wasi {
            self.resources.executor.register(&store, wasi).map_err(refused)?;
        }
        self.resources.executor.register(&store, &self.resources.imports.host).map_err(refused)?;
        let trampolines = self.trampolines(part, &store, before)?;
        let name = trampoline::instance_name(&part.name);
        self.place(part, store, trampolines, |executor, store| {
            executor.instantiate_as(store, &part.code.ast, &name)
        })
    }

    /// Instantiates the function itself, after its embedded modules.
    pub(super) fn root(
        &mut self,
        wasi: &ModuleInstance,
        embedded: &[InstantiatedModule],
    ) -> Result<InstantiatedModule, VmError> {
        let program = Rc::clone(&self.resources.program);
        let part = &program.root;
        let refused = |code: EngineCode| instantiate_error("", &code.to_string());
        let store = Store::new()?;
        self.resources.executor.register(&store, wasi).map_err(refused)?;
        let mut trampolines = self.trampolines(part, &store, embedded)?;
        match (&program.dispatch, &self.resources.imports.trampoline_host) {
            (Some(dispatch), Some((_, host))) => {
                self.resources.executor.register(&store, host).map_err(refused)?;
                let linked: Vec<usize> = part.links.iter().map(|link| link.callee).collect();
                for (index, placed) in embedded.iter().enumerate() {
                    if !linked.contains(&index) {
                        self.resources
                            .executor
                            .register(&store, &placed.instance)
                            .map_err(refused)?;
                    }
                }
                if linked.is_empty() {
                    self.register_trampoline_host(&store)?;
                }
                let trampoline =
                    self.resources.executor.instantiate_as(&store, dispatch, IMPORT_MODULE);
                trampolines.push(trampoline.map_err(|fault| fault_error("", fault))?);
            }
            _ => self
                .resources
                .executor
                .register(&store, &self.resources.imports.host)
                .map_err(refused)?,
        }
        self.place(part, store, trampolines, |executor, store| {
            executor.instantiate(store, &part.code.ast)
        })
    }

    /// Instantiates the trampolines of `part` and their imports in `store`.
    fn trampolines(
        &self,
        part: &Part,
        store: &Store,
        before: &[InstantiatedModule],
    ) -> Result<Vec<ModuleInstance>, VmError> {
        let refused = |code: EngineCode| instantiate_error(&part.name, &code.to_string());
        if !part.links.is_empty() {
            self.register_trampoline_host(store)?;
        }
        let mut trampolines = Vec::new();
        for link in &part.links {
            self.resources
                .executor
                .register(store, &before[link.callee].instance)
                .map_err(refused)?;
            let name = self.resources.program.composition.name(link.callee);
            let trampoline = self.resources.executor.instantiate_as(store, &link.trampoline, name);
            trampolines.push(trampoline.map_err(|fault| fault_error(&part.name, fault))?);
        }
        Ok(trampolines)
    }

    fn register_trampoline_host(&self, store: &Store) -> Result<(), VmError> {
        let refused = |code: EngineCode| instantiate_error("", &code.to_string());
        match &self.resources.imports.trampoline_host {
            Some((trampoline_host, _)) => {
                self.resources.executor.register(store, trampoline_host).map_err(refused)
            }
            None => Ok(()),
        }
    }

    /// Instantiates a module and connects its trampolines with its `cwasi.home`.
    fn place(
        &mut self,
        part: &Part,
        store: Store,
        trampolines: Vec<ModuleInstance>,
        instantiate: impl FnOnce(&Executor, &Store) -> Result<ModuleInstance, LoadFault>,
    ) -> Result<InstantiatedModule, VmError> {
        // A module's start function runs here. It may log, but calls are refused.
        let made = self
            .resources
            .binding
            .lend(self.host, || instantiate(&self.resources.executor, &store));
        let instance = made.map_err(|fault| start_error(part, fault))?;
        for trampoline in &trampolines {
            trampoline
                .set_table(trampoline::HOME_TABLE, instance.function(trampoline::HOME))
                .map_err(|code| instantiate_error(&part.name, &code.to_string()))?;
        }
        Ok(InstantiatedModule { instance, _trampolines: trampolines, _store: store })
    }
}

fn fault_error(name: &str, fault: LoadFault) -> VmError {
    match fault {
        LoadFault::Vm(error) => error,
        LoadFault::Code(code) => instantiate_error(name, &code.to_string()),
    }
}

/// The error of a module whose start function may have called a linked function, which cannot return to it yet.
fn start_error(part: &Part, fault: LoadFault) -> VmError {
    match fault {
        LoadFault::Code(code) if !part.links.is_empty() && code.is_uninitialized_element() => {
            instantiate_error(&part.name, &format!("{code}: {NO_LINKED_CALLS}"))
        }
        fault => fault_error(&part.name, fault),
    }
}

fn instantiate_error(name: &str, reason: &str) -> VmError {
    let reason =
        if name.is_empty() { reason.to_owned() } else { format!("embedded {name}: {reason}") };
    VmError::Instantiate { reason }
}
