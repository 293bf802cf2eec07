//! The text for Prometheus, in OpenMetrics' format.

use std::fmt;

use cwasi_host::metrics::node::NodeMetrics;
use cwasi_host::metrics::snapshot::{
    EdgeCounts, EdgeKey, FunctionGauges, FunctionKey, LATENCY_BOUNDS_NS,
};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::families::{self, Family, FamilyType};

#[must_use]
pub fn text(metrics: NodeMetrics) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Node(metrics)));
    let mut text = String::new();
    // Writing to a String does not fail.
    let _never = encode(&mut text, &registry);
    text
}

type Labels = Vec<(&'static str, String)>;
/// A family, and its value of one series.
type Figure<T> = (Family, fn(&T) -> u64);

#[derive(Debug)]
struct Node(NodeMetrics);

impl Collector for Node {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        self.encode_edges(&mut encoder)?;
        self.encode_functions(&mut encoder)?;
        begin(&mut encoder, families::UNREADABLE)?.encode_gauge(&clamped(self.0.unreadable))
    }
}

impl Node {
    fn encode_edges(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let counters: [Figure<EdgeCounts>; 3] = [
            (families::CALLS, |counts| counts.calls),
            (families::SENT, |counts| counts.request_bytes),
            (families::RECEIVED, |counts| counts.response_bytes),
        ];
        for (family, value) in counters {
            let mut metric = begin(encoder, family)?;
            for (key, counts) in &self.0.edges {
                count(&mut metric.encode_family(&edge(key))?, value(counts))?;
            }
        }
        let mut metric = begin(encoder, families::ERRORS)?;
        for (key, counts) in &self.0.edges {
            for (kind, errors) in &counts.error_kinds {
                let mut labels = edge(key);
                labels.push(("kind", escaped(kind)));
                count(&mut metric.encode_family(&labels)?, *errors)?;
            }
        }
        let mut metric = begin(encoder, families::DURATION)?;
        for (key, counts) in &self.0.edges {
            let (buckets, total) = buckets(&counts.latency_counts);
            metric.encode_family(&edge(key))?.encode_histogram::<NoLabelSet>(
                seconds(counts.latency_sum_ns),
                total,
                &buckets,
                None,
            )?;
        }
        Ok(())
    }

    fn encode_functions(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let figures: [Figure<FunctionGauges>; 6] = [
            (families::INSTANCES, |gauges| gauges.instances),
            (families::WORKERS, |gauges| gauges.workers),
            (families::BUSY, |gauges| gauges.busy),
            (families::QUEUED, |gauges| gauges.queued),
            (families::REFUSED, |gauges| gauges.refused),
            (families::POOL, |gauges| gauges.pool_bytes),
        ];
        for (family, value) in figures {
            let mut metric = begin(encoder, family)?;
            for (key, gauges) in &self.0.functions {
                let labels = function(key);
                let mut series = metric.encode_family(&labels)?;
                match family.kind {
                    FamilyType::Counter => count(&mut series, value(gauges))?,
                    FamilyType::Gauge | FamilyType::Histogram => {
                        series.encode_gauge(&clamped(value(gauges)))?
                    }
                }
            }
        }
        Ok(())
    }
}

/// Writes a family's head. The encoder adds the suffix of counters itself.
fn begin<'s>(
    encoder: &'s mut DescriptorEncoder<'_>,
    family: Family,
) -> Result<MetricEncoder<'s>, fmt::Error> {
    let (name, kind) = match family.kind {
        FamilyType::Counter => {
            (family.name.strip_suffix("_total").unwrap_or(family.name), MetricType::Counter)
        }
        FamilyType::Gauge => (family.name, MetricType::Gauge),
        FamilyType::Histogram => (family.name, MetricType::Histogram),
    };
    encoder.encode_descriptor(name, family.help, None, kind)
}

fn count(metric: &mut MetricEncoder<'_>, value: u64) -> Result<(), fmt::Error> {
    metric.encode_counter::<NoLabelSet, _, f64>(&value, None)
}

fn edge(key: &EdgeKey) -> Labels {
    let EdgeKey { namespace, pod_namespace, workflow, caller, callee, mode, path } = key;
    let values = [namespace, pod_namespace, workflow, caller, callee, mode, path];
    let values = values.map(|it| escaped(it));
    families::CALLS.labels.iter().copied().zip(values).collect()
}

fn function(key: &FunctionKey) -> Labels {
    let FunctionKey { namespace, pod_namespace, workflow, function } = key;
    let values = [namespace, pod_namespace, workflow, function].map(|it| escaped(it));
    families::INSTANCES.labels.iter().copied().zip(values).collect()
}

/// A label's value; the library writes values as they are.
fn escaped(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for character in value.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            // A parser may split lines at them.
            character if character.is_control() => text.push('\u{fffd}'),
            character => text.push(character),
        }
    }
    text
}

/// Buckets with their bounds in seconds, and the number of all calls.
fn buckets(counts: &[u64]) -> (Vec<(f64, u64)>, u64) {
    let bounds = LATENCY_BOUNDS_NS.iter().map(|bound| seconds(*bound)).chain([f64::MAX]);
    let mut total = 0_u64;
    let buckets = bounds.enumerate().map(|(index, bound)| {
        // The library adds them up, and the sum has to be a number.
        let count = counts.get(index).copied().unwrap_or(0).min(u64::MAX - total);
        total += count;
        (bound, count)
    });
    (buckets.collect(), total)
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus has no other numbers")]
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn clamped(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use cwasi_host::metrics::snapshot::BUCKETS;

    use super::*;

    #[test]
    fn names_cannot_leave_their_quotes_and_counts_do_not_wrap() {
        let mut metrics = NodeMetrics::default();
        let callee = "a\"} 7\nfoo{x=\"\\\r".to_owned();
        let key =
            EdgeKey { caller: "c".into(), callee, mode: "local".into(), ..EdgeKey::default() };
        let counts =
            EdgeCounts { latency_counts: vec![u64::MAX; BUCKETS], ..EdgeCounts::default() };
        metrics.edges.insert(key, counts);
        let text = text(metrics);
        let line = text.lines().find(|line| line.starts_with("cwasi_calls_total")).unwrap();
        assert!(
            line.contains(
                "callee=\"a\\\"} 7\\nfoo{x=\\\"\\\\\u{fffd}\",mode=\"local\",path=\"\"} 0"
            ),
            "{line}"
        );
        assert!(text.lines().all(|line| line.starts_with("cwasi_") || line.starts_with("# ")));
        let last = text.lines().find(|line| line.contains("le=\"+Inf\"")).unwrap();
        assert!(last.ends_with(&format!("}} {}", u64::MAX)), "{last}");
    }

    #[test]
    fn each_family_is_written() {
        let text = text(NodeMetrics::default());
        for Family { name, kind, .. } in families::ALL {
            let name = name.strip_suffix("_total").unwrap_or(name);
            assert!(text.contains(&format!("# TYPE {name} {}\n", kind.name())), "{name}: {text}");
        }
    }
}
