//! A component that another function embeds: an instance in a store of its own, in the caller's process. Runs in a
//! worker.

use std::rc::Rc;

use cwasi_host_functions::Host;
use cwasi_modes::pool::SegmentPool;
use cwasi_modes::{CallError, Payload};
use cwasi_vm::engine::InstanceSpec;
use cwasi_vm::reactor::{CalleeEnd, HandlerInput};

use super::callees::{Callee, CalleeEnds};
use super::function::ComponentFunction;
use super::instance::ComponentInstance;
use super::lent_host::LentHost;
use super::memory_limit::MemoryBudget;
use super::runtime::lend;

/// An embedded component. Its instance is made at its first call, and lives as long as its caller's.
#[derive(Debug)]
pub struct EmbeddedComponent {
    function: Rc<ComponentFunction>,
    pool: Option<SegmentPool>,
    /// Its caller's.
    budget: MemoryBudget,
    instance: Option<ComponentInstance>,
}

impl EmbeddedComponent {
    /// `pool` is where its payloads are kept; `None` = in segments of their own. Its memory takes from its caller's
    /// `budget`.
    #[must_use]
    pub const fn new(
        function: Rc<ComponentFunction>,
        pool: Option<SegmentPool>,
        budget: MemoryBudget,
    ) -> Self {
        Self { function, pool, budget, instance: None }
    }

    /// Runs its handler for a caller that is no component.
    pub fn handle_now(&mut self, payload: &Payload, host: &mut Host) -> CalleeEnd {
        let ended = lend(host, async |host| self.run(payload, host).await);
        ended.unwrap_or_else(|error| Err(error.to_string()))
    }

    async fn run(&mut self, payload: &Payload, host: &mut LentHost) -> CalleeEnd {
        let instance = match self.instance.take() {
            Some(instance) => instance,
            None => {
                // It gets nothing of the container, as an embedded module does.
                let spec = InstanceSpec { pool: self.pool.clone(), ..InstanceSpec::default() };
                match self.function.make(&spec, &self.budget, host).await {
                    Ok(instance) => instance.without_http(),
                    Err(error) => return Ok(Err(CallError::Failed { message: error.to_string() })),
                }
            }
        };
        let instance = self.instance.insert(instance);
        instance.run_handler(HandlerInput::Whole(payload), host).await.ended(self.pool.as_ref())
    }
}

impl Callee for EmbeddedComponent {
    fn handle<'a>(&'a mut self, payload: &'a Payload, host: &'a mut LentHost) -> CalleeEnds<'a> {
        Box::pin(self.run(payload, host))
    }
}
