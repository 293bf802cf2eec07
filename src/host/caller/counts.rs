//! Counts the calls of a caller of the host by callee and mode, as a worker counts those of its function. Runs where
//! [`super::HostCaller`] does.
//!
//! Invariant: clients choose the names, so only functions that were found have counts, and at most [`FOUND_MAX`] of
//! them.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::host_group::HostGroup;
use crate::metrics::Metrics;
use crate::metrics::snapshot::FunctionKey;
use cwasi_dispatcher::edges::{ABANDONED, EMIT, EMIT_REASON, EdgeCounters, EndedCall, NO_ROUTE};
use cwasi_modes::{CallError, ModeKind};
use cwasi_wire::envelope::Path;

/// Most functions of one caller that have counts.
const FOUND_MAX: usize = 512;
/// Time from a call to the report that has it.
const REPORT_AFTER: Duration = Duration::from_millis(500);

/// The counts of one caller and its siblings.
#[derive(Debug)]
pub(super) struct CallCounts {
    caller: FunctionKey,
    current: Mutex<Current>,
    metrics: Metrics,
    runtime: Handle,
    /// Of a process that is no shim.
    group: Mutex<Option<HostGroup>>,
}

/// The calls since the last report.
#[derive(Debug)]
struct Current {
    counters: EdgeCounters,
    found: HashSet<String>,
    will_report: bool,
    ended: bool,
}

/// How a call moved its data, and why so.
#[derive(Clone, Debug)]
pub(super) struct CallRoute {
    pub mode: ModeKind,
    /// How it went to another host, as far as its shim has said.
    pub path: Path,
    pub reason: Arc<str>,
}

/// A call that ends when this is dropped: as abandoned, unless it was given another end.
#[derive(Debug)]
pub(super) struct OpenCall<'a> {
    counts: Option<&'a Arc<CallCounts>>,
    callee: &'a str,
    began: Instant,
    request_bytes: u64,
    /// The last one that it took.
    pub(super) route: Option<CallRoute>,
    is_emit: bool,
    refused: bool,
    response_bytes: Result<u64, &'static str>,
}

impl CallCounts {
    /// Counts into the files of `group`, on the current runtime.
    pub(super) fn of_process(group: HostGroup, caller: FunctionKey) -> Arc<Self> {
        let metrics = Metrics::start(group.files());
        Self::start(metrics, caller, Some(group))
    }

    /// Counts into the files of this shim, on the current runtime.
    pub(super) fn of_shim(metrics: Metrics, caller: FunctionKey) -> Arc<Self> {
        Self::start(metrics, caller, None)
    }

    fn start(metrics: Metrics, caller: FunctionKey, group: Option<HostGroup>) -> Arc<Self> {
        let current = Current {
            counters: EdgeCounters::new(&caller.function),
            found: HashSet::new(),
            will_report: false,
            ended: false,
        };
        let (current, group) = (Mutex::new(current), Mutex::new(group));
        Arc::new(Self { caller, current, metrics, runtime: Handle::current(), group })
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        // A panic elsewhere can only have lost one call.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(self: &Arc<Self>, was_found: bool, call: EndedCall<'_>) {
        let mut current = self.current();
        if current.ended || !current.admits(was_found, call.callee) {
            return;
        }
        current.counters.count(call);
        if !std::mem::replace(&mut current.will_report, true) {
            let counts = Arc::downgrade(self);
            self.runtime.spawn(report_later(counts));
        }
    }

    fn report(&self) {
        let mut current = self.current();
        current.will_report = false;
        let reports = current.counters.take();
        drop(current);
        self.metrics.add(&self.caller, reports);
    }

    /// Writes what was counted. A process of the host counts no more from now on, and its counts become part of the
    /// node's sums. Blocks.
    pub(super) fn end(&self) {
        let mut group = self.group.lock().unwrap_or_else(PoisonError::into_inner);
        let group = group.take();
        if group.is_some() {
            self.current().ended = true;
        }
        self.report();
        if let Some(group) = group {
            self.metrics.write_logged();
            drop(group);
        }
    }
}

impl Drop for CallCounts {
    fn drop(&mut self) {
        self.end();
    }
}

async fn report_later(counts: Weak<CallCounts>) {
    tokio::time::sleep(REPORT_AFTER).await;
    if let Some(counts) = counts.upgrade() {
        counts.report();
    }
}

impl Current {
    /// True if calls of this name are counted: it is that of a function that was found now or before.
    fn admits(&mut self, was_found: bool, callee: &str) -> bool {
        if self.found.contains(callee) {
            return true;
        }
        was_found && self.found.len() < FOUND_MAX && self.found.insert(callee.to_owned())
    }
}

impl<'a> OpenCall<'a> {
    /// A call that begins now.
    pub(super) fn begin(
        counts: Option<&'a Arc<CallCounts>>,
        callee: &'a str,
        request_bytes: u64,
    ) -> Self {
        Self {
            counts,
            callee,
            began: Instant::now(),
            request_bytes,
            route: None,
            is_emit: false,
            refused: false,
            response_bytes: Err(ABANDONED),
        }
    }

    /// The same for a one-way message.
    pub(super) fn begin_emit(
        counts: Option<&'a Arc<CallCounts>>,
        callee: &'a str,
        request_bytes: u64,
    ) -> Self {
        let mut call = Self::begin(counts, callee, request_bytes);
        call.is_emit = true;
        call
    }

    /// Its end: the response's length, or the error.
    pub(super) fn end(&mut self, ended: Result<u64, &CallError>) {
        // `cwasi.allow` refuses callers of functions that exist.
        self.refused = matches!(ended, Err(CallError::Refused(_)));
        self.response_bytes = ended.map_err(|error| error.errno().name());
    }
}

impl Drop for OpenCall<'_> {
    fn drop(&mut self) {
        let Some(counts) = self.counts else { return };
        let was_found =
            self.route.is_some() || self.refused || (self.is_emit && self.response_bytes.is_ok());
        let (mode, path, reason) = match &self.route {
            _ if self.is_emit => (EMIT, "", EMIT_REASON),
            Some(CallRoute { mode, path, reason }) => (mode.name(), path.text(), &**reason),
            None => (NO_ROUTE, "", ""),
        };
        let call = EndedCall {
            module: None,
            callee: self.callee,
            mode,
            path,
            reason,
            request_bytes: self.request_bytes,
            response_bytes: self.response_bytes,
            latency: self.began.elapsed(),
        };
        counts.count(was_found, call);
    }
}

#[cfg(test)]
mod tests {
    use cwasi_abi::Errno;

    use super::*;
    use crate::metrics::node::NodeMetrics;
    use crate::state::StateDir;
    use cwasi_modes::causes::Unavailable;
    use cwasi_wire::envelope::{CallStatus, Detail};

    fn near() -> CallRoute {
        CallRoute { mode: ModeKind::Local, path: Path::PATH_NONE, reason: "near".into() }
    }

    fn counts(state: &std::path::Path) -> Arc<CallCounts> {
        let caller = FunctionKey { function: "gateway".into(), ..FunctionKey::default() };
        CallCounts::of_process(HostGroup::start(state).unwrap(), caller)
    }

    /// Callee, mode, calls and errors of each edge.
    fn edges(state: &std::path::Path) -> Vec<(String, String, u64, u64)> {
        let edges = NodeMetrics::read(&StateDir::new(state)).edges.into_iter();
        edges.map(|(key, it)| (key.callee, key.mode, it.calls, it.errors)).collect()
    }

    #[tokio::test]
    async fn calls_of_known_functions_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let counts = counts(dir.path());
        let lost = || CallError::Timeout { target: "f".into() };
        let call = |callee: &str, has_route: bool, ended: Option<Result<u64, &CallError>>| {
            let mut open = OpenCall::begin(Some(&counts), callee, 3);
            open.route = has_route.then(near);
            if let Some(ended) = ended {
                open.end(ended);
            }
        };
        for number in 0..2 * FOUND_MAX {
            call(&format!("guessed-{number}"), false, Some(Err(&lost())));
        }
        call("f", true, Some(Ok(7)));
        call("f", true, None);
        // It was found before, and is gone.
        call("f", false, Some(Err(&lost())));
        let refused = CallStatus::of(Errno::Refused.code(), Detail::DETAIL_NONE);
        let refused = CallError::from_wire(refused, String::new(), "guarded");
        call("guarded", false, Some(Err(&refused)));
        let mut stored = OpenCall::begin_emit(Some(&counts), "later", 3);
        stored.end(Ok(0));
        drop(stored);
        let mut unstored = OpenCall::begin_emit(Some(&counts), "nobody", 3);
        unstored.end(Err(&Unavailable::NoRedis.into()));
        drop(unstored);
        counts.end();
        call("f", true, Some(Ok(7)));
        drop(counts);
        let expected = [
            ("f", "local", 2, 1),
            ("f", "none", 1, 1),
            ("guarded", "none", 1, 1),
            ("later", "emit", 1, 0),
        ];
        let expected = expected.map(|(callee, mode, calls, errors)| {
            (callee.to_owned(), mode.to_owned(), calls, errors)
        });
        assert_eq!(edges(dir.path()), expected);
    }

    #[tokio::test]
    async fn names_are_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let counts = counts(dir.path());
        for number in 0..FOUND_MAX + 9 {
            let name = number.to_string();
            OpenCall::begin(Some(&counts), &name, 3).route = Some(near());
        }
        counts.end();
        assert_eq!(edges(dir.path()).len(), FOUND_MAX);
    }
}
