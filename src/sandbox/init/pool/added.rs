//! Workers that a function has only while it needs them ([`crate::init::growth`]). They read from no connection. Runs in
//! sandbox init.

use std::collections::BTreeMap;

use cwasi_modes::Payload;
use cwasi_sys::process_usage::{ProcessorUse, peak_memory, processor_use};
use cwasi_wire::envelope::Undelivered;

use super::{PoolEntry, WorkerPool};

impl WorkerPool<'_> {
    /// Workers, and those about to be forked.
    #[must_use]
    pub fn present(&self) -> usize {
        self.entries.len() - self.suspended()
    }

    /// Workers that can begin a request.
    #[must_use]
    pub fn free(&self) -> usize {
        self.workers().filter(|worker| worker.can_begin()).count()
    }

    /// Workers that have a request.
    #[must_use]
    pub fn busy(&self) -> usize {
        self.workers().filter(|worker| worker.slot.state().is_busy()).count()
    }

    /// Lets `more` workers be forked, as far as the table has slots.
    pub fn add(&mut self, more: usize) {
        let slots = self.table.slots().count();
        let vacant = self.entries[self.least..].iter_mut().filter(|it| it.is_suspended());
        let again = vacant.take(more).map(|entry| entry.fork_at = Some(0)).count();
        let new = (more - again).min(slots - self.entries.len());
        self.entries.extend((0..new).map(|_| PoolEntry { worker: None, fork_at: Some(0) }));
    }

    /// Ends up to `surplus` added workers that are free, the last ones first. Returns the answers that they left to
    /// init.
    pub fn end_added(&mut self, surplus: usize) -> Vec<(Undelivered, Payload)> {
        let added = (self.least..self.entries.len()).rev();
        let ended = added.filter_map(|index| self.suspend_one(index));
        ended.take(surplus).flatten().collect()
    }

    /// What each worker has used of the processors, by process number.
    #[must_use]
    pub fn processor_use(&self) -> BTreeMap<i32, ProcessorUse> {
        let workers = self.workers();
        workers.filter_map(|it| Some((it.pid.as_raw(), processor_use(it.pid)?))).collect()
    }

    /// The most memory, in bytes, that a worker has had; `None` where the kernel does not say.
    #[must_use]
    pub fn peak_memory(&self) -> Option<u64> {
        self.workers().map(|worker| peak_memory(worker.pid)).max().flatten()
    }
}
