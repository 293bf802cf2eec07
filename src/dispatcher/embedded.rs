//! Calls that stay in the caller's VM: which they are, their limits, and their metrics.
//!
//! Runs in the caller's worker. The engine makes the call itself; it asks here before and tells here after.

use std::time::{Duration, Instant};

use super::call::check;
use super::edges::{Edges, Ended};
use super::selection::{self, Embedding};
use crate::modes::{CallError, ModeKind};
use crate::wire::control::{EmbeddedModule, ModeHint};

/// Why a linked call is in this mode.
const LINKED: &str = "linked: an import of the caller";

/// What a function has embedded.
#[derive(Debug)]
pub struct EmbeddedCalls {
    mode: ModeHint,
    max_payload: u64,
    modules: Vec<Callee>,
    running: Option<Running>,
}

#[derive(Debug)]
struct Callee {
    name: String,
    dispatch: bool,
    reason: String,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    callee: usize,
    request_bytes: u64,
    started: Instant,
}

impl EmbeddedCalls {
    /// The calls of a function with this `cwasi.mode`, payload limit and embedded modules.
    #[must_use]
    pub fn new(mode: ModeHint, max_payload: u64, modules: &[EmbeddedModule]) -> Self {
        let modules = modules
            .iter()
            .map(|module| Callee {
                name: module.name.clone(),
                dispatch: module.dispatch,
                reason: module.reason.clone(),
            })
            .collect();
        Self { mode, max_payload, modules, running: None }
    }

    /// Index of the embedded module that serves a call to `target`; `None` when another mode does.
    ///
    /// # Errors
    /// When the call is not to be made at all.
    pub fn begin(
        &mut self,
        target: &str,
        request_bytes: u64,
        deadline: Option<Instant>,
    ) -> Result<Option<usize>, CallError> {
        let serves = |module: &Callee| module.dispatch && module.name == target;
        let Some(callee) = self.modules.iter().position(serves) else { return Ok(None) };
        if selection::embedded(self.mode, Embedding::Loaded).is_err() {
            return Ok(None);
        }
        check(target, request_bytes, self.max_payload)?;
        // The only look at the clock before the callee runs.
        let started = Instant::now();
        if deadline.is_some_and(|deadline| deadline <= started) {
            return Err(CallError::Timeout { target: target.to_owned() });
        }
        self.running = Some(Running { callee, request_bytes, started });
        Ok(Some(callee))
    }

    /// The call that [`Self::begin`] allowed is over; counts it.
    ///
    /// # Errors
    /// When the response is larger than the limit.
    pub fn end(&mut self, response_bytes: Option<u64>, edges: &mut Edges) -> Result<(), CallError> {
        let Some(running) = self.running.take() else { return Ok(()) };
        let callee = &self.modules[running.callee];
        let within = response_bytes.filter(|length| *length <= self.max_payload);
        edges.count(Ended {
            module: None,
            callee: &callee.name,
            mode: Some(ModeKind::Embedded),
            reason: &callee.reason,
            request_bytes: running.request_bytes,
            response_bytes: within,
            latency: running.started.elapsed(),
        });
        match response_bytes {
            Some(length) if within.is_none() => {
                let what = format!("response of {}", callee.name);
                Err(CallError::too_large(&what, length, self.max_payload))
            }
            _ => Ok(()),
        }
    }

    /// The guest stopped: a call that runs has ended with an error, and nobody will say so.
    pub fn abandon(&mut self, edges: &mut Edges) {
        // The only error is about a response, and there is none.
        let _none = self.end(None, edges);
    }
}

/// A call of a linked function.
#[derive(Clone, Copy, Debug)]
pub struct LinkedCall<'a> {
    /// The embedded module that made it; `None` for the function itself.
    pub module: Option<&'a str>,
    /// The module that served it.
    pub callee: &'a str,
    /// Bytes passed in buffers.
    pub request_bytes: u64,
    /// Bytes that came back in a buffer.
    pub response_bytes: u64,
    /// From call to return.
    pub latency: Duration,
}

impl LinkedCall<'_> {
    /// Counts it.
    pub fn count(&self, edges: &mut Edges) {
        edges.count(Ended {
            module: self.module,
            callee: self.callee,
            mode: Some(ModeKind::Embedded),
            reason: LINKED,
            request_bytes: self.request_bytes,
            response_bytes: Some(self.response_bytes),
            latency: self.latency,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(mode: ModeHint) -> EmbeddedCalls {
        let module = |name: &str, dispatch| EmbeddedModule {
            name: name.into(),
            artifact: "/x".into(),
            digest: String::new(),
            dispatch,
            reason: "trusted".into(),
        };
        EmbeddedCalls::new(mode, 10, &[module("linked", false), module("callee", true)])
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
            let begun = calls(mode).begin(target, 10, None).unwrap();
            assert_eq!(begun, expected, "{mode:?} {target}");
        }
    }

    #[test]
    fn limits_hold_and_every_end_is_counted() {
        let mut edges = Edges::new("a");
        let mut calls = calls(ModeHint::Auto);
        let refused = calls.begin("callee", 11, None).unwrap_err();
        assert!(matches!(refused, CallError::TooLarge { .. }), "{refused}");
        let late = calls.begin("callee", 1, Some(Instant::now())).unwrap_err();
        assert!(matches!(late, CallError::Timeout { .. }), "{late}");
        for (response, fits) in [(Some(10), true), (Some(11), false), (None, true)] {
            calls.begin("callee", 4, None).unwrap();
            assert_eq!(calls.end(response, &mut edges).is_ok(), fits);
        }
        calls.begin("callee", 4, None).unwrap();
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
        linked(None).count(&mut edges);
        linked(Some("callee")).count(&mut edges);
        let reports = edges.take();
        let rows: Vec<_> = reports
            .iter()
            .map(|r| (r.module.as_str(), r.callee.as_str(), r.mode.as_str(), r.calls, r.errors))
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
        assert!(reports[1].latency_ns.keys().all(|bound| (400..700).contains(bound)));
    }
}
