//! A loaded function, and what its instances share. Runs in builder and workers.
#![expect(unsafe_code, reason = "lends descriptors that wasmtime owns")]

use std::cell::RefCell;
use std::os::fd::{BorrowedFd, RawFd};
use std::path::Path;
use std::rc::Rc;

use cwasi_components::{ComponentFunction, MemoryBudget};
use cwasi_host_functions::Host;
use cwasi_vm::engine::{InstanceSpec, Module, VmError};
use cwasi_wasi::{SocketNetwork, WasiTemplate};
use cwasi_wasmtime_artifact::Kind;
use cwasi_wire::control::{EmbeddedModule, Entry};

use super::any_instance::WasmtimeInstance;
use super::callees;
use super::code_file::{CodeFile, component, data_images};
use super::instance::CoreInstance;
use super::program::Program;
use super::{Wasmtime, page_map};

/// A loaded function: a core module or a component, with what it embeds.
#[derive(Debug)]
pub struct WasmtimeModule(Loaded);

#[derive(Debug)]
enum Loaded {
    Core(CoreModule),
    Component { function: ComponentFunction, descriptors: Vec<RawFd> },
}

#[derive(Debug)]
struct CoreModule {
    program: Rc<Program>,
    network: Option<SocketNetwork>,
    /// What WASI has for the last spec, which is kept without its pool.
    wasi: RefCell<Option<(InstanceSpec, Rc<WasiTemplate>)>>,
    /// Embedded modules get nothing of the container: no arguments, no variables, no directories.
    embedded_wasi: Rc<WasiTemplate>,
}

impl WasmtimeModule {
    pub(super) fn load(
        wasmtime: &Wasmtime,
        artifact: &Path,
        embedded: &[EmbeddedModule],
    ) -> Result<Self, VmError> {
        let code = CodeFile::open(artifact)?;
        Ok(Self(match code.trailer.kind {
            Kind::Module => {
                let program = Rc::new(Program::load(wasmtime, code, embedded)?);
                Loaded::Core(CoreModule {
                    program,
                    network: wasmtime.network.clone(),
                    wasi: RefCell::default(),
                    embedded_wasi: Rc::default(),
                })
            }
            Kind::Component | Kind::AsyncComponent => {
                let function = component(wasmtime, wasmtime.network.clone(), &code)?;
                let function = function.embedding(callees::load(wasmtime, embedded)?);
                let images = data_images().map_err(|_| VmError::Setup { what: "descriptors" })?;
                let page_map = page_map::find().map(|(number, _)| number);
                let descriptors = images.into_iter().chain(page_map).collect();
                Loaded::Component { function, descriptors }
            }
        }))
    }
}

impl CoreModule {
    fn template(&self, spec: &InstanceSpec) -> Result<Rc<WasiTemplate>, VmError> {
        let mut kept = self.wasi.borrow_mut();
        match &*kept {
            Some((made_for, template)) if is_alike(made_for, spec) => Ok(Rc::clone(template)),
            _ => {
                let template = Rc::new(WasiTemplate::new(spec, self.network.as_ref())?);
                let (args, env) = (spec.args.clone(), spec.env.clone());
                let preopens = spec.preopens.clone();
                let made_for = InstanceSpec { args, env, preopens, pool: None };
                *kept = Some((made_for, Rc::clone(&template)));
                Ok(template)
            }
        }
    }
}

/// True if WASI has the same for both.
fn is_alike(one: &InstanceSpec, other: &InstanceSpec) -> bool {
    one.args == other.args && one.env == other.env && one.preopens == other.preopens
}

impl Module for WasmtimeModule {
    type Instance = WasmtimeInstance;

    fn check(&self, entry: &Entry) -> Result<(), VmError> {
        match &self.0 {
            Loaded::Core(core) => core.program.root().interface.check(entry),
            Loaded::Component { function, .. } => function.check(entry),
        }
    }

    fn instantiate(
        &self,
        spec: &InstanceSpec,
        host: &mut Host,
    ) -> Result<WasmtimeInstance, VmError> {
        Ok(match &self.0 {
            Loaded::Core(core) => {
                let wasi = [&core.embedded_wasi, &core.template(spec)?].map(Rc::clone);
                let budget = MemoryBudget::new(core.program.composition.memory_max);
                let memory = (spec.pool.clone(), budget);
                let made = CoreInstance::new(&core.program, wasi, memory, host)?;
                WasmtimeInstance::Core(made)
            }
            Loaded::Component { function, .. } => {
                WasmtimeInstance::Component(function.instantiate(spec, host)?)
            }
        })
    }

    fn forked(&self) {
        page_map::reopen();
        match &self.0 {
            // Never dropped from here on: wasmtime would close its files, whose numbers have other owners here.
            Loaded::Core(core) => std::mem::forget(Rc::clone(&core.program)),
            Loaded::Component { function, .. } => function.forked(),
        }
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        // SAFETY:
        // - wasmtime keeps them open as long as the program lives.
        let lent = |number: RawFd| unsafe { BorrowedFd::borrow_raw(number) };
        let descriptors = match &self.0 {
            Loaded::Core(core) => &core.program.descriptors,
            Loaded::Component { descriptors, .. } => descriptors,
        };
        descriptors.iter().copied().map(lent).collect()
    }
}
