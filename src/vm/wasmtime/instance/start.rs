//! How a VM is made: its modules' instances, what is called in them, `_initialize`. Runs in a worker.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use cwasi_abi::export;
use cwasi_host_functions::{GuestPtr, Host};
use cwasi_vm::engine::{GuestStop, VmError};
use cwasi_vm::host_calls::embedded::{CalleeBuffers, CalleeMemory};
use wasmtime::{Extern, Func, ModuleExport};

use super::CoreInstance;
use crate::links::Links;
use crate::program::{Part, PartCode, Program};
use crate::stop;
use crate::vm::Callee;

impl CoreInstance {
    /// Makes the modules' instances. A module's start function may log, but calls are refused.
    pub(super) fn instantiate(&mut self, mut host: Option<&mut Host>) -> Result<(), VmError> {
        let program = Rc::clone(&self.program);
        let binding = Rc::clone(&self.store.data().binding);
        for (index, part) in program.parts.iter().enumerate() {
            let PartCode::Module(code) = &part.code else {
                self.instances.push(None);
                continue;
            };
            // Its start function may call them.
            self.find_linked(&program, index)?;
            let mut instantiate = || code.instantiate(&mut *self.store);
            let made = match &mut host {
                Some(host) => binding.lend(host, instantiate),
                None => instantiate(),
            };
            let instance = made.map_err(|error| {
                let reason = stop::reason(&error);
                let of = if part.name.is_empty() { "" } else { "embedded " };
                let colon = if part.name.is_empty() { "" } else { ": " };
                VmError::Instantiate { reason: format!("{of}{}{colon}{reason}", part.name) }
            })?;
            let memory = part.exports.memory.as_ref();
            let memory =
                memory.and_then(|export| instance.get_module_export(&mut *self.store, export));
            self.store.data_mut().parts[index].memory = memory.and_then(Extern::into_memory);
            self.instances.push(Some(instance));
        }
        if program.links_directly {
            self.link_directly(&program)?;
        }
        Ok(())
    }

    /// Finds the linked functions that the module `part` imports. Their numbers follow those of the modules before it.
    fn find_linked(&mut self, program: &Program, part: usize) -> Result<(), VmError> {
        let caller = (part < program.embedded().len()).then_some(part);
        let functions = program.composition.functions.iter().zip(&program.linked);
        for (_, (callee, export)) in functions.filter(|(function, _)| function.caller == caller) {
            let function = self.function(*callee, Some(export));
            let function = function.ok_or(VmError::Setup { what: "linked function" })?;
            self.store.data_mut().linked.push(function);
        }
        Ok(())
    }

    /// Lets linked calls skip the host.
    fn link_directly(&mut self, program: &Program) -> Result<(), VmError> {
        let mut links = Links::default();
        let functions = self.store.data().linked.clone();
        for (index, (part, instance)) in program.parts.iter().zip(&self.instances).enumerate() {
            let (Some(exports), Some(instance)) = (&part.links, instance) else { continue };
            let numbers = program.numbers_of(index, &exports.imports);
            let numbers = numbers.filter(|numbers| {
                links.add(&mut *self.store, *instance, exports, (numbers, &functions))
            });
            numbers.ok_or(VmError::Setup { what: "linked functions" })?;
        }
        self.store.data_mut().links = Some(Rc::new(RefCell::new(links)));
        Ok(())
    }

    /// Finds what is called and read for each request.
    pub(super) fn find_exports(&mut self) {
        let program = Rc::clone(&self.program);
        let root = program.embedded().len();
        self.memory = self.store.data().parts[root].memory;
        let exports = &program.root().exports;
        self.alloc =
            self.function(root, exports.alloc.as_ref()).and_then(|it| it.typed(&*self.store).ok());
        self.handle =
            self.function(root, exports.handle.as_ref()).and_then(|it| it.typed(&*self.store).ok());
        self.free =
            self.function(root, exports.free.as_ref()).and_then(|it| it.typed(&*self.store).ok());
        self.response = self.address(root, exports.response.as_ref());
        let mut callees = Vec::with_capacity(root);
        for (index, part) in program.embedded().iter().enumerate() {
            let response = self.address(index, part.exports.response.as_ref());
            let payload = self.address(index, part.exports.payload.as_ref());
            let buffers = payload.zip(response).map(|(payload, response)| CalleeBuffers {
                payload: GuestPtr(payload),
                response: GuestPtr(response),
            });
            callees.push(CalleeMemory { memory: self.linear(index), buffers });
            if part.is_callee {
                let callee = self.callee(index, part, response);
                self.store.data_mut().parts[index].callee = callee.map(Rc::new);
            }
        }
        let own = self.linear(root);
        self.store.data().binding.embedded.borrow_mut().set_memories(own, callees);
    }

    fn callee(&mut self, index: usize, part: &Part, response: Option<u32>) -> Option<Callee> {
        let alloc = self.function(index, part.exports.alloc.as_ref())?;
        let handle = self.function(index, part.exports.handle.as_ref())?;
        let free = self.function(index, part.exports.free.as_ref());
        let store = &*self.store;
        Some(Callee {
            alloc: alloc.typed(store).ok()?,
            handle: handle.typed(store).ok()?,
            free: free.and_then(|free| free.typed(store).ok()),
            response,
            asked: Cell::default(),
        })
    }

    fn function(&mut self, part: usize, export: Option<&ModuleExport>) -> Option<Func> {
        self.instances[part]?.get_module_export(&mut *self.store, export?)?.into_func()
    }

    /// Value of an exported immutable `i32`.
    fn address(&mut self, part: usize, export: Option<&ModuleExport>) -> Option<u32> {
        let found = self.instances[part]?.get_module_export(&mut *self.store, export?)?;
        Some(found.into_global()?.get(&mut *self.store).i32()?.cast_unsigned())
    }

    /// Runs `_initialize` of each module, embedded ones before their importers.
    pub(super) fn initialize(&mut self, host: &mut Host) -> Result<(), VmError> {
        let program = Rc::clone(&self.program);
        let binding = Rc::clone(&self.store.data().binding);
        for (index, part) in program.parts.iter().enumerate() {
            let Some(function) = self.function(index, part.exports.initialize.as_ref()) else {
                continue;
            };
            let run = binding.lend(host, || function.call(&mut *self.store, &[], &mut []));
            run.map_err(|error| VmError::Initialize {
                reason: match (part.name.as_str(), self.stopped(export::INITIALIZE, &error, host)) {
                    ("", GuestStop::Trapped(trap)) => trap.to_string(),
                    ("", GuestStop::Exited(code)) => {
                        format!("`{}` exited with code {code}", export::INITIALIZE)
                    }
                    (name, GuestStop::Trapped(trap)) => format!("embedded {name}: {}", trap.reason),
                    (name, GuestStop::Exited(code)) => {
                        format!("embedded {name}: it called exit({code})")
                    }
                },
            })?;
        }
        Ok(())
    }
}
