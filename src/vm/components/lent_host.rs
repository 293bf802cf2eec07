//! The host of a worker, lent to the functions that a component imports while the component runs. A component that
//! calls an embedded function lends it on: only the innermost one has it. Runs in a worker.
#![expect(unsafe_code, reason = "lends a borrow through the engine")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use cwasi_host_functions::Host;

/// The host while the component runs; `None` otherwise.
#[derive(Debug, Default)]
pub struct LentHost(Option<NonNull<Host>>);

// SAFETY:
// - a worker has one thread, and its runtime runs every future on it: the pointer never reaches another one.
unsafe impl Send for LentHost {}

impl LentHost {
    /// Begins to lend `host`.
    ///
    /// # Safety
    /// [`Self::take_back`] follows before the borrow of `host` ends.
    pub(super) unsafe fn lend(&mut self, host: &mut Host) {
        self.0 = Some(NonNull::from(host));
    }

    pub(super) fn take_back(&mut self) {
        self.0 = None;
    }

    /// Runs a host function; `None` without a host, or after a panic, which is a bug of the host.
    pub fn with<T>(&mut self, run: impl FnOnce(&mut Host) -> T) -> Option<T> {
        let mut host = self.0?;
        // SAFETY:
        // - `lend`'s caller takes it back before the borrow ends.
        // - one reference at a time: `self` is borrowed for as long as it is used.
        let host = unsafe { host.as_mut() };
        catch_unwind(AssertUnwindSafe(|| run(host))).ok()
    }
}
