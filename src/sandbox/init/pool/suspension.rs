//! Suspended workers: those of an idle function (`cwasi.idle`), which end until requests wait again. Runs in sandbox init.

use super::{ForkWorker, PoolEntry, WorkerPool};
use crate::modes::Payload;
use crate::wire::envelope::Undelivered;

impl<F: ForkWorker> WorkerPool<'_, F> {
    /// Ends the workers that are free, for as long as the function is idle. Each is assigned a turn first, so that it
    /// begins no request before it ends. Returns the answers that they left to init.
    pub fn suspend(&mut self) -> Vec<(Undelivered, Payload)> {
        let mut undelivered = Vec::new();
        for index in 0..self.entries.len() {
            let free = self.entries[index].worker().filter(|worker| worker.can_begin());
            if free.is_none_or(|worker| worker.slot.assign().is_none()) {
                continue;
            }
            undelivered.extend(self.read(index).undelivered);
            if let Some(worker) = self.take(index, PoolEntry::Suspended) {
                worker.kill();
                worker.slot.reset();
            }
        }
        undelivered
    }

    /// Lets as many suspended workers be forked as requests wait, less those that are starting.
    pub fn resume(&mut self, waiting: usize) {
        let vacant = self.entries.iter().filter(|entry| matches!(entry, PoolEntry::Vacant { .. }));
        let wanted = waiting.saturating_sub(self.starting() + vacant.count());
        let suspended =
            self.entries.iter_mut().filter(|entry| matches!(entry, PoolEntry::Suspended));
        suspended.take(wanted).for_each(|entry| *entry = PoolEntry::Vacant { not_before: 0 });
    }

    /// How many workers are suspended or starting.
    #[must_use]
    pub fn absent(&self) -> usize {
        let suspended = self.entries.iter().filter(|entry| matches!(entry, PoolEntry::Suspended));
        self.starting() + suspended.count()
    }

    /// How many workers make their first instance.
    fn starting(&self) -> usize {
        self.workers().filter(|worker| !worker.has_started()).count()
    }

    /// True when all workers are suspended.
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.entries.iter().all(|entry| matches!(entry, PoolEntry::Suspended))
    }
}
