//! Adds workers while requests wait, and ends them when they are not needed: what [`Growth`] decides.

use cwasi_modes::Payload;
use cwasi_sys::clock::monotonic_ns;
use cwasi_sys::processors;
use cwasi_wire::control::FunctionLaunch;
use cwasi_wire::envelope::Undelivered;

use crate::init::growth::{Growth, Load, MemoryUse, Processors};
use crate::init::pool::WorkerPool;

/// A function whose number of workers is not fixed.
pub(super) struct Elastic<'a> {
    launch: &'a FunctionLaunch,
    growth: Growth,
    /// Workers to end when they are free.
    surplus: usize,
}

impl<'a> Elastic<'a> {
    /// `None` for functions with a fixed number of workers.
    pub fn of(launch: &'a FunctionLaunch) -> Option<Self> {
        let (least, most) = (launch.least_workers(), launch.most_workers());
        let queue = usize::try_from(launch.queue).unwrap_or(usize::MAX);
        let growth = Growth::new(least, most, queue);
        (most > least).then_some(Self { launch, growth, surplus: 0 })
    }

    /// A worker could not be forked, or ended before it served anything: none is added for a while.
    pub fn hold(&mut self, now: u64) {
        self.growth.hold(now);
    }

    /// Workers that can still be added for requests that wait beyond the queue's bound, and those that are starting.
    pub fn addable(&self, pool: &WorkerPool<'_>) -> usize {
        let present = pool.present();
        let suspended = self.launch.least_workers().saturating_sub(present);
        self.growth.room(monotonic_ns(), present).max(suspended) + pool.starting()
    }

    /// When added workers may be surplus.
    pub fn surplus_at(&self, pool: &WorkerPool<'_>) -> Option<u64> {
        self.growth.check_at(pool.present())
    }

    /// Adds workers that `queued` requests need, and ends those that none needed for some time. Returns the answers that
    /// these left to init.
    pub fn update(
        &mut self,
        pool: &mut WorkerPool<'_>,
        queued: usize,
    ) -> Vec<(Undelivered, Payload)> {
        let (now, launch) = (monotonic_ns(), self.launch);
        let waiting = queued.saturating_sub(pool.starting() + pool.free());
        let load = Load { waiting, workers: pool.present(), busy: pool.busy() };
        let processors = || {
            // Where the kernel names none, there is one.
            let count = processors::count().unwrap_or(1);
            Processors { count, quota_milli: launch.cpu_milli }
        };
        let memory = || {
            let limit = launch.container_memory?;
            // Where the kernel does not say, one worker may take all of it.
            let measured = pool.peak_memory().unwrap_or(limit);
            let each = launch.memory_max.map_or(measured, |max| max.max(measured));
            Some(MemoryUse { limit, each })
        };
        let more = self.growth.more(now, load, processors, || pool.processor_use(), memory);
        pool.add(more);
        let surplus = self.growth.surplus(now, load);
        // A later decision counts instead of an earlier one.
        if more > 0 || surplus > 0 {
            self.surplus = surplus;
        }
        if self.surplus == 0 {
            return Vec::new();
        }
        let present = pool.present();
        let undelivered = pool.end_added(self.surplus);
        self.surplus -= present - pool.present();
        undelivered
    }
}
