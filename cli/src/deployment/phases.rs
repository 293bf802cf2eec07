//! The parts of a run of the command that no function's span shows: images, starts, and the end.

use std::sync::OnceLock;

use cwasi_sys::clock::monotonic_ns;
use cwasi_wire::trace::{Phase, PhaseKind};

/// When each part began, in `CLOCK_MONOTONIC` nanoseconds.
#[derive(Debug)]
pub struct RunPhases {
    began: u64,
    images_written: OnceLock<u64>,
    primary_runs: OnceLock<u64>,
    ends: OnceLock<u64>,
}

impl RunPhases {
    /// Of a run that begins now.
    pub(super) fn begin() -> Self {
        let [images_written, primary_runs, ends] = [(); 3].map(|()| OnceLock::new());
        Self { began: monotonic_ns(), images_written, primary_runs, ends }
    }

    /// All images are there: functions start.
    pub(super) fn images_written(&self) {
        self.images_written.get_or_init(monotonic_ns);
    }

    /// The first primary runs.
    pub(super) fn primary_runs(&self) {
        self.primary_runs.get_or_init(monotonic_ns);
    }

    pub(super) fn ends(&self) {
        self.ends.get_or_init(monotonic_ns);
    }

    /// Those that the run had until now.
    pub(super) fn until_now(&self) -> Vec<Phase> {
        let ends = self.ends.get().copied();
        let now = monotonic_ns();
        let until = |next: &OnceLock<u64>| next.get().copied().or(ends).unwrap_or(now);
        let images = (PhaseKind::Images, Some(self.began), until(&self.images_written));
        let written = self.images_written.get().copied();
        let start = (PhaseKind::Start, written, until(&self.primary_runs));
        let phases = [images, start, (PhaseKind::End, ends, now)].into_iter();
        let phases = phases.filter_map(|(kind, start_ns, end_ns)| {
            Some(Phase { kind, start_ns: start_ns?, end_ns })
        });
        phases.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_has_the_phases_that_it_came_to() {
        let kinds = |phases: &RunPhases| {
            let phases = phases.until_now();
            assert!(phases.iter().all(|phase| phase.start_ns <= phase.end_ns), "{phases:?}");
            assert!(phases.is_sorted_by(|one, next| one.end_ns <= next.start_ns), "{phases:?}");
            phases.iter().map(|phase| phase.kind.name()).collect::<Vec<_>>()
        };
        let (failed, phases) = (RunPhases::begin(), RunPhases::begin());
        assert_eq!(kinds(&failed), ["images"]);
        failed.ends();
        assert_eq!(kinds(&failed), ["images", "end"]);
        phases.images_written();
        assert_eq!(kinds(&phases), ["images", "start"]);
        phases.primary_runs();
        phases.ends();
        assert_eq!(kinds(&phases), ["images", "start", "end"]);
    }
}
