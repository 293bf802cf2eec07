//! Suspended workers: those of an idle function (`cwasi.idle`), which end until requests wait again. Runs in sandbox init.

use std::os::fd::AsFd;

use super::{ForkWorker, PoolEntry, WorkerPool};
use crate::modes::Payload;
use crate::wire::envelope::Undelivered;

impl<F: ForkWorker> WorkerPool<F> {
    /// Ends the workers that are free, for as long as the function is idle. Each is assigned a turn first, so that it
    /// begins no request before it ends. Returns the answers that they left to init.
    pub fn suspend(&mut self) -> Vec<(Undelivered, Payload)> {
        let mut undelivered = Vec::new();
        for index in 0..self.entries.len() {
            let Some(slot) = self.table.slot(index) else { continue };
            let PoolEntry::Occupied(worker) = &self.entries[index] else { continue };
            if !worker.can_begin(slot.state()) || slot.assign().is_none() {
                continue;
            }
            worker.kill();
            undelivered.extend(self.read(index).undelivered);
            if let Some(slot) = self.table.slot(index) {
                if slot.clear_role() {
                    self.wakeup.wake_one();
                }
                slot.reset();
            }
            let entry = std::mem::replace(&mut self.entries[index], PoolEntry::Suspended);
            if let PoolEntry::Occupied(worker) = entry {
                self.watch.remove(worker.socket.as_fd());
            }
        }
        undelivered
    }

    /// Lets as many suspended workers be forked as requests wait, less those that are starting.
    pub fn resume(&mut self, waiting: usize) {
        let vacant = |entry: &&PoolEntry| matches!(entry, PoolEntry::Vacant { .. });
        let on_the_way = self.starting() + self.entries.iter().filter(vacant).count();
        let wanted = waiting.saturating_sub(on_the_way);
        let suspended =
            self.entries.iter_mut().filter(|entry| matches!(entry, PoolEntry::Suspended));
        suspended.take(wanted).for_each(|entry| *entry = PoolEntry::Vacant { not_before: 0 });
    }

    /// How many workers are suspended or starting.
    #[must_use]
    pub fn absent(&self) -> usize {
        let suspended = |entry: &&PoolEntry| matches!(entry, PoolEntry::Suspended);
        self.starting() + self.entries.iter().filter(suspended).count()
    }

    /// How many workers make their first instance.
    fn starting(&self) -> usize {
        self.workers().filter(|(.., slot)| !slot.state().has_started()).count()
    }

    /// True when all workers are suspended.
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.entries.iter().all(|entry| matches!(entry, PoolEntry::Suspended))
    }
}
