//! Edge metrics: calls, bytes, errors and latencies per caller, callee and mode. Runs in a worker.
//!
//! The worker keeps them between two reports to the shim. Latencies are in the buckets of an HDR histogram with two
//! significant digits (1 ns to 1 h), so reports of many workers add up exactly.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use cwasi_wire::control::EdgeReport;

/// The mode of calls that found no route.
pub const NO_ROUTE: &str = "none";
/// The mode of one-way messages (`emit`), which end when they are stored.
pub const EMIT: &str = "emit";
/// Reason of this mode.
pub const EMIT_REASON: &str = "one-way messages, stored in Redis";
/// Kind of the error of a call whose caller did not wait for its end. All other kinds are names of errnos.
pub const ABANDONED: &str = "abandoned";
/// Longest latency in a histogram, in nanoseconds; longer ones count as this.
pub const LATENCY_MAX_NS: u64 = 3_600_000_000_000;
/// Shortest non-zero latency in nanoseconds.
const LATENCY_MIN_NS: u64 = 1;
const SIGNIFICANT_DIGITS: u8 = 2;

/// An empty latency histogram in nanoseconds.
#[must_use]
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(LATENCY_MIN_NS, LATENCY_MAX_NS, SIGNIFICANT_DIGITS)
        .expect("the bounds and digits are valid constants")
}

#[derive(Debug)]
struct Edge {
    module: String,
    callee: String,
    mode: &'static str,
    reason: String,
    calls: u64,
    errors: BTreeMap<&'static str, u64>,
    request_bytes: u64,
    response_bytes: u64,
    latency_sum_ns: u64,
    latency: Histogram<u64>,
}

/// Metrics of one worker's edges since the last report.
#[derive(Debug)]
pub struct EdgeCounters {
    caller: String,
    /// By [`EdgeNumber`].
    numbered: Vec<Edge>,
    /// Few edges, so a linear search finds one without an allocation.
    edges: Vec<Edge>,
}

/// Number of an edge: for calls that are shorter than a search by names.
#[derive(Clone, Copy, Debug)]
pub struct EdgeNumber(usize);

#[derive(Clone, Copy, Debug)]
pub struct EndedCall<'a> {
    /// The calling embedded module; `None` = the function's own.
    pub module: Option<&'a str>,
    pub callee: &'a str,
    /// The mode's name, [`NO_ROUTE`] or [`EMIT`].
    pub mode: &'static str,
    /// The reason for the mode.
    pub reason: &'a str,
    /// Payload length in bytes.
    pub request_bytes: u64,
    /// Response length in bytes, or the kind of the error.
    pub response_bytes: Result<u64, &'static str>,
    /// Time from the guest's call to its end.
    pub latency: Duration,
}

impl EdgeCounters {
    /// Metrics without calls.
    #[must_use]
    pub fn new(caller: &str) -> Self {
        Self { caller: caller.to_owned(), numbered: Vec::new(), edges: Vec::new() }
    }

    /// Numbers an edge of the function's own calls.
    pub fn number(&mut self, callee: &str, mode: &'static str, reason: &str) -> EdgeNumber {
        self.numbered.push(Edge::new("", callee, mode, reason));
        EdgeNumber(self.numbered.len() - 1)
    }

    pub fn count(&mut self, ended: EndedCall<'_>) {
        self.edge(&ended).count(ended.request_bytes, ended.response_bytes, ended.latency);
    }

    /// [`Self::count`] at a numbered edge.
    pub fn count_at(
        &mut self,
        EdgeNumber(number): EdgeNumber,
        request_bytes: u64,
        response_bytes: Result<u64, &'static str>,
        latency: Duration,
    ) {
        if let Some(edge) = self.numbered.get_mut(number) {
            edge.count(request_bytes, response_bytes, latency);
        }
    }

    fn edge(&mut self, ended: &EndedCall<'_>) -> &mut Edge {
        let module = ended.module.unwrap_or_default();
        let known = self.edges.iter().position(|edge| {
            edge.callee == ended.callee
                && edge.mode == ended.mode
                && edge.reason == ended.reason
                && edge.module == module
        });
        let index = known.unwrap_or(self.edges.len());
        if known.is_none() {
            self.edges.push(Edge::new(module, ended.callee, ended.mode, ended.reason));
        }
        &mut self.edges[index]
    }

    /// Takes the metrics since the last call.
    pub fn take(&mut self) -> Vec<EdgeReport> {
        let numbered = self.numbered.iter_mut().filter(|edge| edge.calls > 0);
        let numbered = numbered.map(|edge| std::mem::replace(edge, edge.without_calls()));
        numbered.chain(self.edges.drain(..)).map(|edge| edge.report(&self.caller)).collect()
    }
}

impl Edge {
    fn new(module: &str, callee: &str, mode: &'static str, reason: &str) -> Self {
        Self {
            module: module.to_owned(),
            callee: callee.to_owned(),
            mode,
            reason: reason.to_owned(),
            calls: 0,
            errors: BTreeMap::new(),
            request_bytes: 0,
            response_bytes: 0,
            latency_sum_ns: 0,
            latency: histogram(),
        }
    }

    /// The same edge before its first call.
    fn without_calls(&self) -> Self {
        Self::new(&self.module, &self.callee, self.mode, &self.reason)
    }

    fn count(
        &mut self,
        request_bytes: u64,
        response_bytes: Result<u64, &'static str>,
        latency: Duration,
    ) {
        self.calls += 1;
        self.request_bytes += request_bytes;
        match response_bytes {
            Ok(bytes) => self.response_bytes += bytes,
            Err(kind) => *self.errors.entry(kind).or_default() += 1,
        }
        let latency_ns = u64::try_from(latency.as_nanos()).unwrap_or(LATENCY_MAX_NS);
        self.latency_sum_ns = self.latency_sum_ns.saturating_add(latency_ns);
        self.latency.saturating_record(latency_ns);
    }

    fn report(self, caller: &str) -> EdgeReport {
        EdgeReport {
            caller: caller.to_owned(),
            module: self.module,
            callee: self.callee,
            mode: self.mode.to_owned(),
            reason: self.reason,
            calls: self.calls,
            errors: self.errors.into_iter().map(|(kind, n)| (kind.to_owned(), n)).collect(),
            request_bytes: self.request_bytes,
            response_bytes: self.response_bytes,
            latency_sum_ns: self.latency_sum_ns,
            latency_ns: self
                .latency
                .iter_recorded()
                .map(|step| (step.value_iterated_to(), step.count_at_value()))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_add_up() {
        let mut edges = EdgeCounters::new("a");
        for (response_bytes, ms) in [(Ok(5), 1), (Err("timeout"), 2), (Ok(7), 3)] {
            edges.count(EndedCall {
                module: None,
                callee: "b",
                mode: "local",
                reason: "r",
                request_bytes: 10,
                response_bytes,
                latency: Duration::from_millis(ms),
            });
        }
        let reports = edges.take();
        let [report] = reports.as_slice() else { panic!("{reports:?}") };
        assert_eq!(
            (report.calls, report.request_bytes, report.response_bytes, report.latency_sum_ns),
            (3, 30, 12, 6_000_000)
        );
        assert_eq!(report.errors, BTreeMap::from([("timeout".to_owned(), 1)]));
        assert_eq!(report.latency_ns.values().sum::<u64>(), 3);
        assert!(edges.take().is_empty());
    }

    #[test]
    fn numbered_edges_keep_their_numbers() {
        let mut edges = EdgeCounters::new("a");
        let numbers = ["b", "c"].map(|callee| edges.number(callee, "embedded", "r"));
        let ms = Duration::from_millis;
        for (number, times) in [(0, 2), (1, 1), (0, 3)] {
            (0..times).for_each(|_| edges.count_at(numbers[number], 10, Ok(5), ms(1)));
            let reports = edges.take();
            let [report] = reports.as_slice() else { panic!("{reports:?}") };
            assert_eq!(report.callee, ["b", "c"][number]);
            assert_eq!((report.calls, report.request_bytes), (times, 10 * times));
            assert_eq!(report.latency_ns.values().sum::<u64>(), times);
        }
    }
}
