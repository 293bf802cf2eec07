//! Tells the shim about the workers and the queue, for metrics: at most once a second, and only what changed. Runs in
//! sandbox init.
//!
//! After the last event, init wakes once more to tell the state of rest. While a worker is busy it looks once a second.

use cwasi_sys::clock::monotonic_ns;
use cwasi_vm::Module;
use cwasi_wire::control::{FunctionReport, SandboxMessage};

use super::Secondary;

/// Shortest time between two reports in nanoseconds.
const REPORT_EVERY_NS: u64 = 1_000_000_000;

/// What the shim knows.
#[derive(Debug, Default)]
pub(super) struct Reports {
    told: Option<FunctionReport>,
    /// Requests for which the queue had no room.
    pub(super) refused: u64,
    /// Time of the next look, for which init has to wake, if something may have changed since the last one.
    pub(super) next: Option<u64>,
    /// Time of the last look.
    last: u64,
}

impl Reports {
    /// True when it is time to look. Something happened just now.
    fn looks(&mut self, now: u64) -> bool {
        let next = *self.next.get_or_insert(self.last.saturating_add(REPORT_EVERY_NS));
        next <= now
    }

    /// Ends a look: the shim knows `report` now, unless it did not take it.
    fn looked(&mut self, now: u64, report: FunctionReport, taken: bool) {
        self.last = now;
        self.told = if taken { Some(report) } else { self.told };
        let rests = report.busy == 0 && report.queued == 0;
        self.next = (!taken || !rests).then(|| now.saturating_add(REPORT_EVERY_NS));
    }
}

impl<M: Module> Secondary<'_, M> {
    /// Tells the shim what changed, after each turn of the event loop.
    pub(super) fn report(&mut self) {
        let now = monotonic_ns();
        if !self.announced || !self.reports.looks(now) {
            return;
        }
        let mut report = self.pool.report();
        (report.queued, report.refused) = (self.queue.len() as u64, self.reports.refused);
        // A worker can only say too much about itself.
        let pool_max = self.sandbox.launch.pool_max.saturating_mul(report.workers);
        report.pool_bytes = report.pool_bytes.min(pool_max);
        let taken = self.reports.told == Some(report)
            || self.sandbox.try_tell(&SandboxMessage::Function(report));
        self.reports.looked(now, report, taken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_at_rest_is_left_alone_after_one_look() {
        let report = |busy| FunctionReport { workers: 1, busy, ..FunctionReport::default() };
        let mut reports = Reports::default();
        let mut now = 10 * REPORT_EVERY_NS;
        assert!(reports.looks(now));
        reports.looked(now, report(1), true);
        // Busy: the next look is due without an event.
        assert_eq!(reports.next, Some(now + REPORT_EVERY_NS));
        assert!(!reports.looks(now + 1));
        now += REPORT_EVERY_NS;
        assert!(reports.looks(now));
        reports.looked(now, report(0), true);
        assert_eq!(reports.next, None);
        // An event soon after: one look, a second after the last one.
        assert!(!reports.looks(now + 1));
        assert_eq!(reports.next, Some(now + REPORT_EVERY_NS));
        // A report that the shim did not take is sent again.
        reports.looked(now, report(0), false);
        assert_eq!(reports.next, Some(now + REPORT_EVERY_NS));
    }
}
