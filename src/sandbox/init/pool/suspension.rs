//! Suspended workers: those of an idle function (`cwasi.idle`), which end until requests wait again. Runs in sandbox init.

use super::WorkerPool;
use cwasi_modes::Payload;
use cwasi_wire::envelope::Undelivered;

impl WorkerPool<'_> {
    /// Ends the workers that are free, for as long as the function is idle. Each is assigned a turn first, so that it
    /// begins no request before it ends. Returns the answers that they left to init.
    pub fn suspend(&mut self) -> Vec<(Undelivered, Payload)> {
        let mut undelivered = Vec::new();
        for index in 0..self.entries.len() {
            let worker = self.entries[index].worker.as_ref();
            let free = worker.filter(|worker| worker.can_begin());
            if free.is_none_or(|worker| worker.slot.assign().is_none()) {
                continue;
            }
            undelivered.extend(self.read(index).undelivered);
            if let Some(worker) = self.take(index, None) {
                worker.kill();
                worker.slot.reset();
            }
        }
        undelivered
    }

    /// Lets as many suspended workers be forked as requests wait, less those that are starting.
    pub fn resume(&mut self, waiting: usize) {
        let wanted = waiting.saturating_sub(self.entries.len() - self.started() - self.suspended());
        let suspended = self.entries.iter_mut().filter(|entry| entry.is_suspended());
        suspended.take(wanted).for_each(|entry| entry.fork_at = Some(0));
    }

    /// How many workers are suspended or starting.
    #[must_use]
    pub fn absent(&self) -> usize {
        self.workers().count() - self.started() + self.suspended()
    }

    fn suspended(&self) -> usize {
        self.entries.iter().filter(|entry| entry.is_suspended()).count()
    }

    /// True when all workers are suspended.
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.suspended() == self.entries.len()
    }
}
