//! The life of a call in the caller's worker (paper Algorithms 2 and 4): check, route, send, wait, count. Runs in a
//! worker.
//!
//! Invariants: each call ends exactly once. A call is repeated only if the previous attempt certainly did not run.

use std::rc::Rc;
use std::time::{Duration, Instant};

use cwasi_abi::{FUNCTION_NAME_MAX, PAYLOAD_MAX};

use crate::modes::causes::{Invalid, Unavailable};
use crate::modes::local::LocalMode;
use crate::modes::{CallError, ModeKind, OutgoingCall, OutgoingPayload, Payload};
use crate::sys::clock::Deadline;
use crate::sys::pool::SegmentPool;
use crate::sys::random::bytes16;
use crate::wire::control::EdgeReport;
use crate::wire::ids::{CallId, RunId};

use super::edges::{EMIT, EdgeCounters, EndedCall, NO_ROUTE};
use super::links::{Links, Route};
use super::pending_calls::PendingCalls;

/// Most attempts of one call. Only attempts that the callee certainly did not accept are repeated.
pub const ATTEMPTS_MAX: u32 = 4;
/// Default deadline of a call in milliseconds, when neither the caller nor the deployment gives one.
pub const DEFAULT_TIMEOUT_MS: u64 = 60_000;
/// Longest time between two reports of a busy worker.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Reason in the metrics of one-way messages.
const EMIT_REASON: &str = "one-way messages, stored in Redis";

/// The dispatcher's settings for its function.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The caller's function name.
    pub caller: String,
    /// Largest payload and response in bytes.
    pub max_payload: u64,
    /// Longest wait of a call in milliseconds.
    pub timeout_ms: u64,
}

/// A request for a route.
#[derive(Clone, Copy, Debug)]
pub struct RouteQuery<'a> {
    /// The callee in the caller's words.
    pub target: &'a str,
    /// Instances that recently did not accept a call: used last.
    pub avoid: &'a [String],
    /// Instances with connections: not used.
    pub held: &'a [String],
    /// True for an instance of the caller's own group only.
    pub nearer: bool,
}

/// Answers a [`RouteQuery`].
#[derive(Debug)]
pub struct ResolvedRoute {
    /// A new connection; `None` if all instances are held.
    pub route: Option<Route>,
    /// Number of reachable instances in the route's mode.
    pub instances: usize,
}

/// Source of routes, and receiver of reports: the shim, through [`super::BrokerClient`].
pub trait Resolve {
    /// Finds a route to a callee.
    ///
    /// # Errors
    /// The call's error if there is no route.
    fn resolve(
        &mut self,
        query: &RouteQuery<'_>,
        deadline: Option<Deadline>,
    ) -> Result<ResolvedRoute, CallError>;

    /// Stores a message for `target`.
    ///
    /// # Errors
    /// The error of a message that is not stored, or may not be stored.
    fn emit(
        &mut self,
        _target: &str,
        _payload: &[u8],
        _traceparent: &str,
        _deadline: Option<Deadline>,
    ) -> Result<(), CallError> {
        Err(Unavailable::NoShim.into())
    }

    /// Sends edge metrics. Never waits, so it may drop them.
    fn report(&mut self, reports: Vec<EdgeReport>);
}

/// The request dispatcher of one worker.
#[derive(Debug)]
pub struct Dispatcher<R> {
    pub(super) settings: Settings,
    pub(super) resolver: R,
    pub(super) links: Links,
    pub(super) pending: PendingCalls,
    pub(super) local: LocalMode,
    pub(super) edges: EdgeCounters,
    reported: Instant,
    /// Number of started calls.
    pub(super) started: u32,
    pub(super) invocation: Rc<InvocationContext>,
}

/// Data that all calls of one invocation share.
#[derive(Debug, Default)]
pub(super) struct InvocationContext {
    pub(super) traceparent: String,
    pub(super) run: Option<RunId>,
}

impl<R: Resolve> Dispatcher<R> {
    /// A dispatcher without routes.
    #[must_use]
    pub fn new(settings: Settings, resolver: R) -> Self {
        let local = LocalMode::new(settings.max_payload);
        let edges = EdgeCounters::new(&settings.caller);
        Self {
            settings,
            resolver,
            links: Links::default(),
            pending: PendingCalls::default(),
            local,
            edges,
            reported: Instant::now(),
            started: 0,
            invocation: Rc::default(),
        }
    }

    /// Lends segments of `pool` to callees of the own trust group.
    #[must_use]
    pub fn lending(self, pool: Option<SegmentPool>) -> Self {
        Self { local: self.local.lending(pool), ..self }
    }

    /// Begins an invocation. Its calls belong to this trace (empty = not traced) and to this run of the workflow.
    pub fn begin(&mut self, traceparent: &str, run: Option<RunId>) {
        self.invocation = Rc::new(InvocationContext { traceparent: traceparent.to_owned(), run });
    }

    /// Calls `target` with `payload` and waits for the end, at most until `deadline`, which is the invocation's own.
    ///
    /// # Errors
    /// One [`CallError`].
    pub fn call(
        &mut self,
        target: &str,
        payload: OutgoingPayload<'_>,
        deadline: Option<Deadline>,
    ) -> Result<Payload, CallError> {
        let started = Instant::now();
        let mut served = None;
        let result = check(target, payload.len(), self.settings.max_payload)
            .and_then(|()| self.attempt(target, payload, self.deadline(deadline), &mut served));
        let (mode, reason) = served
            .map_or((NO_ROUTE, String::new()), |(mode, reason): (ModeKind, _)| {
                (mode.name(), reason)
            });
        self.edges.count(EndedCall {
            module: None,
            callee: target,
            mode,
            reason: &reason,
            request_bytes: payload.len(),
            response_bytes: length_or_kind(result.as_ref().map(Payload::len)),
            latency: started.elapsed(),
        });
        self.flush_now_and_then();
        result
    }

    /// Sends the metrics of a busy worker at intervals.
    pub(super) fn flush_now_and_then(&mut self) {
        if self.reported.elapsed() >= REPORT_INTERVAL {
            self.flush();
        }
    }

    /// The counters, for calls that need no route.
    pub const fn edges(&mut self) -> &mut EdgeCounters {
        &mut self.edges
    }

    /// Stores a message for `target`. After it returns, the message will be handled at least once.
    ///
    /// # Errors
    /// One [`CallError`]. After [`CallError::Broken`] and [`CallError::Timeout`], the message may be stored.
    pub fn emit(
        &mut self,
        target: &str,
        payload: &[u8],
        deadline: Option<Deadline>,
    ) -> Result<(), CallError> {
        let (started, length) = (Instant::now(), payload.len() as u64);
        let deadline = Some(self.deadline(deadline));
        let stored = check(target, length, self.settings.max_payload).and_then(|()| {
            self.resolver.emit(target, payload, &self.invocation.traceparent, deadline)
        });
        self.edges.count(EndedCall {
            module: None,
            callee: target,
            mode: EMIT,
            reason: EMIT_REASON,
            request_bytes: length,
            response_bytes: length_or_kind(stored.as_ref().map(|()| 0)),
            latency: started.elapsed(),
        });
        self.flush_now_and_then();
        stored
    }

    /// Sends all metrics to the shim, after each invocation.
    pub fn flush(&mut self) {
        let reports = self.edges.take();
        if !reports.is_empty() {
            self.resolver.report(reports);
        }
        self.reported = Instant::now();
    }

    pub(super) fn deadline(&self, invocation: Option<Deadline>) -> Deadline {
        let own = Deadline::after(Duration::from_millis(self.settings.timeout_ms));
        invocation.map_or(own, |invocation| invocation.min(own))
    }

    fn attempt(
        &mut self,
        target: &str,
        payload: OutgoingPayload<'_>,
        deadline: Deadline,
        served: &mut Option<(ModeKind, String)>,
    ) -> Result<Payload, CallError> {
        let id = CallId(bytes16());
        let invocation = Rc::clone(&self.invocation);
        let deadline = Some(deadline);
        let mut avoid = Vec::new();
        let mut attempt = 1;
        loop {
            let InvocationContext { traceparent, run } = &*invocation;
            let (run, join) = (*run, None);
            let call =
                OutgoingCall { id, target, payload, deadline, traceparent, attempt, run, join };
            let link = self.link(target, &avoid, deadline)?;
            if let Some(route) = self.links.route(link) {
                *served = Some((route.mode(), route.reason().to_owned()));
            }
            let result = self.exchange(link, &call);
            let Err(error) = result else { return result };
            if !keeps_route(&error) {
                avoid.extend(self.links.retire(link));
            }
            if !error.not_accepted() || attempt >= ATTEMPTS_MAX {
                return Err(error);
            }
            attempt += 1;
        }
    }
}

/// A response's length, or the error's kind for the metrics.
pub(super) fn length_or_kind(ended: Result<u64, &CallError>) -> Result<u64, &'static str> {
    ended.map_err(|error| error.errno().name())
}

/// True if the connection is usable after this error.
pub(super) const fn keeps_route(error: &CallError) -> bool {
    !matches!(
        error,
        CallError::Unreachable { .. } | CallError::Broken { .. } | CallError::Internal { .. }
    )
}

/// Checks that apply in every mode.
pub(super) fn check(target: &str, length: u64, max_payload: u64) -> Result<(), CallError> {
    let name = target.rsplit_once('/').map_or(target, |(_, name)| name);
    if name.is_empty() || name.len() > FUNCTION_NAME_MAX {
        return Err(Invalid::Name { target: target.to_owned() }.into());
    }
    let limit = max_payload.min(PAYLOAD_MAX);
    if length > limit {
        return Err(CallError::too_large(&format!("payload for {target}"), length, limit));
    }
    Ok(())
}
