//! Suspended workers: those of an idle function (`cwasi.idle`), which end until requests wait again. Runs in sandbox init.

use std::os::fd::AsFd;

use nix::sys::signal::{Signal, kill};

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
            let _gone = kill(worker.pid, Signal::SIGKILL);
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
        let starting = |entry: &&PoolEntry| match entry {
            PoolEntry::Occupied(worker) => !worker.started,
            PoolEntry::Vacant { .. } => true,
            PoolEntry::Suspended => false,
        };
        let wanted = waiting.saturating_sub(self.entries.iter().filter(starting).count());
        let suspended =
            self.entries.iter_mut().filter(|entry| matches!(entry, PoolEntry::Suspended));
        suspended.take(wanted).for_each(|entry| *entry = PoolEntry::Vacant { not_before: 0 });
    }

    /// How many workers are suspended or starting.
    #[must_use]
    pub fn absent(&self) -> usize {
        let absent = |entry: &&PoolEntry| match entry {
            PoolEntry::Occupied(worker) => !worker.started,
            PoolEntry::Vacant { .. } => false,
            PoolEntry::Suspended => true,
        };
        self.entries.iter().filter(absent).count()
    }

    /// True when all workers are suspended.
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.entries.iter().all(|entry| matches!(entry, PoolEntry::Suspended))
    }
}
