//! A caller's dispatch when its one callee is embedded. `tests/worker_life` has this file, too.

use cwasi_host_functions::{CallFailure, Deadline, Dispatch, Outgoing, Response};

/// Says that the first embedded module is the callee of this name.
pub struct Inside(pub &'static str);

impl Dispatch for Inside {
    fn call(
        &mut self,
        target: &str,
        _: Outgoing<'_>,
        _: Deadline,
    ) -> Result<Box<dyn Response>, CallFailure> {
        panic!("{target} is embedded")
    }

    fn embedded(
        &mut self,
        target: &str,
        _: u64,
        _: Deadline,
    ) -> Result<Option<usize>, CallFailure> {
        Ok((target == self.0).then_some(0))
    }
}
