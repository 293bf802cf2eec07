//! A call's life in the caller's worker (paper Algorithms 2 and 4): check, route, send, wait, count.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use cwasi_abi::{FUNCTION_NAME_MAX, PAYLOAD_MAX};

use crate::modes::local::{LocalMode, LocalRoute};
use crate::modes::{Call, CallError, Mode, ModeKind, Outgoing, Payload};
use crate::sys::clock::monotonic_ns;
use crate::sys::random::bytes16;
use crate::sys::seqpacket::Deadline;
use crate::wire::control::EdgeReport;
use crate::wire::ids::{CallId, RunId};

use super::edges::{Edges, Ended};

/// Most attempts of one call; only attempts that the callee certainly did not accept are followed by another.
pub const ATTEMPTS_MAX: u32 = 4;
/// Most routes that one worker keeps; beyond it the cache starts afresh.
pub const ROUTES_MAX: usize = 256;
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

/// Where a callee is reached: mode + address.
#[derive(Debug)]
pub enum Route {
    /// Local buffer.
    Local {
        /// The connection.
        local: LocalRoute,
        /// Why this mode.
        reason: String,
    },
    /// Networked buffer, by way of the shim.
    Networked {
        /// The connection to the shim.
        bridge: LocalRoute,
        /// Why this mode.
        reason: String,
    },
}

impl Route {
    const fn mode(&self) -> ModeKind {
        match self {
            Self::Local { .. } => ModeKind::Local,
            Self::Networked { .. } => ModeKind::Networked,
        }
    }

    fn reason(&self) -> &str {
        match self {
            Self::Local { reason, .. } | Self::Networked { reason, .. } => reason,
        }
    }

    fn instance(&self) -> &str {
        match self {
            Self::Local { local: connection, .. } | Self::Networked { bridge: connection, .. } => {
                &connection.instance
            }
        }
    }
}

/// Where routes come from and reports go to; the shim, behind [`super::BrokerClient`].
pub trait Resolve {
    /// A route to `target` that is none of the instances in `avoid` if there is another.
    ///
    /// # Errors
    /// The call's error when there is no route.
    fn resolve(
        &mut self,
        target: &str,
        avoid: &[String],
        deadline: Deadline,
    ) -> Result<Route, CallError>;

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
    settings: Settings,
    resolver: R,
    routes: HashMap<String, Route>,
    local: LocalMode,
    edges: Edges,
    reported: Instant,
    invocation: Invocation,
}

/// What all calls of one invocation have in common.
#[derive(Debug, Default)]
struct Invocation {
    traceparent: String,
    run: Option<RunId>,
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
            routes: HashMap::new(),
            local,
            edges,
            reported: Instant::now(),
            invocation: Invocation::default(),
        }
    }

    /// An invocation starts; its calls belong to this trace (empty = not traced) and to this run of the workflow.
    pub fn begin(&mut self, traceparent: &str, run: Option<RunId>) {
        traceparent.clone_into(&mut self.invocation.traceparent);
        self.invocation.run = run;
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
        if self.reported.elapsed() >= REPORT_INTERVAL {
            self.flush();
        }
        result
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
        let deadline = self.deadline(deadline);
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

    fn deadline(&self, invocation: Deadline) -> Deadline {
        let own = monotonic_ns().saturating_add(self.settings.timeout_ms.saturating_mul(1_000_000));
        Some(invocation.map_or(own, |invocation| invocation.min(own)))
    }

    fn attempt(
        &mut self,
        target: &str,
        payload: Outgoing<'_>,
        deadline: Deadline,
        served: &mut Option<(ModeKind, String)>,
    ) -> Result<Payload, CallError> {
        let id = CallId(bytes16());
        let mut avoid = Vec::new();
        let mut attempt = 1;
        loop {
            let Invocation { traceparent, run } = &self.invocation;
            let call =
                Call { id, target, payload, deadline, traceparent, attempt, run: *run, join: None };
            let route = match self.routes.get_mut(target) {
                Some(route) => route,
                None => {
                    if self.routes.len() >= ROUTES_MAX {
                        self.routes.clear();
                    }
                    let route = self.resolver.resolve(target, &avoid, deadline)?;
                    self.routes.entry(target.to_owned()).or_insert(route)
                }
            };
            *served = Some((route.mode(), route.reason().to_owned()));
            let result = match route {
                Route::Local { local: connection, .. }
                | Route::Networked { bridge: connection, .. } => self.local.call(connection, &call),
            };
            let Err(error) = result else { return result };
            if !keeps_route(&error)
                && let Some(route) = self.routes.remove(target)
                && !route.instance().is_empty()
            {
                avoid.push(route.instance().to_owned());
            }
            if !error.not_accepted() || attempt >= ATTEMPTS_MAX {
                return Err(error);
            }
            attempt += 1;
        }
    }
}

/// True when the connection is still good after this error.
const fn keeps_route(error: &CallError) -> bool {
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
