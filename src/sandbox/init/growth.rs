//! How many workers a function without `cwasi.concurrency` has: one, more while requests wait and its workers leave
//! processors unused, fewer when that is over. Runs in sandbox init. Pure: the caller has the clock and the samples.
//!
//! While requests wait, init measures for [`WINDOW_NS`] how long each worker runs. A worker that ran less than an
//! eighth of that time *sleeps*: it waits for a disk, a clock or another function. If fewer workers are awake than there
//! are processors, the function gets more: twice as many when most of them sleep, or else one for each processor that
//! is left. So workers that compute are never more than the processors, and those that wait reach the bound in some
//! windows. A worker that waits for its turn at a processor counts as awake, as long as it gets an eighth of one.
//!
//! A request that is accepted beyond the queue's bound, because a worker can be forked for it, gets one at once.

use std::collections::BTreeMap;

/// How long workers are measured before a decision, in nanoseconds: several slices of a busy processor's scheduler.
const WINDOW_NS: u64 = 16_000_000;
/// A measurement that has lasted longer is no measurement: init slept meanwhile.
const STALE_NS: u64 = 10 * WINDOW_NS;
/// A worker is awake when it runs this part of the time.
const AWAKE_SHARE: u64 = 8;
/// Requests wait when they did for this part of a measurement.
const WAITING_SHARE: u64 = 4;
/// Time after which the workers that were not needed in it end, in nanoseconds.
const IDLE_NS: u64 = 10_000_000_000;
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
    /// How many workers can run at a time.
    fn usable(self) -> usize {
        let quota = self.quota_milli.map(|milli| milli.div_ceil(1000));
        let quota = quota.map_or(usize::MAX, |it| usize::try_from(it).unwrap_or(usize::MAX));
        self.count.min(quota).max(1)
    }

    /// The processor time above which a worker counts as awake.
    fn awake_ns(self, took: u64) -> u64 {
        let milli = self.quota_milli.unwrap_or(1000).clamp(1, 1000);
        took.saturating_mul(milli) / 1000 / AWAKE_SHARE
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
    /// Requests that wait, less those that workers which are starting will take.
    pub waiting: usize,
    /// Workers, those that are starting included.
    pub workers: usize,
    /// Of these, those with a request.
    pub busy: usize,
}

/// A measurement that has begun.
#[derive(Debug)]
struct Window {
    began: u64,
    /// Processor time of each worker then, by process number.
    used: BTreeMap<i32, u64>,
    /// The last look at it, and whether requests waited then.
    seen: (u64, bool),
    /// How long requests have waited since it began.
    waited_ns: u64,
}

impl Window {
    const fn new(now: u64, used: BTreeMap<i32, u64>) -> Self {
        Self { began: now, used, seen: (now, true), waited_ns: 0 }
    }

    const fn look(&mut self, now: u64, waits: bool) {
        let (last, waited) = std::mem::replace(&mut self.seen, (now, waits));
        if waited {
            self.waited_ns = self.waited_ns.saturating_add(now.saturating_sub(last));
        }
    }
}

/// Decides how many workers a function has.
#[derive(Debug)]
pub struct Growth {
    least: usize,
    most: usize,
    /// Requests that may wait without a worker of their own.
    queue: usize,
    window: Option<Window>,
    /// No worker is added before this.
    held_until: u64,
    /// Most workers that had a request since `peak_since`.
    peak: usize,
    peak_since: u64,
}

impl Growth {
    /// From `least` to `most` workers; `queue` requests may wait.
    #[must_use]
    pub const fn new(least: usize, most: usize, queue: usize) -> Self {
        Self { least, most, queue, window: None, held_until: 0, peak: 0, peak_since: 0 }
    }

    /// Workers that can be added at `now`: requests may wait for them beyond the queue's bound.
    #[must_use]
    pub const fn room(&self, now: u64, workers: usize) -> usize {
        if now < self.held_until { 0 } else { self.most.saturating_sub(workers) }
    }

    /// A worker could not be forked or started: none is added for a while.
    pub fn hold(&mut self, now: u64) {
        self.held_until = now.saturating_add(HOLD_NS);
        self.window = None;
    }

    /// How many workers to add. `used`: processor time of each worker by process number; `memory`: `None` without a
    /// limit.
    pub fn more(
        &mut self,
        now: u64,
        load: Load,
        processors: impl FnOnce() -> Processors,
        used: impl FnOnce() -> BTreeMap<i32, u64>,
        memory: impl FnOnce() -> Option<MemoryUse>,
    ) -> usize {
        let room = self.room(now, load.workers);
        if room == 0 {
            self.window = None;
            return 0;
        }
        let beyond = load.waiting.saturating_sub(self.queue);
        let wanted = beyond.max(self.measured(now, load, processors, used)).min(room);
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
        added
    }

    /// How many workers a measurement that has ended asks for.
    fn measured(
        &mut self,
        now: u64,
        load: Load,
        processors: impl FnOnce() -> Processors,
        used: impl FnOnce() -> BTreeMap<i32, u64>,
    ) -> usize {
        let waits = load.waiting > 0;
        let fresh = |window: &&mut Window| now.saturating_sub(window.began) < STALE_NS;
        let Some(window) = self.window.as_mut().filter(fresh) else {
            self.window = waits.then(|| Window::new(now, used()));
            return 0;
        };
        window.look(now, waits);
        let took = now.saturating_sub(window.began);
        if took < WINDOW_NS {
            return 0;
        }
        let waited = window.waited_ns.saturating_mul(WAITING_SHARE) >= took;
        let (now_used, before) = (used(), std::mem::take(&mut window.used));
        let processors = processors();
        let enough = processors.awake_ns(took);
        let is_awake = |(pid, used): &(&i32, &u64)| {
            used.saturating_sub(before.get(pid).copied().unwrap_or(0)) >= enough
        };
        let awake = now_used.iter().filter(is_awake).count();
        let (workers, unused) = (load.workers, processors.usable().saturating_sub(awake));
        self.window = waits.then(|| Window::new(now, now_used));
        match unused {
            _ if !waited || !waits => 0,
            0 => 0,
            _ if awake * 2 <= workers => workers.min(load.waiting),
            unused => unused.min(load.waiting),
        }
    }

    /// How many workers to end: those that had no request for some time.
    pub fn surplus(&mut self, now: u64, load: Load) -> usize {
        self.peak = self.peak.max(load.busy);
        if self.check_at(load.workers).is_none_or(|at| now < at) {
            return 0;
        }
        let needed = std::mem::replace(&mut self.peak, load.busy).max(self.least);
        self.peak_since = now;
        load.workers.saturating_sub(needed)
    }

    /// When to ask for the [`Self::surplus`] again; `None` when there is none.
    #[must_use]
    pub fn check_at(&self, workers: usize) -> Option<u64> {
        (workers > self.least).then(|| self.peak_since.saturating_add(IDLE_NS))
    }
}

#[cfg(test)]
mod tests;
