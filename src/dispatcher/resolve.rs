//! What the dispatcher asks of its shim, and reports to it. Runs in a worker.

use cwasi_modes::CallError;
use cwasi_modes::causes::Unavailable;
use cwasi_sys::clock::Deadline;
use cwasi_wire::control::EdgeReport;
use cwasi_wire::trace::SpanReport;
use cwasi_wire::trace_headers::TraceHeaders;

use super::links::Route;

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
