//! A loaded function, and what its instances need besides code and memory. Runs in builder and workers.

use std::path::Path;
use std::rc::Rc;

use cwasi_host_functions::Host;

use super::EngineShared;
use super::instance::{Renewability, WasmEdgeInstance};
use super::program::Program;
use super::renewal::Origin;
use super::resources::ResourcePool;
use super::wasi::{ReusableWasi, WASI};
use cwasi_vm::engine::{InstanceSpec, Module, NotRenewed, VmError};
use cwasi_wire::control::{EmbeddedModule, Entry};

#[derive(Debug)]
pub struct WasmEdgeModule {
    engine: Rc<EngineShared>,
    program: Rc<Program>,
    wasi: ReusableWasi,
    pool: Rc<ResourcePool>,
    /// The state to which instances are restored, or the reason why they cannot be.
    origin: Result<Rc<Origin>, NotRenewed>,
}

impl WasmEdgeModule {
    pub(super) fn load(
        engine: Rc<EngineShared>,
        artifact: &Path,
        embedded: &[EmbeddedModule],
    ) -> Result<Self, VmError> {
        let program = Rc::new(Program::load(&engine, artifact, embedded)?);
        let origin = match program.not_renewed() {
            None => Ok(Rc::new(Origin::new(program.composition.populated.clone()))),
            Some(reason) => Err(reason),
        };
        let pool = Rc::new(ResourcePool::new(Rc::clone(&engine), Rc::clone(&program)));
        Ok(Self { engine, program, wasi: ReusableWasi::default(), pool, origin })
    }

    /// Prepares the renewal of one more instance.
    fn renewing(&self, spec: &InstanceSpec) -> Renewability {
        match &self.origin {
            Ok(origin) if origin.covers(spec) => {
                Renewability::Origin(Rc::clone(origin), self.engine.page_count)
            }
            Ok(_) => Renewability::Never(None),
            Err(reason) => Renewability::Never(Some(*reason)),
        }
    }
}

impl Module for WasmEdgeModule {
    type Instance = WasmEdgeInstance;

    fn check(&self, entry: &Entry) -> Result<(), VmError> {
        self.program.root.code.interface.check(entry)
    }

    fn instantiate(
        &self,
        spec: &InstanceSpec,
        host: &mut Host,
    ) -> Result<WasmEdgeInstance, VmError> {
        let resources = self.pool.lend(spec)?;
        let imports = self.program.root.code.interface.imported_from(WASI);
        let wasi = self.wasi.shared_or_new(spec, imports, self.engine.network.as_ref())?;
        WasmEdgeInstance::new(resources, wasi, self.renewing(spec), host)
    }
}
