//! Suspended workers: those of an idle function (`cwasi.idle`), which end until requests wait again. Runs in sandbox init.

use super::WorkerPool;
use cwasi_modes::Payload;
use cwasi_wire::envelope::Undelivered;

impl WorkerPool<'_> {
    /// Ends the workers that are free, for as long as the function is idle. Each is assigned a turn first, so that it
    /// begins no request before it ends. Returns the answers that they left to init.
    pub fn suspend(&mut self) -> Vec<(Undelivered, Payload)> {
        (0..self.entries.len()).filter_map(|index| self.suspend_one(index)).flatten().collect()
    }

    /// Ends a worker if it is free, as [`Self::suspend`] does; `None` if it is not.
    pub(super) fn suspend_one(&mut self, index: usize) -> Option<Vec<(Undelivered, Payload)>> {
        let worker = self.entries[index].worker.as_ref()?;
        if !worker.can_begin() {
            return None;
        }
        worker.slot.assign()?;
        let undelivered = self.read(index).undelivered;
        if let Some(worker) = self.take(index, None) {
            worker.kill();
            worker.slot.reset();
        }
        Some(undelivered)
    }

    /// Lets as many suspended workers be forked as requests wait, less those that are starting. None is added.
    pub fn resume(&mut self, waiting: usize) {
        let wanted = waiting.saturating_sub(self.starting());
        let suspended = self.entries[..self.least].iter_mut().filter(|it| it.is_suspended());
        suspended.take(wanted).for_each(|entry| entry.fork_at = Some(0));
    }

    /// How many workers are suspended or starting.
    #[must_use]
    pub fn absent(&self) -> usize {
        self.workers().count() - self.started() + self.suspended()
    }

    /// How many workers are starting, or are about to be forked.
    #[must_use]
    pub fn starting(&self) -> usize {
        self.entries.len() - self.started() - self.suspended()
    }

    pub(super) fn suspended(&self) -> usize {
        self.entries.iter().filter(|entry| entry.is_suspended()).count()
    }

    /// True when all workers are suspended.
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.suspended() == self.entries.len()
    }
}
