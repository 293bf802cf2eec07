//! A loaded function, and what one of its instances needs beside code and memory.

use std::path::Path;
use std::rc::Rc;

use cwasi_host_functions::Host;

use super::Shared;
use super::instance::{Renewing, WasmEdgeInstance};
use super::program::{Program, check_reactor};
use super::renewal::Origin;
use super::surroundings::Spares;
use super::wasi::{Passed, WASI};
use crate::vm::engine::{InstanceSpec, Module, NotRenewed, VmError};
use crate::vm::gate;
use crate::wire::control::{EmbeddedModule, Entry};

/// A loaded module.
#[derive(Debug)]
pub struct WasmEdgeModule {
    engine: Rc<Shared>,
    program: Rc<Program>,
    wasi: Passed,
    spares: Rc<Spares>,
    /// What instances are brought back to, or why they cannot be.
    origin: Result<Rc<Origin>, NotRenewed>,
}

impl WasmEdgeModule {
    pub(super) fn load(
        engine: Rc<Shared>,
        artifact: &Path,
        embedded: &[EmbeddedModule],
    ) -> Result<Self, VmError> {
        let program = Rc::new(Program::load(&engine, artifact, embedded)?);
        let origin = match program.not_renewed() {
            None => Ok(Rc::new(Origin::new(program.populated.clone()))),
            Some(reason) => Err(reason),
        };
        let spares = Rc::new(Spares::new(Rc::clone(&engine), Rc::clone(&program)));
        Ok(Self { engine, program, wasi: Passed::default(), spares, origin })
    }

    /// How one more instance is brought back to what it starts with.
    fn renewing(&self, spec: &InstanceSpec) -> Renewing {
        match &self.origin {
            Ok(origin) if origin.covers(spec) => {
                Renewing::Origin(Rc::clone(origin), self.engine.page_count)
            }
            Ok(_) => Renewing::Never(None),
            Err(reason) => Renewing::Never(Some(*reason)),
        }
    }
}

impl Module for WasmEdgeModule {
    type Instance = WasmEdgeInstance;

    fn check(&self, entry: &Entry) -> Result<(), VmError> {
        let code = &self.program.root.code;
        match entry {
            Entry::Reactor => check_reactor(code, ""),
            Entry::Command { export } if code.exports_function(export, 0, 0) => Ok(()),
            Entry::Command { export } => {
                let exported: Vec<String> = code
                    .exports
                    .iter()
                    .filter(|function| function.name != gate::HOME)
                    .map(|function| format!("`{}`", function.name))
                    .collect();
                let what = format!("a function `{export}` without parameters and results");
                Err(VmError::entry(what, entry, &exported))
            }
        }
    }

    fn instantiate(
        &self,
        spec: &InstanceSpec,
        host: &mut Host,
    ) -> Result<WasmEdgeInstance, VmError> {
        let around = self.spares.lend(spec)?;
        let imports = self.program.root.code.imported_from(WASI);
        let wasi = self.wasi.or_fresh(spec, imports, self.engine.network.as_ref())?;
        WasmEdgeInstance::new(around, wasi, self.renewing(spec), host)
    }
}
