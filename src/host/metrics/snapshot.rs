//! The formats of the files with metrics: `edges.json` and `functions.json` of a group, `metrics.json` of the node.
//! Pure data; the shim writes them, `cwasi` reads them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Upper bounds of the latency buckets in nanoseconds: 1, 2 and 5 in each power of ten from 1 µs to 50 s. A last bucket
/// has all longer calls.
pub const LATENCY_BOUNDS_NS: [u64; 24] = bounds();
pub const BUCKETS: usize = LATENCY_BOUNDS_NS.len() + 1;

const fn bounds() -> [u64; 24] {
    let (mut bounds, mut index, mut power) = ([0; 24], 0, 1_000);
    while index < bounds.len() {
        bounds[index] = power;
        bounds[index + 1] = 2 * power;
        bounds[index + 2] = 5 * power;
        power *= 10;
        index += 3;
    }
    bounds
}

#[must_use]
pub fn bucket(latency_ns: u64) -> usize {
    LATENCY_BOUNDS_NS.partition_point(|bound| *bound < latency_ns)
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FunctionKey {
    pub namespace: String,
    /// Kubernetes namespace; empty outside Kubernetes.
    pub pod_namespace: String,
    /// Workflow; empty without one.
    pub workflow: String,
    pub function: String,
}

/// The calls from one function to another one in one mode, on one path.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EdgeKey {
    /// containerd namespace of the caller.
    pub namespace: String,
    /// Kubernetes namespace of the caller; empty outside Kubernetes.
    pub pod_namespace: String,
    /// Workflow of the caller; empty without one.
    pub workflow: String,
    /// Calling function, with `:MODULE` behind it when an embedded module called.
    pub caller: String,
    /// Called function, in the caller's words.
    pub callee: String,
    /// `embedded`, `local`, `networked`, `emit`, or `none` for calls without a route.
    pub mode: String,
    /// Of `networked`: `direct` or `redis`, or empty when no instance was tried; empty for all others.
    #[serde(default)]
    pub path: String,
}

impl EdgeKey {
    /// Mode and path for people.
    #[must_use]
    pub fn mode_and_path(&self) -> String {
        let separator = if self.path.is_empty() { "" } else { "/" };
        format!("{}{separator}{}", self.mode, self.path)
    }
}

/// What is counted for an edge. All of it only grows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgeCounts {
    /// Ended calls, errors included.
    pub calls: u64,
    /// Calls with an error.
    pub errors: u64,
    /// Errors by kind: names of errnos, and `abandoned`.
    #[serde(default)]
    pub error_kinds: BTreeMap<String, u64>,
    /// Payload bytes sent.
    pub request_bytes: u64,
    /// Response bytes received.
    pub response_bytes: u64,
    /// Sum of the latencies in nanoseconds.
    #[serde(default)]
    pub latency_sum_ns: u64,
    /// Number of calls in each bucket of [`LATENCY_BOUNDS_NS`].
    #[serde(default)]
    pub latency_counts: Vec<u64>,
}

impl EdgeCounts {
    /// Adds those of another edge.
    pub fn add(&mut self, other: &Self) {
        let sums = [
            (&mut self.calls, other.calls),
            (&mut self.errors, other.errors),
            (&mut self.request_bytes, other.request_bytes),
            (&mut self.response_bytes, other.response_bytes),
            (&mut self.latency_sum_ns, other.latency_sum_ns),
        ];
        for (sum, more) in sums {
            *sum = sum.saturating_add(more);
        }
        for (kind, more) in &other.error_kinds {
            let sum = self.error_kinds.entry(kind.clone()).or_default();
            *sum = sum.saturating_add(*more);
        }
        self.latency_counts.resize(BUCKETS, 0);
        for (sum, more) in self.latency_counts.iter_mut().zip(&other.latency_counts) {
            *sum = sum.saturating_add(*more);
        }
    }

    /// Removes what the same shim had counted `before`: what is left was counted since then.
    pub fn subtract(&mut self, before: &Self) {
        let counts = [
            (&mut self.calls, before.calls),
            (&mut self.errors, before.errors),
            (&mut self.request_bytes, before.request_bytes),
            (&mut self.response_bytes, before.response_bytes),
            (&mut self.latency_sum_ns, before.latency_sum_ns),
        ];
        let buckets = self.latency_counts.iter_mut().zip(before.latency_counts.iter().copied());
        for (count, less) in counts.into_iter().chain(buckets) {
            *count = count.saturating_sub(less);
        }
        for (kind, count) in &mut self.error_kinds {
            *count = count.saturating_sub(before.error_kinds.get(kind).copied().unwrap_or(0));
        }
        self.error_kinds.retain(|_, count| *count > 0);
    }
}

impl EdgeCounts {
    /// The latency in microseconds below which this share of the calls is, as far as the buckets tell: between the
    /// bounds of one of them. 0 without calls.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        reason = "counts and bounds are exact enough for an estimate"
    )]
    pub fn quantile_us(&self, share: f64) -> f64 {
        let rank = share * self.latency_counts.iter().sum::<u64>() as f64;
        let mut below = 0.0;
        for (bucket, count) in self.latency_counts.iter().enumerate() {
            let count = *count as f64;
            if count > 0.0 && below + count >= rank {
                let bound = |bucket: usize| {
                    let last = LATENCY_BOUNDS_NS.len() - 1;
                    LATENCY_BOUNDS_NS[bucket.min(last)] as f64 / 1000.0
                };
                let from = bucket.checked_sub(1).map_or(0.0, bound);
                return from + (bound(bucket) - from) * ((rank - below) / count).max(0.0);
            }
            below += count;
        }
        0.0
    }
}

/// One line of `edges.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EdgeSnapshot {
    #[serde(flatten)]
    pub key: EdgeKey,
    #[serde(default)]
    pub reason: String,
    #[serde(flatten)]
    pub counts: EdgeCounts,
    /// Half of the calls took at most this many microseconds.
    #[serde(default)]
    pub p50_us: f64,
    /// 99 of 100 took at most this many.
    #[serde(default)]
    pub p99_us: f64,
    /// When the shim began to count from 0, in milliseconds since 1970. Counts of two shims cannot be subtracted.
    #[serde(default)]
    pub counted_since_ms: u64,
}

/// What is known about a secondary, all instances together. Only `refused` is a count; the rest is of now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionGauges {
    #[serde(default)]
    pub instances: u64,
    #[serde(default)]
    pub workers: u64,
    /// Of these, workers with a request.
    #[serde(default)]
    pub busy: u64,
    /// Requests that wait in queues.
    #[serde(default)]
    pub queued: u64,
    /// Requests that were refused because a queue was full; only grows.
    pub refused: u64,
    /// Bytes of segments that workers keep to lend them.
    #[serde(default)]
    pub pool_bytes: u64,
}

impl FunctionGauges {
    /// Adds those of other instances.
    pub const fn add(&mut self, other: &Self) {
        self.instances = self.instances.saturating_add(other.instances);
        self.workers = self.workers.saturating_add(other.workers);
        self.busy = self.busy.saturating_add(other.busy);
        self.queued = self.queued.saturating_add(other.queued);
        self.refused = self.refused.saturating_add(other.refused);
        self.pool_bytes = self.pool_bytes.saturating_add(other.pool_bytes);
    }
}

/// One line of `functions.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionSnapshot {
    #[serde(flatten)]
    pub key: FunctionKey,
    /// What is known about it.
    #[serde(flatten)]
    pub gauges: FunctionGauges,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_is_in_its_bucket() {
        assert_eq!(LATENCY_BOUNDS_NS[..4], [1_000, 2_000, 5_000, 10_000]);
        assert_eq!(LATENCY_BOUNDS_NS[23], 50_000_000_000);
        let buckets = [0, 1_000, 1_001, 50_000_000_000, 50_000_000_001].map(bucket);
        assert_eq!(buckets, [0, 0, 1, 23, BUCKETS - 1]);
    }

    #[test]
    fn sums_do_not_wrap() {
        let many = EdgeCounts {
            calls: u64::MAX,
            error_kinds: [("timeout".to_owned(), u64::MAX)].into(),
            latency_counts: vec![u64::MAX; BUCKETS + 3],
            ..EdgeCounts::default()
        };
        let mut sum = EdgeCounts::default();
        sum.add(&many);
        sum.add(&many);
        assert_eq!((sum.calls, sum.error_kinds["timeout"]), (u64::MAX, u64::MAX));
        assert_eq!(sum.latency_counts, vec![u64::MAX; BUCKETS]);
    }

    #[test]
    fn a_difference_has_what_is_new() {
        let counts = |calls: u64| EdgeCounts {
            calls,
            errors: 2 * calls,
            error_kinds: [("timeout".to_owned(), 2 * calls), ("trapped".to_owned(), 7)].into(),
            request_bytes: 10 * calls,
            response_bytes: 1,
            latency_sum_ns: 1_000 * calls,
            latency_counts: vec![calls; BUCKETS],
        };
        let mut new = counts(5);
        new.subtract(&counts(3));
        let error_kinds = [("timeout".to_owned(), 4)].into();
        assert_eq!(new, EdgeCounts { response_bytes: 0, error_kinds, ..counts(2) });
    }
}
