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

use super::callees::{Callees, EmbeddedFunction};
use super::instance::ComponentInstance;
use super::lent_host::LentHost;
use super::memory_limit::{MemoryBudget, MemoryLimit};
use super::options::ComponentOptions;
use super::program::ComponentProgram;
use super::requests::Outgoing;
use super::runtime::lend;
use super::wasi::WasiSettings;

/// A loaded component, with the functions that it embeds.
pub struct ComponentFunction {
    program: Rc<ComponentProgram>,
    memory_max: Option<u64>,
    network: Option<SocketNetwork>,
    /// What its HTTP requests share; `None` = it sends none.
    outgoing: Option<Outgoing>,
    /// What WASI has for the last spec.
    wasi: RefCell<Option<(InstanceSpec, Rc<WasiSettings>)>>,
    /// In the order in which the dispatcher knows them.
    embedded: Rc<[EmbeddedFunction]>,
}

impl std::fmt::Debug for ComponentFunction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ComponentFunction").field("program", &self.program).finish_non_exhaustive()
    }
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
        let (wasi, embedded) = (RefCell::default(), Rc::default());
        Ok(Self { program, memory_max, network, outgoing, wasi, embedded })
    }

    /// One that embeds these functions, in the order in which the dispatcher knows them.
    #[must_use]
    pub fn embedding(self, embedded: Vec<EmbeddedFunction>) -> Self {
        Self { embedded: embedded.into(), ..self }
    }

    /// Called first in each forked process. From then on no program is ever dropped: wasmtime would close its files,
    /// whose numbers have other owners here.
    pub fn forked(&self) {
        std::mem::forget(Rc::clone(&self.program));
        std::mem::forget(Rc::clone(&self.embedded));
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
            Entry::Command { .. } | Entry::Prototype => RUN.name,
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
        let budget = MemoryBudget::new(self.memory_max);
        lend(host, async |host| self.make(spec, &budget, host).await)?
    }

    /// [`Self::instantiate`] while another component runs, or none, within what is left of `budget`.
    pub(super) async fn make(
        &self,
        spec: &InstanceSpec,
        budget: &MemoryBudget,
        host: &mut LentHost,
    ) -> Result<ComponentInstance, VmError> {
        let callees = Callees::new(&self.embedded, spec.pool.as_ref(), budget);
        let (settings, pool) = (self.settings(spec)?, spec.pool.clone());
        let limit = MemoryLimit::new(budget.clone());
        ComponentInstance::new(&self.program, &settings, (pool, limit), callees, host).await
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
