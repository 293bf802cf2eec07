//! The life of a call in the caller's worker (paper Algorithms 2 and 4): check, route, send, wait, count. Runs in a
//! worker.
//!
//! Invariants: each call ends exactly once. A call is repeated only if the previous attempt certainly did not run.

use std::rc::Rc;
use std::time::{Duration, Instant};

use cwasi_abi::{FUNCTION_NAME_MAX, PAYLOAD_MAX};

use cwasi_modes::causes::{Invalid, Unavailable};
use cwasi_modes::local::LocalMode;
use cwasi_modes::{CallError, ModeKind, OutgoingCall, OutgoingPayload, Payload};
use cwasi_sys::clock::Deadline;
use cwasi_sys::pool::SegmentPool;
use cwasi_sys::random::bytes16;
use cwasi_wire::control::EdgeReport;
use cwasi_wire::ids::{CallId, RunId};
use cwasi_wire::trace::{SpanKind, SpanReport, TraceContext, TraceStart};
use cwasi_wire::trace_headers::TraceHeaders;

use super::edges::{EMIT, EMIT_REASON, EdgeCounters, EndedCall, NO_ROUTE};
use super::links::{Links, Route};
use super::pending_calls::PendingCalls;
use super::spans::{CallSpans, OpenSpan, SPANS_PER_INVOCATION, SpanRecorder};

/// Most attempts of one call. Only attempts that the callee certainly did not accept are repeated.
pub const ATTEMPTS_MAX: u32 = 4;
/// Default deadline of a call in milliseconds, when neither the caller nor the deployment gives one.
pub const DEFAULT_TIMEOUT_MS: u64 = 60_000;
/// Longest time between two reports of a busy worker.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

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
        _trace: TraceHeaders<'_>,
        _deadline: Option<Deadline>,
    ) -> Result<(), CallError> {
        Err(Unavailable::NoShim.into())
    }

    /// Sends edge metrics. Never waits, so it may drop them.
    fn report(&mut self, reports: Vec<EdgeReport>);

    /// Sends spans. Never waits, so it may drop them.
    fn report_spans(&mut self, _reports: Vec<SpanReport>) {}
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
    /// When a started call was answered last.
    pub(super) last_answer_ns: u64,
    pub(super) invocation: Rc<InvocationContext>,
    pub(super) spans: SpanRecorder,
    trace: TraceStart,
    /// Number of spans of the invocation's calls.
    opened: u32,
    /// Number of those of linked calls.
    pub(super) linked_spans: u32,
}

/// Data that all calls of one invocation share.
#[derive(Debug, Default)]
pub(super) struct InvocationContext {
    /// What calls without a span pass on.
    pub(super) traceparent: String,
    /// What all calls pass on, unchanged.
    pub(super) tracestate: String,
    pub(super) run: Option<RunId>,
    /// The parent of the calls' spans, if the trace is recorded.
    pub(super) trace: Option<TraceContext>,
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
            last_answer_ns: 0,
            invocation: Rc::default(),
            spans: SpanRecorder::default(),
            trace: TraceStart::UNSAMPLED,
            opened: 0,
            linked_spans: 0,
        }
    }

    /// Records spans of traced calls in `spans`, as `trace` says.
    #[must_use]
    pub fn recording(self, spans: SpanRecorder, trace: TraceStart) -> Self {
        Self { spans, trace, ..self }
    }

    /// Lends segments of `pool` to callees of the own trust group.
    #[must_use]
    pub fn lending(mut self, pool: Option<SegmentPool>) -> Self {
        self.local.pool = pool;
        self
    }

    /// Begins an invocation. Its calls belong to this trace (empty = not traced) and to this run of the workflow.
    pub fn begin(&mut self, traceparent: &str, tracestate: &str, run: Option<RunId>) {
        let trace = Some(traceparent).filter(|text| self.trace.record && !text.is_empty());
        let trace = trace.and_then(TraceContext::parse).filter(|context| context.sampled);
        // Callees of calls without a span record nothing: they would have no parent.
        let traceparent =
            trace.map_or_else(|| traceparent.to_owned(), |context| context.unsampled().to_string());
        let tracestate = tracestate.to_owned();
        self.invocation = Rc::new(InvocationContext { traceparent, tracestate, run, trace });
        (self.opened, self.linked_spans) = (0, 0);
    }

    /// Begins the span of a call, if the trace is recorded.
    pub(super) fn open_span(&mut self) -> Option<OpenSpan> {
        let parent = self.invocation.trace?;
        if self.opened >= SPANS_PER_INVOCATION {
            self.spans.count_dropped();
            return None;
        }
        self.opened += 1;
        Some(OpenSpan::below(parent))
    }

    /// Where the spans of the invocation's calls go.
    pub(super) fn call_spans(&self) -> CallSpans<'_> {
        CallSpans { recorder: &self.spans, tracestate: &self.invocation.tracestate }
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
        let span = self.open_span();
        let mut served = None;
        let result = check(target, payload.len(), self.settings.max_payload).and_then(|()| {
            self.attempt(target, payload, self.deadline(deadline), span, &mut served)
        });
        let (mode, reason) = served
            .map_or((NO_ROUTE, String::new()), |(mode, reason): (ModeKind, _)| {
                (mode.name(), reason)
            });
        let ended = EndedCall {
            module: None,
            callee: target,
            mode,
            reason: &reason,
            request_bytes: payload.len(),
            response_bytes: length_or_kind(result.as_ref().map(Payload::len)),
            latency: started.elapsed(),
        };
        self.edges.count(ended);
        self.call_spans().close(span, SpanKind::Client, ended, errno_of(&result));
        self.flush_now_and_then();
        result
    }

    /// Sends the metrics and spans of a busy worker at intervals.
    pub(super) fn flush_now_and_then(&mut self) {
        if self.reported.elapsed() >= REPORT_INTERVAL || self.spans.fills_a_report() {
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
        let span = self.open_span().or_else(|| self.begin_trace());
        let own = traceparent_of(span);
        let stored = check(target, length, self.settings.max_payload).and_then(|()| {
            let traceparent = own.as_deref().unwrap_or(&self.invocation.traceparent);
            let trace = TraceHeaders { traceparent, tracestate: &self.invocation.tracestate };
            self.resolver.emit(target, payload, trace, deadline)
        });
        let ended = EndedCall {
            module: None,
            callee: target,
            mode: EMIT,
            reason: EMIT_REASON,
            request_bytes: length,
            response_bytes: length_or_kind(stored.as_ref().map(|()| 0)),
            latency: started.elapsed(),
        };
        self.edges.count(ended);
        self.call_spans().close(span, SpanKind::Producer, ended, errno_of(&stored));
        self.flush_now_and_then();
        stored
    }

    /// Begins a trace for a message of an invocation that has none.
    fn begin_trace(&self) -> Option<OpenSpan> {
        let begins = self.trace.record && self.invocation.traceparent.is_empty();
        begins.then(|| OpenSpan::sampled(self.trace.sample)).flatten()
    }

    /// Sends all metrics and spans to the shim, after each invocation.
    pub fn flush(&mut self) {
        let reports = self.edges.take();
        if !reports.is_empty() {
            self.resolver.report(reports);
        }
        let spans = self.spans.take();
        if !spans.is_empty() {
            self.resolver.report_spans(spans);
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
        span: Option<OpenSpan>,
        served: &mut Option<(ModeKind, String)>,
    ) -> Result<Payload, CallError> {
        let id = CallId(bytes16());
        let invocation = Rc::clone(&self.invocation);
        let own = traceparent_of(span);
        let traceparent = own.as_deref().unwrap_or(&invocation.traceparent);
        let trace = TraceHeaders { traceparent, tracestate: &invocation.tracestate };
        let (run, join, traced) = (invocation.run, None, span.is_some());
        let deadline = Some(deadline);
        let mut avoid = Vec::new();
        let mut attempt = 1;
        loop {
            let call =
                OutgoingCall { id, target, payload, deadline, trace, traced, attempt, run, join };
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

/// The trace context that a call with a span passes on.
pub(super) fn traceparent_of(span: Option<OpenSpan>) -> Option<String> {
    span.map(|span| span.context.to_string())
}

/// Errno of a call's end; 0 = answered.
pub(super) fn errno_of<T>(ended: &Result<T, CallError>) -> i32 {
    ended.as_ref().map_or_else(|error| error.errno().code(), |_| 0)
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
