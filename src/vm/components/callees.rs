//! The functions that a component embeds: calls of their names run them in the caller's process. Runs in builder and
//! workers.

use std::pin::Pin;
use std::rc::Rc;

use cwasi_modes::pool::SegmentPool;
use cwasi_modes::{CallError, Payload};
use cwasi_vm::reactor::CalleeEnd;

use super::lent_host::LentHost;
use super::memory_limit::MemoryBudget;
use super::one_thread::OneThread;

/// The end of a callee's invocation, when it has come.
pub type CalleeEnds<'a> = Pin<Box<dyn Future<Output = CalleeEnd> + 'a>>;

/// An embedded function in the process of one caller's instance, with a store of its own.
pub trait Callee {
    /// Runs its handler to the end.
    fn handle<'a>(&'a mut self, payload: &'a Payload, host: &'a mut LentHost) -> CalleeEnds<'a>;

    /// True if it should be replaced by a fresh one, with its caller.
    fn is_nearly_full(&self) -> bool {
        false
    }
}

/// Makes a callee for an instance of its caller, whose budget of memory it shares.
pub type MakeCallee = Box<dyn Fn(Option<SegmentPool>, MemoryBudget) -> Box<dyn Callee>>;

/// A module that a component embeds.
pub struct EmbeddedFunction {
    /// By which it is called.
    pub name: String,
    /// `None` for a module that only others import.
    pub make: Option<MakeCallee>,
}

/// The callees of one instance, in the order of the embedded modules.
#[derive(Default)]
pub(super) struct Callees(OneThread<Vec<EmbeddedCallee>>);

struct EmbeddedCallee {
    name: String,
    callee: Option<Box<dyn Callee>>,
}

impl Callees {
    pub(super) fn new(
        functions: &Rc<[EmbeddedFunction]>,
        pool: Option<&SegmentPool>,
        budget: &MemoryBudget,
    ) -> Self {
        let callee = |function: &EmbeddedFunction| EmbeddedCallee {
            name: function.name.clone(),
            callee: function.make.as_ref().map(|make| make(pool.cloned(), budget.clone())),
        };
        Self(OneThread(functions.iter().map(callee).collect()))
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.0.is_empty()
    }

    pub(super) fn name(&self, index: usize) -> &str {
        self.0.0.get(index).map_or("", |callee| &callee.name)
    }

    pub(super) fn is_nearly_full(&self) -> bool {
        let mut callees = self.0.0.iter().filter_map(|callee| callee.callee.as_ref());
        callees.any(|callee| callee.is_nearly_full())
    }

    /// Runs the handler of one.
    pub(super) fn handle<'a>(
        &'a mut self,
        index: usize,
        payload: &'a Payload,
        host: &'a mut LentHost,
    ) -> OneThread<CalleeEnds<'a>> {
        let callee = self.0.0.get_mut(index).and_then(|callee| callee.callee.as_mut());
        OneThread(match callee {
            Some(callee) => callee.handle(payload, host),
            None => {
                let message = "no such embedded function".to_owned();
                Box::pin(std::future::ready(Ok(Err(CallError::Internal { message }))))
            }
        })
    }
}
