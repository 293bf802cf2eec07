//! A core module that a component embeds: an instance in a store of its own, with those of the modules that it links, in
//! the caller's process. Runs in a worker.

use std::rc::Rc;

use cwasi_components::{Callee, CalleeEnds, LentHost, MemoryBudget};
use cwasi_host_functions::Host;
use cwasi_modes::pool::SegmentPool;
use cwasi_modes::{CallError, Payload};
use cwasi_vm::engine::Instance as _;
use cwasi_vm::reactor::{self, CalleeEnd, InstanceBlocks};
use cwasi_wasi::WasiTemplate;

use super::instance::CoreInstance;
use super::program::Program;

/// An embedded core module. Its instance is made at its first call, and lives as long as its caller's.
pub(super) struct EmbeddedModule {
    program: Rc<Program>,
    pool: Option<SegmentPool>,
    /// Its caller's.
    budget: MemoryBudget,
    instance: Option<(CoreInstance, InstanceBlocks)>,
}

impl EmbeddedModule {
    pub(super) const fn new(
        program: Rc<Program>,
        pool: Option<SegmentPool>,
        budget: MemoryBudget,
    ) -> Self {
        Self { program, pool, budget, instance: None }
    }

    fn run(&mut self, payload: &Payload, host: &mut Host) -> CalleeEnd {
        let instance = match self.instance.take() {
            Some(instance) => instance,
            None => {
                // It gets nothing of the container, as an embedded module does.
                let wasi = [Rc::<WasiTemplate>::default(), Rc::default()];
                let memory = (self.pool.clone(), self.budget.clone());
                match CoreInstance::new(&self.program, wasi, memory, host) {
                    Ok(instance) => (instance, InstanceBlocks::default()),
                    Err(error) => return Ok(Err(CallError::Failed { message: error.to_string() })),
                }
            }
        };
        let (instance, kept) = self.instance.insert(instance);
        let outcome = reactor::handle_again(instance, kept, payload, host);
        let ended = outcome.ended(self.pool.as_ref())?;
        reactor::give_back(instance, kept, host).map_err(|error| error.to_string())?;
        Ok(ended)
    }
}

impl Callee for EmbeddedModule {
    fn handle<'a>(&'a mut self, payload: &'a Payload, host: &'a mut LentHost) -> CalleeEnds<'a> {
        let ended = host.with(|host| self.run(payload, host));
        let ended = ended.unwrap_or_else(|| {
            let message = "the host could not serve the call".to_owned();
            Ok(Err(CallError::Internal { message }))
        });
        Box::pin(std::future::ready(ended))
    }

    fn is_nearly_full(&self) -> bool {
        self.instance.as_ref().is_some_and(|(instance, _)| instance.is_nearly_full())
    }
}
