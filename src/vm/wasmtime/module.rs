//! A loaded function, and what its instances share. Runs in builder and workers.
#![expect(unsafe_code, reason = "lends descriptors that wasmtime owns")]

use std::cell::RefCell;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::rc::Rc;

use cwasi_host_functions::Host;
use cwasi_vm::engine::{InstanceSpec, Module, VmError};
use cwasi_wasi::{SocketNetwork, WasiTemplate};
use cwasi_wire::control::{EmbeddedModule, Entry};

use super::Wasmtime;
use super::instance::WasmtimeInstance;
use super::page_map;
use super::program::Program;

#[derive(Debug)]
pub struct WasmtimeModule {
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
        let program = Rc::new(Program::load(wasmtime, artifact, embedded)?);
        // Never dropped: wasmtime would close its files, whose numbers have other owners in forked processes by then.
        std::mem::forget(Rc::clone(&program));
        Ok(Self {
            program,
            network: wasmtime.network.clone(),
            wasi: RefCell::default(),
            embedded_wasi: Rc::default(),
        })
    }

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
        self.program.root().interface.check(entry)
    }

    fn instantiate(
        &self,
        spec: &InstanceSpec,
        host: &mut Host,
    ) -> Result<WasmtimeInstance, VmError> {
        let wasi = [&self.embedded_wasi, &self.template(spec)?].map(Rc::clone);
        WasmtimeInstance::new(&self.program, wasi, spec.pool.clone(), host)
    }

    fn forked(&self) {
        page_map::reopen();
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        // SAFETY:
        // - wasmtime keeps them open as long as the program lives.
        let lent = |number: &i32| unsafe { BorrowedFd::borrow_raw(*number) };
        self.program.descriptors.iter().map(lent).collect()
    }
}
