//! A loaded component, and what its instances share. Runs in builder and workers.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use cwasi_abi::interfaces::{HANDLER, RUN};
use cwasi_host_functions::Host;
use cwasi_vm::engine::{InstanceSpec, VmError};
use cwasi_wasi::SocketNetwork;
use cwasi_wire::control::Entry;
use wasmtime::Config;

use super::instance::ComponentInstance;
use super::options::ComponentOptions;
use super::program::ComponentProgram;
use super::requests::Outgoing;
use super::wasi::WasiSettings;

/// A loaded component.
#[derive(Debug)]
pub struct ComponentFunction {
    program: Rc<ComponentProgram>,
    memory_max: Option<u64>,
    network: Option<SocketNetwork>,
    /// What its HTTP requests share; `None` = it sends none.
    outgoing: Option<Outgoing>,
    /// What WASI has for the last spec.
    wasi: RefCell<Option<(InstanceSpec, Rc<WasiSettings>)>>,
}

impl ComponentFunction {
    /// Loads native code that our own compiler made of a component. `settings` agree with the compiler's.
    ///
    /// # Errors
    /// When the file is not that, or the component imports what this host does not offer.
    pub fn load(
        settings: &dyn Fn() -> Config,
        path: &Path,
        options: ComponentOptions,
    ) -> Result<Self, VmError> {
        let program = Rc::new(ComponentProgram::load(settings, path, &options)?);
        let ComponentOptions { memory_max, network, log, .. } = options;
        let outgoing =
            program.sends_requests.then(|| Outgoing::new(network.as_ref(), log)).transpose()?;
        Ok(Self { program, memory_max, network, outgoing, wasi: RefCell::default() })
    }

    /// Called first in each forked process. From then on the program is never dropped: wasmtime would close its files,
    /// whose numbers have other owners here.
    pub fn forked(&self) {
        std::mem::forget(Rc::clone(&self.program));
    }

    /// Checks that an invocation can call `entry`.
    ///
    /// # Errors
    /// The interface that is missing.
    pub fn check(&self, entry: &Entry) -> Result<(), VmError> {
        let wanted = match entry {
            Entry::Reactor if self.program.exports.handles() => return Ok(()),
            Entry::Command { .. } if self.program.exports.run.is_some() => return Ok(()),
            Entry::Reactor => HANDLER.name,
            Entry::Command { .. } => RUN.name,
        };
        let hint = match self.program.exports.names.as_slice() {
            [] => "the component exports nothing".to_owned(),
            names => format!("the component exports {}", names.join(", ")),
        };
        Err(VmError::Entry { missing: format!("the interface `{wanted}`"), hint })
    }

    /// Makes a new instance. Its stdin, stdout and stderr are this process's.
    ///
    /// # Errors
    /// When memory runs out, or a core module of it does not start.
    pub fn instantiate(
        &self,
        spec: &InstanceSpec,
        host: &mut Host,
    ) -> Result<ComponentInstance, VmError> {
        let limits = (self.memory_max, spec.pool.clone());
        ComponentInstance::new(&self.program, &*self.settings(spec)?, limits, host)
    }

    fn settings(&self, spec: &InstanceSpec) -> Result<Rc<WasiSettings>, VmError> {
        let mut kept = self.wasi.borrow_mut();
        if let Some((made_for, settings)) = &*kept
            && made_for.args == spec.args
            && made_for.env == spec.env
            && made_for.preopens == spec.preopens
        {
            return Ok(Rc::clone(settings));
        }
        let settings = WasiSettings::new(spec, self.network.as_ref(), self.outgoing.as_ref())?;
        *kept = Some((InstanceSpec { pool: None, ..spec.clone() }, Rc::clone(&settings)));
        Ok(settings)
    }
}
