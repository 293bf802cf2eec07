//! A caller's dispatch when its one callee is embedded. `tests/worker_life` has this file, too.

use cwasi_host_functions::Dispatch;
use cwasi_modes::{CallError, CallResult, OutgoingPayload};
use cwasi_sys::clock::Deadline;

/// Says that the first embedded module is the callee of this name.
pub struct Inside(pub &'static str);

impl Dispatch for Inside {
    fn call(&mut self, target: &str, _: OutgoingPayload<'_>, _: Option<Deadline>) -> CallResult {
        panic!("{target} is embedded")
    }

    fn embedded(
        &mut self,
        target: &str,
        _: u64,
        _: Option<Deadline>,
    ) -> Result<Option<usize>, CallError> {
        Ok((target == self.0).then_some(0))
    }
}
