//! Reports the workers and the queue to the shim, for metrics: at most once a second, and only changes. Runs in sandbox
//! init.
//!
//! After the last event, init wakes once more to report the state of rest. While a worker is busy it checks once a
//! second.

use cwasi_wire::control::FunctionReport;

/// Shortest time between two reports in nanoseconds.
const REPORT_EVERY_NS: u64 = 1_000_000_000;

/// When to report, and the last report.
#[derive(Debug, Default)]
pub(super) struct Reports {
    sent: Option<FunctionReport>,
    /// Time of the next check, for which init has to wake, if something may have changed since the last one.
    pub next: Option<u64>,
    /// Time of the last check.
    last: u64,
}

impl Reports {
    /// Sends the function's state with `send`, if a check is due and the state has changed. Something happened just
    /// now. `send` returns whether the shim took the report.
    pub fn update(
        &mut self,
        now: u64,
        state: impl FnOnce() -> FunctionReport,
        send: impl FnOnce(FunctionReport) -> bool,
    ) {
        if self.is_due(now) {
            let report = state();
            let taken = self.sent == Some(report) || send(report);
            self.checked(now, report, taken);
        }
    }

    /// True when a check is due. Something happened just now.
    fn is_due(&mut self, now: u64) -> bool {
        let next = *self.next.get_or_insert(self.last.saturating_add(REPORT_EVERY_NS));
        next <= now
    }

    /// Ends a check: the shim knows `report` now, unless it did not take it.
    fn checked(&mut self, now: u64, report: FunctionReport, taken: bool) {
        self.last = now;
        self.sent = if taken { Some(report) } else { self.sent };
        let rests = report.busy == 0 && report.queued == 0;
        self.next = (!taken || !rests).then(|| now.saturating_add(REPORT_EVERY_NS));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_at_rest_is_checked_once() {
        let report = |busy| FunctionReport { workers: 1, busy, ..FunctionReport::default() };
        let mut reports = Reports::default();
        let mut now = 10 * REPORT_EVERY_NS;
        assert!(reports.is_due(now));
        reports.checked(now, report(1), true);
        // Busy: the next check is due without an event.
        assert_eq!(reports.next, Some(now + REPORT_EVERY_NS));
        assert!(!reports.is_due(now + 1));
        now += REPORT_EVERY_NS;
        assert!(reports.is_due(now));
        reports.checked(now, report(0), true);
        assert_eq!(reports.next, None);
        // An event soon after: one check, a second after the last one.
        assert!(!reports.is_due(now + 1));
        assert_eq!(reports.next, Some(now + REPORT_EVERY_NS));
        // A report that the shim did not take is sent again.
        reports.checked(now, report(0), false);
        assert_eq!(reports.next, Some(now + REPORT_EVERY_NS));
    }
}
