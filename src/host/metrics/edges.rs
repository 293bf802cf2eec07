//! Metrics of the calls between functions: one line for each edge, merged from all workers' reports. Runs in
//! processes of the host.
//!
//! Invariants:
//! - Reports come from sandboxes, so their number and sizes are bounded, and the caller's identity is the shim's own.
//! - Guests choose names. Names to which no call had a route have places of their own, so that edges to functions
//!   always find one. Names without a place are counted together as [`OTHERS`].

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cwasi_abi::Errno;
use hdrhistogram::Histogram;

use super::node::OTHERS;
use super::snapshot::{BUCKETS, EdgeCounts, EdgeKey, EdgeSnapshot, FunctionKey, bucket};
use cwasi_dispatcher::edges::{ABANDONED, EMIT, LATENCY_MAX_NS, NO_ROUTE, histogram};
use cwasi_modes::ModeKind;
use cwasi_wire::control::EdgeReport;
use cwasi_wire::envelope::Path;

/// Most edges of one group to functions that a call of the group has reached. More are logged once.
const EDGES_MAX: usize = 512;
/// Most names of a group to which messages were sent, and no call.
const SENT_MAX: usize = 256;
/// Most names of a group that no call has reached.
const MISSED_MAX: usize = 64;
/// A name that was not called for this time makes room for another one of its kind.
const KEPT: Duration = Duration::from_secs(600);
/// Longest stored name or reason in bytes.
const TEXT_MAX: usize = 512;
/// Kind of errors with an unknown name.
const UNKNOWN: &str = "unknown";

/// What is known of an edge's callee.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// A call has reached it.
    Reached,
    /// Messages for it were stored; a function of this name may never run.
    Sent,
    /// No call has found a route to it.
    Missed,
    /// It stands for names without a place.
    Others,
}

impl Known {
    const fn most(self) -> usize {
        match self {
            Self::Reached => EDGES_MAX,
            Self::Sent => SENT_MAX,
            Self::Missed => MISSED_MAX,
            Self::Others => usize::MAX,
        }
    }
}

#[derive(Debug)]
struct Totals {
    known: Known,
    /// The calling function, without its module.
    function: String,
    last_used: Instant,
    reason: String,
    /// Without the buckets of latency, which come from the histogram.
    counts: EdgeCounts,
    latency: Histogram<u64>,
}

/// The metrics of each edge.
#[derive(Debug, Default)]
pub struct EdgeTable {
    /// When it was made, in milliseconds since 1970.
    counted_since_ms: u64,
    edges: BTreeMap<EdgeKey, Totals>,
    full: bool,
    dirty: bool,
}

impl EdgeTable {
    /// An empty table of a shim that begins to count now.
    #[must_use]
    pub fn new() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let counted_since_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        Self { counted_since_ms, ..Self::default() }
    }

    pub fn add(&mut self, caller: &FunctionKey, report: EdgeReport) {
        self.add_at(caller, &report, Instant::now());
    }

    fn add_at(&mut self, caller: &FunctionKey, report: &EdgeReport, now: Instant) {
        let key = edge_key(caller, report);
        let (key, known) = self.place_for(&caller.function, key, now);
        let made = || Totals::new(known, &caller.function, now);
        let totals = self.edges.entry(key).or_insert_with(made);
        totals.last_used = now;
        totals.reason = shortened(&report.reason);
        totals.add(report);
        self.dirty = true;
    }

    /// Where calls of this edge are counted: under its own name, if there is a place, or under that of all others.
    fn place_for(&mut self, function: &str, key: EdgeKey, now: Instant) -> (EdgeKey, Known) {
        if let Some(totals) = self.edges.get(&key) {
            return (key, totals.known);
        }
        let known = self.known(&key);
        let of_its_kind = || self.edges.iter().filter(|(_, totals)| totals.known == known);
        if of_its_kind().count() < known.most() {
            return (key, known);
        }
        if known == Known::Reached && !std::mem::replace(&mut self.full, true) {
            tracing::warn!(
                caller = key.caller,
                "more than {EDGES_MAX} edges; later ones are counted together"
            );
        }
        let oldest = of_its_kind().min_by_key(|(_, totals)| totals.last_used);
        let oldest = oldest.filter(|(_, totals)| now.duration_since(totals.last_used) > KEPT);
        let Some(oldest) = oldest.map(|(key, _)| key.clone()) else {
            return (others(function, &key), Known::Others);
        };
        if let Some(totals) = self.edges.remove(&oldest) {
            let made = || Totals::new(Known::Others, &totals.function, now);
            let sum = self.edges.entry(others(&totals.function, &oldest)).or_insert_with(made);
            sum.merge(&totals);
        }
        (key, known)
    }

    /// What the group's calls say about an edge's callee.
    fn known(&self, key: &EdgeKey) -> Known {
        let is_reached = |mode: &str| mode != NO_ROUTE && mode != EMIT;
        let mut same = self.edges.keys().filter(|other| {
            other.callee == key.callee
                && other.namespace == key.namespace
                && other.pod_namespace == key.pod_namespace
        });
        if is_reached(&key.mode) || same.any(|other| is_reached(&other.mode)) {
            Known::Reached
        } else if key.mode == EMIT {
            Known::Sent
        } else {
            Known::Missed
        }
    }

    /// The content of the file, if it changed since the last time.
    pub fn changed(&mut self) -> Option<Vec<EdgeSnapshot>> {
        let lines = self.edges.iter().map(|(key, totals)| totals.line(key, self.counted_since_ms));
        std::mem::take(&mut self.dirty).then(|| lines.collect())
    }
}

fn edge_key(caller: &FunctionKey, report: &EdgeReport) -> EdgeKey {
    let FunctionKey { namespace, pod_namespace, workflow, function } = caller.clone();
    let caller = match report.module.as_str() {
        "" => function,
        module => format!("{function}:{}", shortened(module)),
    };
    // A function has one name, whether its caller says the namespace that both are in or not.
    let scope = if pod_namespace.is_empty() { &namespace } else { &pod_namespace };
    let own = report.callee.rsplit_once('/').filter(|(named, _)| named == scope);
    let callee = shortened(own.map_or(&*report.callee, |(_, function)| function));
    let (mode, path) = (shortened(&report.mode), Path::known(&report.path).to_owned());
    EdgeKey { namespace, pod_namespace, workflow, caller, callee, mode, path }
}

/// The edge of all callees of a function without a place.
fn others(function: &str, key: &EdgeKey) -> EdgeKey {
    let modes = [ModeKind::Embedded, ModeKind::Local, ModeKind::Networked].map(ModeKind::name);
    let mode = modes.into_iter().chain([EMIT]).find(|mode| *mode == key.mode).unwrap_or(NO_ROUTE);
    EdgeKey {
        caller: function.to_owned(),
        callee: OTHERS.to_owned(),
        mode: mode.to_owned(),
        ..key.clone()
    }
}

impl Totals {
    fn new(known: Known, function: &str, now: Instant) -> Self {
        let (counts, latency, reason) = (EdgeCounts::default(), histogram(), String::new());
        Self { known, function: function.to_owned(), last_used: now, reason, counts, latency }
    }

    /// Adds those of another edge.
    fn merge(&mut self, other: &Self) {
        self.counts.add(&other.counts);
        for step in other.latency.iter_recorded() {
            let room = u64::MAX - self.latency.len();
            let count = step.count_at_value().min(room);
            self.latency.saturating_record_n(step.value_iterated_to().min(LATENCY_MAX_NS), count);
        }
    }

    fn add(&mut self, report: &EdgeReport) {
        let mut more = EdgeCounts {
            calls: report.calls,
            request_bytes: report.request_bytes,
            response_bytes: report.response_bytes,
            latency_sum_ns: report.latency_sum_ns,
            ..EdgeCounts::default()
        };
        for (kind, errors) in &report.errors {
            let known = Errno::ALL.iter().map(|errno| errno.name()).chain([ABANDONED]);
            let kind = known.into_iter().find(|known| known == kind).unwrap_or(UNKNOWN);
            let sum = more.error_kinds.entry(kind.to_owned()).or_default();
            *sum = sum.saturating_add(*errors);
            more.errors = more.errors.saturating_add(*errors);
        }
        self.counts.add(&more);
        for (value, count) in &report.latency_ns {
            // The histogram would panic beyond `u64::MAX` counts.
            let room = u64::MAX - self.latency.len();
            self.latency.saturating_record_n((*value).min(LATENCY_MAX_NS), (*count).min(room));
        }
    }

    fn line(&self, key: &EdgeKey, counted_since_ms: u64) -> EdgeSnapshot {
        #[expect(clippy::cast_precision_loss, reason = "an hour in nanoseconds is exact in an f64")]
        let quantile_us = |quantile| self.latency.value_at_quantile(quantile) as f64 / 1000.0;
        let mut counts = self.counts.clone();
        counts.latency_counts = vec![0; BUCKETS];
        for step in self.latency.iter_recorded() {
            // No sum exceeds the histogram's own, which is within bounds.
            counts.latency_counts[bucket(step.value_iterated_to())] += step.count_at_value();
        }
        EdgeSnapshot {
            key: key.clone(),
            reason: self.reason.clone(),
            counts,
            p50_us: quantile_us(0.5),
            p99_us: quantile_us(0.99),
            counted_since_ms,
        }
    }
}

fn shortened(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT_MAX)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller() -> FunctionKey {
        FunctionKey { function: "a".into(), ..FunctionKey::default() }
    }

    fn report(callee: &str, calls: u64, latency_ns: u64) -> EdgeReport {
        EdgeReport {
            caller: "somebody else".into(),
            module: String::new(),
            callee: callee.into(),
            mode: "local".into(),
            path: String::new(),
            reason: "callee on this host".into(),
            calls,
            errors: BTreeMap::from([("timeout".to_owned(), 1)]),
            request_bytes: 10,
            response_bytes: 20,
            latency_sum_ns: latency_ns.saturating_mul(calls),
            latency_ns: BTreeMap::from([(latency_ns, calls)]),
        }
    }

    #[test]
    fn reports_add_up_under_the_true_callers_name() {
        let mut table = EdgeTable::default();
        table.add(&caller(), report("b", 3, 1_000_000));
        table.add(&caller(), report("b", 1, 9_000_000));
        let [line] = table.changed().unwrap().try_into().unwrap();
        assert_eq!(table.changed(), None);
        assert_eq!((line.key.caller.as_str(), line.counts.calls), ("a", 4));
        assert_eq!((line.counts.errors, line.counts.request_bytes), (2, 20));
        assert_eq!(line.counts.latency_sum_ns, 12_000_000);
        assert!((990.0..1020.0).contains(&line.p50_us), "{line:?}");
        assert!((8900.0..9200.0).contains(&line.p99_us), "{line:?}");
        let counts = &line.counts.latency_counts;
        assert_eq!((counts.iter().sum::<u64>(), counts[bucket(9_000_000)]), (4, 1));
    }

    #[test]
    fn a_function_of_the_callers_namespace_has_one_name() {
        let mut table = EdgeTable::default();
        for (namespace, pod_namespace) in [("n", ""), ("k8s.io", "n")] {
            let (namespace, pod_namespace) = (namespace.to_owned(), pod_namespace.to_owned());
            let caller = FunctionKey { namespace, pod_namespace, ..caller() };
            for callee in ["b", "n/b", "m/b"] {
                table.add(&caller, report(callee, 1, 1));
            }
        }
        let lines = table.changed().unwrap();
        let calls: Vec<_> =
            lines.iter().map(|line| (line.key.callee.as_str(), line.counts.calls)).collect();
        assert_eq!(calls, [("b", 2), ("m/b", 1), ("b", 2), ("m/b", 1)]);
    }

    #[test]
    fn paths_are_counted_apart_and_others_are_none() {
        let mut table = EdgeTable::default();
        for (path, calls) in [("direct", 1), ("redis", 2), ("direct", 4), ("pigeon", 8)] {
            let mode = "networked".to_owned();
            table.add(&caller(), EdgeReport { mode, path: path.into(), ..report("b", calls, 1) });
        }
        let lines = table.changed().unwrap();
        let calls: Vec<_> =
            lines.iter().map(|line| (line.key.path.as_str(), line.counts.calls)).collect();
        assert_eq!(calls, [("", 8), ("direct", 5), ("redis", 2)]);
    }

    #[test]
    fn hostile_reports_are_bounded() {
        let mut table = EdgeTable::default();
        for number in 0..=EDGES_MAX {
            let callee = format!("{number}-{}", "é".repeat(TEXT_MAX));
            let errors = (0..9).map(|kind| (format!("{number}{kind}"), u64::MAX)).collect();
            table.add(&caller(), EdgeReport { errors, ..report(&callee, u64::MAX, u64::MAX) });
        }
        let lines = table.changed().unwrap();
        // And one for all others.
        assert_eq!(lines.len(), EDGES_MAX + 1);
        assert!(lines.iter().all(|line| line.key.callee.len() <= TEXT_MAX));
        let kinds = lines.iter().flat_map(|line| line.counts.error_kinds.keys());
        assert!(kinds.into_iter().all(|kind| kind == UNKNOWN));
    }

    #[test]
    fn counts_whose_sum_is_no_number_have_quantiles() {
        let latency_ns = BTreeMap::from([(1, u64::MAX - 1), (2, 5), (1_000_000, u64::MAX)]);
        let mut table = EdgeTable::default();
        table.add(&caller(), EdgeReport { latency_ns, ..report("b", 1, 1) });
        let [line] = table.changed().unwrap().try_into().unwrap();
        assert!((line.p99_us - 0.001).abs() < 1e-9);
        assert_eq!(line.counts.latency_counts[0], u64::MAX);
    }

    fn called(callee: &str, mode: &str) -> EdgeReport {
        EdgeReport { mode: mode.into(), ..report(callee, 1, 1) }
    }

    #[test]
    fn guessed_names_take_no_place_of_functions() {
        let mut table = EdgeTable::default();
        for number in 0..2 * EDGES_MAX {
            table.add(&caller(), called(&format!("missed-{number}"), NO_ROUTE));
            table.add(&caller(), called(&format!("sent-{number}"), EMIT));
        }
        for number in 0..EDGES_MAX {
            table.add(&caller(), called(&format!("real-{number}"), "local"));
        }
        // A call that fails reaches a known function all the same.
        table.add(&caller(), called("real-0", NO_ROUTE));
        let lines = table.changed().unwrap();
        let calls = |prefix: &str| {
            let named = lines.iter().filter(|line| line.key.callee.starts_with(prefix));
            named.map(|line| line.counts.calls).collect::<Vec<_>>()
        };
        assert_eq!(calls("missed").len(), MISSED_MAX);
        assert_eq!(calls("sent").len(), SENT_MAX);
        assert_eq!(calls("real-").len(), EDGES_MAX);
        let others = [2 * EDGES_MAX - SENT_MAX, 2 * EDGES_MAX - MISSED_MAX + 1];
        assert_eq!(calls(OTHERS), others.map(|calls| calls as u64));
    }

    #[test]
    fn a_name_that_is_no_longer_called_makes_room() {
        let mut table = EdgeTable::default();
        let began = Instant::now();
        let mut add = |name: &str, seconds: u64| {
            table.add_at(&caller(), &called(name, NO_ROUTE), began + Duration::from_secs(seconds));
        };
        (0..MISSED_MAX).for_each(|number| add(&format!("old-{number}"), 0));
        add("old-1", 700);
        add("new", 700);
        add("newer", 701);
        let lines = table.changed().unwrap();
        let calls = |callee: &str| {
            lines.iter().find(|line| line.key.callee == callee).map(|line| line.counts.calls)
        };
        assert_eq!((calls("old-0"), calls("old-1"), calls("old-2")), (None, Some(2), Some(1)));
        assert_eq!((calls("new"), calls("newer")), (Some(1), Some(1)));
        let (sum, all) = (lines.iter().map(|line| line.counts.calls).sum::<u64>(), MISSED_MAX + 3);
        assert_eq!((calls(OTHERS), sum), (Some(2), all as u64));
    }
}
