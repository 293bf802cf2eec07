//! The service time of a worker's last request, by which it decides whether it keeps the lead while it runs the next
//! one. Runs in a secondary's worker.

use crate::worker_table::WorkerSlot;
use cwasi_sys::clock::monotonic_ns;

/// Longest service time of a short request, in nanoseconds. Longer than a call whose caller runs on the same processor
/// takes; shorter than the watchdog's tick, after which init gives waiting requests to other workers.
const SHORT_NS: u64 = 300_000;

/// The service time of the last request, and the start of the current one.
#[derive(Debug, Default)]
pub struct ServiceTime {
    /// When the current request began, and how long the last one took, in nanoseconds.
    began: u64,
    took: Option<u64>,
    /// The last request called other functions: while it waited for them its processor was free.
    called: bool,
}

impl ServiceTime {
    pub fn begin(&mut self) {
        self.began = monotonic_ns();
    }

    /// The request has been answered.
    pub fn end(&mut self, called: bool) {
        self.took = Some(monotonic_ns().saturating_sub(self.began));
        self.called = called;
    }

    /// Adds the time for making the next instance, in nanoseconds: the worker reads nothing meanwhile.
    pub fn add_preparation(&mut self, ns: u64) {
        self.took = self.took.map(|took| took.saturating_add(ns));
    }

    /// True when the last request was short.
    fn is_short(&self) -> bool {
        self.took.is_some_and(|took| took < SHORT_NS)
    }

    /// True when the leader keeps the lead while it runs the current request: it will be back before another worker
    /// could run what comes next, or nothing else waits (`is_only_request`, a system call) and it will be back soon.
    pub fn keeps_lead(&self, slot: WorkerSlot<'_>, is_only_request: impl FnOnce() -> bool) -> bool {
        self.keeps_processors_busy(slot) || (self.is_short() && is_only_request())
    }

    /// True when the last request was short and called no function, and all processors are busy: another worker would
    /// have to wait for a processor.
    fn keeps_processors_busy(&self, slot: WorkerSlot<'_>) -> bool {
        self.is_short() && !self.called && slot.all_processors_work()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker_table::{ReaderRole, WorkerTable};

    #[test]
    fn the_lead_is_kept_for_short_requests() {
        let table = WorkerTable::new(2).unwrap();
        table.control().set_processors(2);
        let slot = table.slot(0).unwrap();
        let mut service_time = ServiceTime::default();
        assert!(!service_time.keeps_lead(slot, || unreachable!("a request may take long")));
        service_time.took = Some(SHORT_NS - 1);
        assert!(service_time.keeps_lead(slot, || unreachable!("no processor is free")));
        service_time.called = true;
        assert!(service_time.keeps_lead(slot, || true));
        assert!(!service_time.keeps_lead(slot, || false), "another worker runs what waits");
        service_time.took = Some(SHORT_NS);
        assert!(!service_time.keeps_lead(slot, || unreachable!("it takes long")));
    }

    #[test]
    fn processors_are_busy_while_requests_are_short_and_make_no_calls() {
        let table = WorkerTable::new(2).unwrap();
        table.control().set_processors(2);
        let slots = [0, 1].map(|index| table.slot(index).unwrap());
        let mut service_time = ServiceTime::default();
        assert!(
            !service_time.is_short() && !service_time.keeps_processors_busy(slots[0]),
            "nothing is known"
        );
        service_time.took = Some(SHORT_NS - 1);
        assert!(service_time.is_short() && service_time.keeps_processors_busy(slots[0]));
        service_time.called = true;
        assert!(
            service_time.is_short() && !service_time.keeps_processors_busy(slots[0]),
            "it may have waited"
        );
        service_time.called = false;
        assert_eq!(slots.map(|slot| slot.take_role()), [ReaderRole::Leader, ReaderRole::Follower]);
        assert!(!service_time.keeps_processors_busy(slots[0]), "one processor is free");
        table.control().set_processors(1);
        assert!(service_time.keeps_processors_busy(slots[0]), "the cpuset became smaller");
        service_time.add_preparation(1);
        assert!(
            !service_time.is_short() && !service_time.keeps_processors_busy(slots[0]),
            "its instances take long"
        );
        // It began when the clock did.
        service_time.end(true);
        assert!(
            !service_time.is_short()
                && !service_time.keeps_processors_busy(slots[0])
                && service_time.called
        );
    }
}
