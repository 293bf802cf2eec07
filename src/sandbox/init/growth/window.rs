//! Measurements of what the workers of a function want of the processors, one after the other while requests wait.
//!
//! Without `/proc` (`cwasi run --local`) the kernel says only how long a worker ran. Then workers that ran for a quarter
//! of what the processors have may have waited for them the rest of the time.

use std::collections::BTreeMap;

use cwasi_sys::process_usage::ProcessorUse;

use super::Processors;

/// How long workers are measured at first, in nanoseconds: some slices of a busy processor's scheduler.
const SHORTEST_NS: u64 = 8_000_000;
/// The same, after measurements that changed nothing: reading `/proc` costs some microseconds for each worker.
const LONGEST_NS: u64 = 128_000_000;
/// A measurement that has lasted so many times longer is none: init slept meanwhile.
const STALE: u64 = 4;
/// Requests wait when they did for this part of a measurement.
const WAITING_SHARE: u64 = 4;
/// Workers that ran for this part of the processors' time may have waited for the rest of it.
const CONTENDED_SHARE: u64 = 4;

/// Measurements that have ended.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Measured {
    /// Nanoseconds that the workers would have run on processors of their own.
    pub asked: u64,
    /// Nanoseconds that the processors have.
    pub time: u64,
    /// Nanoseconds of all measurements.
    pub took: u64,
    /// Workers of the last one.
    workers: u64,
    /// No measurement was right before the first one.
    pub is_first: bool,
}

impl Measured {
    /// This and a later one.
    pub const fn and(self, later: Self) -> Self {
        Self {
            asked: self.asked.saturating_add(later.asked),
            time: self.time.saturating_add(later.time),
            took: self.took.saturating_add(later.took),
            workers: later.workers,
            ..self
        }
    }

    /// How many workers like the present ones would use what these leave, at most as many as there are. One, where there
    /// are fewer workers than processors.
    pub fn more(self) -> usize {
        let Some(left) = self.time.checked_sub(self.asked).filter(|left| *left > 0) else {
            return 0;
        };
        let each = (self.asked / self.workers.max(1)).max(1);
        let is_below = self.workers.saturating_mul(self.took) < self.time;
        let more = (left / each).max(u64::from(is_below)).min(self.workers);
        usize::try_from(more).unwrap_or(usize::MAX)
    }
}

/// A measurement that has begun.
#[derive(Debug)]
struct Window {
    began: u64,
    /// What each worker had used then, by process number.
    used: BTreeMap<i32, ProcessorUse>,
    /// The last look at it, and whether requests waited then.
    seen: (u64, bool),
    /// How long requests have waited since it began.
    waited_ns: u64,
}

/// The present measurement, and how long it is to be.
#[derive(Debug)]
pub(super) struct Windows {
    present: Option<Window>,
    length: u64,
    /// The present one is the first of some.
    is_first: bool,
}

impl Default for Windows {
    fn default() -> Self {
        Self { present: None, length: SHORTEST_NS, is_first: true }
    }
}

impl Windows {
    /// Something has changed: the next ones are short.
    pub const fn hurry(&mut self) {
        self.length = SHORTEST_NS;
    }

    /// Notes whether requests wait now. Returns a measurement that has ended, if requests waited in it.
    pub fn look(
        &mut self,
        now: u64,
        waits: bool,
        processors: impl FnOnce() -> Processors,
        used: impl FnOnce() -> BTreeMap<i32, ProcessorUse>,
    ) -> Option<Measured> {
        let limit = self.length.saturating_mul(STALE);
        let is_fresh = |window: &&mut Window| now.saturating_sub(window.began) < limit;
        let begin = |used| Window { began: now, used, seen: (now, true), waited_ns: 0 };
        let Some(window) = self.present.as_mut().filter(is_fresh) else {
            self.hurry();
            self.is_first = true;
            self.present = waits.then(|| begin(used()));
            return None;
        };
        let (last, waited) = std::mem::replace(&mut window.seen, (now, waits));
        if waited {
            window.waited_ns = window.waited_ns.saturating_add(now.saturating_sub(last));
        }
        let took = now.saturating_sub(window.began);
        if took < self.length {
            return None;
        }
        self.length = self.length.saturating_mul(2).min(LONGEST_NS);
        let (waited_ns, before) = (window.waited_ns, std::mem::take(&mut window.used));
        let after = used();
        let measured = measure(&before, &after, took, processors().time(took));
        let is_first = std::mem::replace(&mut self.is_first, false);
        self.present = waits.then(|| begin(after));
        let waited = waited_ns.saturating_mul(WAITING_SHARE) >= took;
        waited.then_some(Measured { is_first, ..measured })
    }
}

/// What workers wanted of processors with `time` in `took` nanoseconds.
fn measure(
    before: &BTreeMap<i32, ProcessorUse>,
    after: &BTreeMap<i32, ProcessorUse>,
    took: u64,
    time: u64,
) -> Measured {
    let since = |(pid, after): (&i32, &ProcessorUse)| {
        let before = before.get(pid).copied().unwrap_or_default();
        let ran = after.ran_ns.saturating_sub(before.ran_ns).min(took);
        let waited = after.waited_ns.map(|it| it.saturating_sub(before.waited_ns.unwrap_or(0)));
        // The kernel adds the time of a wait when it has ended.
        let waited = waited.map(|it| if ran + it == 0 && after.is_runnable { took } else { it });
        (ran, waited.map(|waited| ran.saturating_add(waited).min(took)))
    };
    let workers = after.len() as u64;
    let uses: Vec<_> = after.iter().map(since).collect();
    let ran: u64 = uses.iter().map(|(ran, _)| ran).sum();
    let asked = uses.iter().map(|(_, asked)| *asked).sum::<Option<u64>>();
    let asked = asked.unwrap_or(if ran >= time / CONTENDED_SHARE { workers * took } else { ran });
    Measured { asked, time, took, workers, is_first: false }
}
