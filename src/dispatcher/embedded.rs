//! Embedded calls: which calls stay in the caller's VM, their limits and metrics. Runs in a worker.
//!
//! The engine makes the call itself. It asks this file before, and reports to it after.

use std::time::Duration;

use cwasi_abi::Errno;

use super::edges::{ABANDONED, EdgeCounters, EdgeNumber, EndedCall};
use super::settings::check;
use super::telemetry::length_or_kind;
use cwasi_modes::{CallError, ModeKind};
use cwasi_sys::clock::{Deadline, monotonic_ns};
use cwasi_wire::control::{EmbeddedModule, ModeHint};

/// The reason for the mode of a linked call.
const LINKED: &str = "linked: an import of the caller";

/// A function's embedded modules.
#[derive(Debug)]
pub struct EmbeddedCalls {
    max_payload: u64,
    modules: Vec<EmbeddedCallee>,
    running: Option<RunningCall>,
}

#[derive(Debug)]
struct EmbeddedCallee {
    name: String,
    /// Calls to its name are served by it.
    served: bool,
    reason: String,
    edge: EdgeNumber,
}

#[derive(Clone, Copy, Debug)]
struct RunningCall {
    callee: usize,
    request_bytes: u64,
    /// `CLOCK_MONOTONIC` nanoseconds; `None` if it is not timed.
    started: Option<u64>,
}

impl RunningCall {
    fn latency(&self) -> Option<Duration> {
        self.started.map(|started| Duration::from_nanos(monotonic_ns().saturating_sub(started)))
    }
}

impl EmbeddedCalls {
    /// Settings of a function: its `cwasi.mode`, payload limit and embedded modules. Counts in `edges`.
    #[must_use]
    pub fn new(
        mode: ModeHint,
        max_payload: u64,
        modules: &[EmbeddedModule],
        edges: &mut EdgeCounters,
    ) -> Self {
        let admitted = mode.allows_embedding();
        let modules = modules
            .iter()
            .map(|module| EmbeddedCallee {
                name: module.name.clone(),
                served: admitted && module.dispatch,
                reason: module.reason.clone(),
                edge: edges.number(&module.name, ModeKind::Embedded.name(), &module.reason),
            })
            .collect();
        Self { max_payload, modules, running: None }
    }

    /// Index of the embedded module for a call to `target`; `None` if another mode serves it. The call is timed if it
    /// has a span, or `edges` says so.
    ///
    /// # Errors
    /// When the call may not be made. Of the calls that are not timed, none is too late: at the deadline, init kills
    /// this process.
    pub fn begin(
        &mut self,
        target: &str,
        request_bytes: u64,
        deadline: Option<Deadline>,
        (has_span, edges): (bool, &EdgeCounters),
    ) -> Result<Option<usize>, CallError> {
        let serves = |module: &EmbeddedCallee| module.served && module.name == target;
        let Some(callee) = self.modules.iter().position(serves) else { return Ok(None) };
        check(target, request_bytes, self.max_payload)?;
        let times = has_span || edges.times(self.modules[callee].edge);
        let started = times.then(monotonic_ns);
        if let (Some(deadline), Some(started)) = (deadline, started)
            && deadline.has_passed(started)
        {
            return Err(CallError::Timeout { target: target.to_owned() });
        }
        self.running = Some(RunningCall { callee, request_bytes, started });
        Ok(Some(callee))
    }

    /// Counts the end of a call that [`Self::begin`] allowed.
    ///
    /// # Errors
    /// When the response is larger than the limit.
    pub fn end(
        &mut self,
        response_bytes: Option<u64>,
        edges: &mut EdgeCounters,
    ) -> Result<(), CallError> {
        let Some(running) = self.running.take() else { return Ok(()) };
        let checked = self.check_response(&running, response_bytes);
        let ended = length_or_kind(checked.as_ref().map(|()| 0));
        let ended = ended.and_then(|_| response_bytes.ok_or(Errno::Failed.name()));
        self.count(&running, ended, edges);
        checked
    }

    fn count(
        &self,
        running: &RunningCall,
        response_bytes: Result<u64, &'static str>,
        edges: &mut EdgeCounters,
    ) {
        let edge = self.modules[running.callee].edge;
        edges.count_at(edge, running.request_bytes, response_bytes, running.latency());
    }

    fn check_response(
        &self,
        running: &RunningCall,
        response_bytes: Option<u64>,
    ) -> Result<(), CallError> {
        match response_bytes {
            Some(length) if length > self.max_payload => {
                let what = format!("response of {}", self.modules[running.callee].name);
                Err(CallError::too_large(&what, length, self.max_payload))
            }
            _ => Ok(()),
        }
    }

    /// The running call, as it ends with a response of this length, or the name of an errno.
    #[must_use]
    pub fn ended(&self, response_bytes: Result<u64, &'static str>) -> Option<EndedCall<'_>> {
        let running = self.running.as_ref()?;
        let callee = &self.modules[running.callee];
        Some(EndedCall {
            module: None,
            callee: &callee.name,
            mode: ModeKind::Embedded.name(),
            path: "",
            reason: &callee.reason,
            request_bytes: running.request_bytes,
            response_bytes,
            latency: running.latency().unwrap_or_default(),
        })
    }

    /// Counts a running call as failed: the guest stopped, so [`Self::end`] will not be called.
    pub fn abandon(&mut self, edges: &mut EdgeCounters) {
        if let Some(running) = self.running.take() {
            self.count(&running, Err(ABANDONED), edges);
        }
    }
}

/// A call of a linked function.
#[derive(Clone, Copy, Debug)]
pub struct LinkedCall<'a> {
    /// The calling embedded module; `None` for the function itself.
    pub module: Option<&'a str>,
    pub callee: &'a str,
    /// Bytes passed in buffers.
    pub request_bytes: u64,
    /// Bytes returned in a buffer.
    pub response_bytes: u64,
    /// From call to return.
    pub latency: Duration,
}

impl<'a> LinkedCall<'a> {
    /// It, as metrics and spans know calls.
    #[must_use]
    pub const fn ended(self) -> EndedCall<'a> {
        EndedCall {
            module: self.module,
            callee: self.callee,
            mode: ModeKind::Embedded.name(),
            path: "",
            reason: LINKED,
            request_bytes: self.request_bytes,
            response_bytes: Ok(self.response_bytes),
            latency: self.latency,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(mode: ModeHint, edges: &mut EdgeCounters) -> EmbeddedCalls {
        let module = |name: &str, dispatch| EmbeddedModule {
            name: name.into(),
            artifact: "/x".into(),
            digest: String::new(),
            dispatch,
            reason: "trusted".into(),
        };
        EmbeddedCalls::new(mode, 10, &[module("linked", false), module("callee", true)], edges)
    }

    #[test]
    fn only_reactors_are_called_and_only_where_the_mode_allows() {
        for (mode, target, expected) in [
            (ModeHint::Auto, "callee", Some(1)),
            (ModeHint::Embedded, "callee", Some(1)),
            (ModeHint::Local, "callee", None),
            (ModeHint::Networked, "callee", None),
            (ModeHint::Auto, "linked", None),
            (ModeHint::Auto, "other/callee", None),
        ] {
            let mut calls = calls(mode, &mut EdgeCounters::new("a"));
            let begun = calls.begin(target, 10, None, (false, &EdgeCounters::new("a"))).unwrap();
            assert_eq!(begun, expected, "{mode:?} {target}");
        }
    }

    #[test]
    fn limits_hold_and_every_end_is_counted() {
        let mut edges = EdgeCounters::new("a");
        let mut calls = calls(ModeHint::Auto, &mut edges);
        let refused = calls.begin("callee", 11, None, (false, &edges)).unwrap_err();
        assert!(matches!(refused, CallError::TooLarge { .. }), "{refused}");
        let late = calls.begin("callee", 1, Some(Deadline::PASSED), (false, &edges)).unwrap_err();
        assert!(matches!(late, CallError::Timeout { .. }), "{late}");
        for (response, fits) in [(Some(10), true), (Some(11), false), (None, true)] {
            calls.begin("callee", 4, None, (false, &edges)).unwrap();
            assert_eq!(calls.end(response, &mut edges).is_ok(), fits);
        }
        calls.begin("callee", 4, None, (false, &edges)).unwrap();
        calls.abandon(&mut edges);
        calls.abandon(&mut edges);
        let latency = Duration::from_nanos(500);
        let linked = |module| LinkedCall {
            module,
            callee: "linked",
            request_bytes: 1,
            response_bytes: 2,
            latency,
        };
        edges.count(linked(None).ended());
        edges.count(linked(Some("callee")).ended());
        let reports = edges.take();
        let rows: Vec<_> = reports
            .iter()
            .map(|r| {
                let errors = r.errors.values().sum::<u64>();
                (r.module.as_str(), r.callee.as_str(), r.mode.as_str(), r.calls, errors)
            })
            .collect();
        assert_eq!(
            rows,
            [
                ("", "callee", "embedded", 4, 3),
                ("", "linked", "embedded", 1, 0),
                ("callee", "linked", "embedded", 1, 0),
            ]
        );
        assert_eq!((reports[0].request_bytes, reports[0].response_bytes), (16, 10));
        let kinds: Vec<_> = reports[0].errors.keys().map(String::as_str).collect();
        assert_eq!(kinds, ["abandoned", "failed", "payload too large"]);
        assert!(reports[1].latency_ns.keys().all(|bound| (400..700).contains(bound)));
    }
}
