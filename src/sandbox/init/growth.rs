//! How many workers a function without `cwasi.concurrency` has: one, more while requests wait and its workers leave
//! processors unused, fewer when that is over. Runs in sandbox init. Pure: the caller has the clock and the samples.
//!
//! While requests wait, init measures how long each worker runs or waits for a processor ([`window`]); the rest of the
//! time it *sleeps*: it waits for a disk, a clock, another function or its next request. Workers are added as long as
//! all of them together want less than the processors, in two measurements: as many as would want all of these if they
//! are like the present ones, at most twice as many. So workers that compute are hardly more than the processors,
//! whatever else runs on these, and those that sleep reach the bound in some measurements.
//!
//! Workers end when they were not needed for [`IDLE_NS`], or when together they want more than twice the processors for
//! [`CROWDED_NS`]: they slept before, and compute now.
//!
//! A request that is accepted beyond the queue's bound, because a worker can be forked for it, gets one at once.

use std::collections::BTreeMap;

use cwasi_sys::process_usage::ProcessorUse;

use self::window::{Measured, Windows};

#[cfg(test)]
mod tests;
mod window;

/// Time after which the workers that were not needed in it end, in nanoseconds.
const IDLE_NS: u64 = 10_000_000_000;
/// Measured time in which workers that want too many processors are found, in nanoseconds.
const CROWDED_NS: u64 = 1_000_000_000;
/// How often workers may want the processors.
const CROWDED: u64 = 2;
/// How long no worker is added after one could not be forked or started, in nanoseconds.
const HOLD_NS: u64 = 5_000_000_000;
/// The part of the container's memory limit that workers may reach, as a fraction.
const MEMORY_SHARE: (u64, u64) = (3, 4);

/// The processors of a function.
#[derive(Clone, Copy, Debug)]
pub struct Processors {
    /// Those that its workers may run on.
    pub count: usize,
    /// Thousandths of a processor that its container may use; `None` = all of them.
    pub quota_milli: Option<u64>,
}

impl Processors {
    /// Their time in `took` nanoseconds.
    fn time(self, took: u64) -> u64 {
        let all = took.saturating_mul(u64::try_from(self.count.max(1)).unwrap_or(u64::MAX));
        let quota = self.quota_milli.map(|milli| took.saturating_mul(milli) / 1000);
        quota.map_or(all, |quota| all.min(quota)).max(1)
    }
}

/// What a container may have, and what its workers took so far, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct MemoryUse {
    pub limit: u64,
    /// What one more worker may take.
    pub each: u64,
}

impl MemoryUse {
    /// How many workers fit.
    fn workers(self) -> usize {
        let (part, whole) = MEMORY_SHARE;
        let fit = self.limit / whole * part / self.each.max(1);
        usize::try_from(fit).unwrap_or(usize::MAX)
    }
}

/// The function at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Requests that wait, less those that workers which are free or starting will take.
    pub waiting: usize,
    /// Workers, those that are starting included.
    pub workers: usize,
    /// Of these, those with a request.
    pub busy: usize,
}

/// Decides how many workers a function has.
#[derive(Debug)]
pub struct Growth {
    least: usize,
    most: usize,
    /// Requests that may wait without a worker of their own.
    queue: usize,
    windows: Windows,
    /// Workers that the last measurement asked for.
    wanted: usize,
    /// What the workers wanted of the processors, of how much, and in which time.
    crowd: Measured,
    /// No worker is added before this.
    held_until: u64,
    /// Most workers that had a request since `peak_since`.
    peak: usize,
    peak_since: u64,
}

impl Growth {
    /// From `least` to `most` workers; `queue` requests may wait.
    #[must_use]
    pub fn new(least: usize, most: usize, queue: usize) -> Self {
        Self {
            least,
            most,
            queue,
            windows: Windows::default(),
            wanted: 0,
            crowd: Measured::default(),
            held_until: 0,
            peak: 0,
            peak_since: 0,
        }
    }

    /// Workers that can be added at `now`: requests may wait for them beyond the queue's bound.
    #[must_use]
    pub const fn room(&self, now: u64, workers: usize) -> usize {
        if now < self.held_until { 0 } else { self.most.saturating_sub(workers) }
    }

    /// A worker could not be forked or started: none is added for a while.
    pub const fn hold(&mut self, now: u64) {
        self.held_until = now.saturating_add(HOLD_NS);
    }

    /// How many workers to add. `used`: what each worker has used, by process number; `memory`: `None` without a
    /// limit.
    pub fn more(
        &mut self,
        now: u64,
        load: Load,
        processors: impl FnOnce() -> Processors,
        used: impl FnOnce() -> BTreeMap<i32, ProcessorUse>,
        memory: impl FnOnce() -> Option<MemoryUse>,
    ) -> usize {
        let measured = self.windows.look(now, load.waiting > 0, processors, used);
        let asked_for = measured.map_or(0, |measured| self.note(measured, load.waiting));
        let beyond = load.waiting.saturating_sub(self.queue);
        let wanted = beyond.max(asked_for).min(self.room(now, load.workers));
        if wanted == 0 {
            return 0;
        }
        let fit = memory().map_or(usize::MAX, MemoryUse::workers);
        let added = wanted.min(fit.saturating_sub(load.workers));
        if added < wanted {
            self.hold(now);
        }
        if load.workers <= self.least {
            (self.peak, self.peak_since) = (load.busy, now);
        }
        if added > 0 {
            self.windows.hurry();
            self.crowd = Measured::default();
        }
        added
    }

    /// Notes a measurement. How many workers it and the one before ask for.
    fn note(&mut self, measured: Measured, waiting: usize) -> usize {
        self.crowd = self.crowd.and(measured);
        let wanted = measured.more().min(waiting);
        let before = std::mem::replace(&mut self.wanted, wanted);
        if measured.is_first { 0 } else { before.min(wanted) }
    }

    /// How many workers to end: those that had no request for some time, or that compete for the processors.
    pub fn surplus(&mut self, now: u64, load: Load) -> usize {
        self.peak = self.peak.max(load.busy);
        let crowded = self.crowded(load.workers);
        if self.check_at(load.workers).is_none_or(|at| now < at) {
            return crowded;
        }
        let needed = std::mem::replace(&mut self.peak, load.busy).max(self.least);
        self.peak_since = now;
        load.workers.saturating_sub(needed).max(crowded)
    }

    /// How many of the workers compete for the processors, after the time in which that is found.
    fn crowded(&mut self, workers: usize) -> usize {
        if self.crowd.took < CROWDED_NS {
            return 0;
        }
        let Measured { asked, time, .. } = std::mem::take(&mut self.crowd);
        let bearable = time.saturating_mul(CROWDED);
        if asked <= bearable {
            return 0;
        }
        let kept = (workers as u64).saturating_mul(bearable).div_ceil(asked);
        workers.saturating_sub(usize::try_from(kept).unwrap_or(usize::MAX).max(self.least))
    }

    /// When to ask for the [`Self::surplus`] again; `None` when there is none.
    #[must_use]
    pub fn check_at(&self, workers: usize) -> Option<u64> {
        (workers > self.least).then(|| self.peak_since.saturating_add(IDLE_NS))
    }
}
