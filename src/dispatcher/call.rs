//! A call's life in the caller's worker (paper Algorithms 2 and 4): check, route, send, wait, count.

use std::rc::Rc;
use std::time::{Duration, Instant};

use cwasi_abi::{FUNCTION_NAME_MAX, PAYLOAD_MAX};

use crate::modes::local::LocalMode;
use crate::modes::{Call, CallError, ModeKind, Outgoing, Payload};
use crate::sys::clock::monotonic_ns;
use crate::sys::pool::SegmentPool;
use crate::sys::random::bytes16;
use crate::sys::seqpacket::Deadline;
use crate::wire::control::EdgeReport;
use crate::wire::ids::{CallId, RunId};

use super::edges::{Edges, Ended};
use super::flights::Flights;
use super::links::{Links, Route};

/// Most attempts of one call; only attempts that the callee certainly did not accept are followed by another.
pub const ATTEMPTS_MAX: u32 = 4;
/// How long a call waits when neither the caller's own deadline nor the deployment says, in milliseconds.
pub const DEFAULT_TIMEOUT_MS: u64 = 60_000;
/// Longest time between two reports of a worker that goes on calling.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// What a dispatcher needs to know about its function.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The caller's function name.
    pub caller: String,
    /// Largest payload and response in bytes.
    pub max_payload: u64,
    /// How long a call waits at most, in milliseconds.
    pub timeout_ms: u64,
}

/// Asks for a route.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The callee, as the caller names it.
    pub target: &'a str,
    /// Instances that did not accept a call just now: others first.
    pub avoid: &'a [String],
    /// Instances that there are connections to already: only others.
    pub held: &'a [String],
    /// Only an instance of the caller's own group.
    pub nearer: bool,
}

/// Answers a [`Question`].
#[derive(Debug)]
pub struct Resolved {
    /// A new connection; `None` when there are no instances but those that are held.
    pub route: Option<Route>,
    /// How many instances can be reached in the route's mode.
    pub instances: usize,
}

/// Where routes come from and reports go to; the shim, behind [`super::BrokerClient`].
pub trait Resolve {
    /// A route to a callee.
    ///
    /// # Errors
    /// The call's error when there is no route.
    fn resolve(
        &mut self,
        question: &Question<'_>,
        deadline: Deadline,
    ) -> Result<Resolved, CallError>;

    /// Has a message kept for `target`.
    ///
    /// # Errors
    /// The error of a message that is not kept, or perhaps not.
    fn emit(
        &mut self,
        _target: &str,
        _payload: &[u8],
        _traceparent: &str,
        _deadline: Deadline,
    ) -> Result<(), CallError> {
        let message = "there is no shim that keeps one-way messages".to_owned();
        Err(CallError::NotAvailable { message })
    }

    /// Hands over edge metrics; may lose them, never waits.
    fn report(&mut self, reports: Vec<EdgeReport>);
}

/// The request dispatcher of one worker.
#[derive(Debug)]
pub struct Dispatcher<R> {
    pub(super) settings: Settings,
    pub(super) resolver: R,
    pub(super) links: Links,
    pub(super) flights: Flights,
    pub(super) local: LocalMode,
    pub(super) edges: Edges,
    reported: Instant,
    /// Calls that were started so far.
    pub(super) started: u32,
    pub(super) invocation: Rc<Invocation>,
}

/// What all calls of one invocation have in common.
#[derive(Debug, Default)]
pub(super) struct Invocation {
    pub(super) traceparent: String,
    pub(super) run: Option<RunId>,
}

impl<R: Resolve> Dispatcher<R> {
    /// A dispatcher without routes.
    #[must_use]
    pub fn new(settings: Settings, resolver: R) -> Self {
        let local = LocalMode::new(settings.max_payload);
        let edges = Edges::new(&settings.caller);
        Self {
            settings,
            resolver,
            links: Links::default(),
            flights: Flights::default(),
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

    /// An invocation starts; its calls belong to this trace (empty = not traced) and to this run of the workflow.
    pub fn begin(&mut self, traceparent: &str, run: Option<RunId>) {
        self.invocation = Rc::new(Invocation { traceparent: traceparent.to_owned(), run });
    }

    /// Calls `target` with `payload` and waits for its end, at most until `deadline` (the invocation's own).
    ///
    /// # Errors
    /// Exactly one [`CallError`].
    pub fn call(
        &mut self,
        target: &str,
        payload: Outgoing<'_>,
        deadline: Deadline,
    ) -> Result<Payload, CallError> {
        let started = Instant::now();
        let mut served = None;
        let result = check(target, payload.len(), self.settings.max_payload)
            .and_then(|()| self.attempt(target, payload, self.deadline(deadline), &mut served));
        let (mode, reason) =
            served.map_or((None, String::new()), |(mode, reason)| (Some(mode), reason));
        self.edges.count(Ended {
            module: None,
            callee: target,
            mode,
            reason: &reason,
            request_bytes: payload.len(),
            response_bytes: result.as_ref().ok().map(Payload::len),
            latency: started.elapsed(),
        });
        self.flush_now_and_then();
        result
    }

    /// Hands over the metrics of a worker that goes on calling.
    pub(super) fn flush_now_and_then(&mut self) {
        if self.reported.elapsed() >= REPORT_INTERVAL {
            self.flush();
        }
    }

    /// Where calls are counted that need no route.
    pub const fn edges(&mut self) -> &mut Edges {
        &mut self.edges
    }

    /// Leaves a message for `target`; when this returns, it will be handled at least once.
    ///
    /// # Errors
    /// Exactly one [`CallError`]; after [`CallError::Broken`] and [`CallError::Timeout`] it may be kept.
    pub fn emit(
        &mut self,
        target: &str,
        payload: &[u8],
        deadline: Deadline,
    ) -> Result<(), CallError> {
        check(target, payload.len() as u64, self.settings.max_payload)?;
        let deadline = Some(self.deadline(deadline));
        self.resolver.emit(target, payload, &self.invocation.traceparent, deadline)
    }

    /// Hands the metrics of all calls so far to the shim; the worker does it after each invocation.
    pub fn flush(&mut self) {
        let reports = self.edges.take();
        if !reports.is_empty() {
            self.resolver.report(reports);
        }
        self.reported = Instant::now();
    }

    pub(super) fn deadline(&self, invocation: Deadline) -> u64 {
        let own = monotonic_ns().saturating_add(self.settings.timeout_ms.saturating_mul(1_000_000));
        invocation.map_or(own, |invocation| invocation.min(own))
    }

    fn attempt(
        &mut self,
        target: &str,
        payload: Outgoing<'_>,
        deadline: u64,
        served: &mut Option<(ModeKind, String)>,
    ) -> Result<Payload, CallError> {
        let id = CallId(bytes16());
        let invocation = Rc::clone(&self.invocation);
        let deadline = Some(deadline);
        let mut avoid = Vec::new();
        let mut attempt = 1;
        loop {
            let Invocation { traceparent, run } = &*invocation;
            let (run, join) = (*run, None);
            let call = Call { id, target, payload, deadline, traceparent, attempt, run, join };
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

/// True when the connection is still good after this error.
pub(super) const fn keeps_route(error: &CallError) -> bool {
    !matches!(
        error,
        CallError::Unreachable { .. } | CallError::Broken { .. } | CallError::Internal { .. }
    )
}

/// What holds in every mode.
pub(super) fn check(target: &str, length: u64, max_payload: u64) -> Result<(), CallError> {
    let invalid = |message: String| Err(CallError::Invalid { message });
    let name = target.rsplit_once('/').map_or(target, |(_, name)| name);
    if name.is_empty() || name.len() > FUNCTION_NAME_MAX {
        return invalid(format!(
            "`{target}` is no function name: 1 to {FUNCTION_NAME_MAX} bytes, with or without a namespace and `/` before it"
        ));
    }
    let limit = max_payload.min(PAYLOAD_MAX);
    if length > limit {
        return Err(CallError::too_large(&format!("payload for {target}"), length, limit));
    }
    Ok(())
}
