//! Idle functions (`cwasi.idle`): when their workers end, and when they are forked again. Runs in sandbox init.

use crate::init::barrier::Barrier;
use cwasi_sys::clock::monotonic_ns;
use cwasi_vm::Module;

use super::Secondary;

impl<M: Module> Secondary<'_, M> {
    /// When it has been idle long enough for its workers to end.
    pub(super) fn idle_at(&self) -> Option<u64> {
        let idle_ms = self.sandbox.launch.idle_ms.filter(|_| !self.pool.is_suspended())?;
        let no_parts = self.barrier.as_ref().is_none_or(Barrier::is_empty);
        let nothing = no_parts && self.queue.is_empty() && self.send_queue.is_empty();
        (self.announced && nothing && self.pool.at_rest())
            .then(|| self.last_request.saturating_add(idle_ms.saturating_mul(1_000_000)))
    }

    /// Ends the workers of an idle function, and forks some when requests wait again. Init reads all requests while no
    /// reader is there.
    pub(super) fn suspend_or_resume(&mut self) {
        if self.sandbox.launch.idle_ms.is_none() {
            return;
        }
        if self.stop.is_none() && self.idle_at().is_some_and(|at| at <= monotonic_ns()) {
            self.begin_reading();
            let undelivered = self.pool.suspend();
            self.hold(undelivered);
        }
        self.pool.resume(self.queue.len());
    }
}
