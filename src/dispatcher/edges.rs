//! Edge metrics: calls, bytes, errors and latencies per caller, callee, mode and path. Runs in a worker.
//!
//! The worker keeps them between two reports to the shim. Latencies are in the buckets of an HDR histogram with two
//! significant digits (1 ns to 1 h), so reports of many workers add up exactly. A worker keeps only the buckets that it
//! uses: all of them are 38 KiB, which each request of a function that calls would clear and search.
//!
//! Reading the clock twice takes a fifth of an embedded call. Of many calls some are timed ([`EdgeCounters::times`]):
//! a timed call's latency counts for the untimed calls before it too.

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
/// Leading bits in which the latencies of one bucket are equal, with so many digits.
const BUCKET_BITS: u32 = 8;
/// Calls of an edge that are all timed, from the last report on.
const TIMED_FIRST: u64 = 64;
/// After them, one of this many.
const TIMED_EVERY: u64 = 16;

/// An empty latency histogram in nanoseconds.
#[must_use]
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(LATENCY_MIN_NS, LATENCY_MAX_NS, SIGNIFICANT_DIGITS)
        .expect("the bounds and digits are valid constants")
}

/// The longest latency in the bucket of [`histogram`] to which this one belongs.
const fn bucket(latency_ns: u64) -> u64 {
    let latency_ns = if latency_ns < LATENCY_MAX_NS { latency_ns } else { LATENCY_MAX_NS };
    let dropped_bits = (u64::BITS - latency_ns.leading_zeros()).saturating_sub(BUCKET_BITS);
    latency_ns | ((1 << dropped_bits) - 1)
}

#[derive(Debug)]
struct Edge {
    module: String,
    callee: String,
    mode: &'static str,
    path: &'static str,
    reason: String,
    calls: u64,
    errors: BTreeMap<&'static str, u64>,
    request_bytes: u64,
    response_bytes: u64,
    latency_sum_ns: u64,
    /// Calls by the bucket of their latency.
    latency: BTreeMap<u64, u64>,
    /// Calls since the last timed one.
    untimed: u64,
    last_latency_ns: u64,
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
    /// [`Path::text`](cwasi_wire::envelope::Path::text).
    pub path: &'static str,
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
        self.numbered.push(Edge::new("", callee, (mode, ""), reason));
        EdgeNumber(self.numbered.len() - 1)
    }

    pub fn count(&mut self, ended: EndedCall<'_>) {
        self.edge(&ended).count(ended.request_bytes, ended.response_bytes, Some(ended.latency));
    }

    /// Counts `calls` calls that ended alike and were not timed.
    pub fn count_untimed(&mut self, ended: EndedCall<'_>, calls: u64) {
        let edge = self.edge(&ended);
        edge.calls += calls;
        edge.untimed += calls;
    }

    /// True if the next call at a numbered edge is to be timed.
    #[must_use]
    pub fn times(&self, EdgeNumber(number): EdgeNumber) -> bool {
        let calls = self.numbered.get(number).map_or(0, |edge| edge.calls);
        calls < TIMED_FIRST || calls.is_multiple_of(TIMED_EVERY)
    }

    /// [`Self::count`] at a numbered edge; `None` for a call that was not timed.
    pub fn count_at(
        &mut self,
        EdgeNumber(number): EdgeNumber,
        request_bytes: u64,
        response_bytes: Result<u64, &'static str>,
        latency: Option<Duration>,
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
                && edge.path == ended.path
                && edge.reason == ended.reason
                && edge.module == module
        });
        let index = known.unwrap_or(self.edges.len());
        if known.is_none() {
            let mode = (ended.mode, ended.path);
            self.edges.push(Edge::new(module, ended.callee, mode, ended.reason));
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
    fn new(
        module: &str,
        callee: &str,
        (mode, path): (&'static str, &'static str),
        reason: &str,
    ) -> Self {
        Self {
            module: module.to_owned(),
            callee: callee.to_owned(),
            mode,
            path,
            reason: reason.to_owned(),
            calls: 0,
            errors: BTreeMap::new(),
            request_bytes: 0,
            response_bytes: 0,
            latency_sum_ns: 0,
            latency: BTreeMap::new(),
            untimed: 0,
            last_latency_ns: 0,
        }
    }

    /// The same edge before its first call.
    fn without_calls(&self) -> Self {
        Self::new(&self.module, &self.callee, (self.mode, self.path), &self.reason)
    }

    fn count(
        &mut self,
        request_bytes: u64,
        response_bytes: Result<u64, &'static str>,
        latency: Option<Duration>,
    ) {
        self.calls += 1;
        self.request_bytes += request_bytes;
        match response_bytes {
            Ok(bytes) => self.response_bytes += bytes,
            Err(kind) => *self.errors.entry(kind).or_default() += 1,
        }
        self.untimed += 1;
        if let Some(latency) = latency {
            self.last_latency_ns = u64::try_from(latency.as_nanos()).unwrap_or(LATENCY_MAX_NS);
            self.record_untimed();
        }
    }

    /// Counts the last latency for all calls that have none.
    fn record_untimed(&mut self) {
        let (latency_ns, calls) = (self.last_latency_ns, std::mem::take(&mut self.untimed));
        self.latency_sum_ns = self.latency_sum_ns.saturating_add(latency_ns.saturating_mul(calls));
        let count = self.latency.entry(bucket(latency_ns)).or_default();
        *count = count.saturating_add(calls);
    }

    fn report(mut self, caller: &str) -> EdgeReport {
        if !self.latency.is_empty() {
            self.record_untimed();
        }
        EdgeReport {
            caller: caller.to_owned(),
            module: self.module,
            callee: self.callee,
            mode: self.mode.to_owned(),
            path: self.path.to_owned(),
            reason: self.reason,
            calls: self.calls,
            errors: self.errors.into_iter().map(|(kind, n)| (kind.to_owned(), n)).collect(),
            request_bytes: self.request_bytes,
            response_bytes: self.response_bytes,
            latency_sum_ns: self.latency_sum_ns,
            latency_ns: self.latency,
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
                path: "",
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
    fn buckets_are_those_of_the_histogram() {
        let powers = (0..41).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + 1]);
        for latency_ns in powers.chain([LATENCY_MAX_NS - 1, LATENCY_MAX_NS]).chain(0..2000) {
            let mut histogram = histogram();
            histogram.saturating_record_n(latency_ns, 3);
            let steps: Vec<_> = histogram
                .iter_recorded()
                .map(|step| (step.value_iterated_to(), step.count_at_value()))
                .collect();
            assert_eq!(steps, [(bucket(latency_ns), 3)], "{latency_ns}");
        }
        assert_eq!(bucket(u64::MAX), bucket(LATENCY_MAX_NS));
    }

    #[test]
    fn numbered_edges_keep_their_numbers() {
        let mut edges = EdgeCounters::new("a");
        let numbers = ["b", "c"].map(|callee| edges.number(callee, "embedded", "r"));
        let ms = Duration::from_millis;
        for (number, times) in [(0, 2), (1, 1), (0, 3)] {
            (0..times).for_each(|_| edges.count_at(numbers[number], 10, Ok(5), Some(ms(1))));
            let reports = edges.take();
            let [report] = reports.as_slice() else { panic!("{reports:?}") };
            assert_eq!(report.callee, ["b", "c"][number]);
            assert_eq!((report.calls, report.request_bytes), (times, 10 * times));
            assert_eq!(report.latency_ns.values().sum::<u64>(), times);
        }
    }
    #[test]
    fn a_timed_call_counts_for_the_untimed_ones_before_it() {
        let mut edges = EdgeCounters::new("a");
        let (number, calls) = (edges.number("b", "embedded", "r"), TIMED_FIRST + 5 * TIMED_EVERY);
        let mut timed = 0;
        for call in 0..calls + 3 {
            let latency = edges.times(number).then(|| Duration::from_nanos(100 + call));
            timed += u64::from(latency.is_some());
            edges.count_at(number, 1, Ok(1), latency);
        }
        assert_eq!(timed, TIMED_FIRST + 6);
        let reports = edges.take();
        let [report] = reports.as_slice() else { panic!("{reports:?}") };
        assert_eq!(report.calls, calls + 3);
        assert_eq!(report.latency_ns.values().sum::<u64>(), calls + 3);
        let last = 100 + calls;
        assert!(report.latency_sum_ns < (calls + 3) * last, "{report:?}");
        assert!(report.latency_sum_ns > (calls + 3) * 100, "{report:?}");
        assert!(edges.times(number), "a report begins again");
        // No latency is better than a wrong one.
        edges.count_at(number, 1, Ok(1), None);
        let reports = edges.take();
        assert_eq!((reports[0].calls, reports[0].latency_sum_ns), (1, 0));
        assert!(reports[0].latency_ns.is_empty());
    }
}
