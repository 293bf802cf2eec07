//! Metrics of the calls between functions: one line for each edge, merged from all workers' reports. Runs in
//! processes of the host.
//!
//! Invariant: reports come from sandboxes, so their number and sizes are bounded, and the caller's identity is the
//! shim's own.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use cwasi_abi::Errno;
use hdrhistogram::Histogram;

use super::snapshot::{BUCKETS, EdgeCounts, EdgeKey, EdgeSnapshot, FunctionKey, bucket};
use cwasi_dispatcher::edges::{ABANDONED, LATENCY_MAX_NS, histogram};
use cwasi_wire::control::EdgeReport;
use cwasi_wire::envelope::Path;

/// Most edges of one group. Further ones are not counted, which is logged once.
const EDGES_MAX: usize = 512;
/// Longest stored name or reason in bytes.
const TEXT_MAX: usize = 512;
/// Kind of errors with an unknown name.
const UNKNOWN: &str = "unknown";

#[derive(Debug)]
struct Totals {
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
        let key = edge_key(caller, &report);
        if self.edges.len() >= EDGES_MAX && !self.edges.contains_key(&key) {
            if !std::mem::replace(&mut self.full, true) {
                tracing::warn!(
                    caller = key.caller,
                    "more than {EDGES_MAX} edges; later ones are not counted"
                );
            }
            return;
        }
        let totals = self.edges.entry(key).or_insert_with(|| Totals {
            reason: String::new(),
            counts: EdgeCounts::default(),
            latency: histogram(),
        });
        totals.reason = shortened(&report.reason);
        totals.add(&report);
        self.dirty = true;
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

impl Totals {
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
        assert_eq!(lines.len(), EDGES_MAX);
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
}
