//! Calls and bytes per second, from samples of the shims' counts. A task takes them, so that the first look at the page
//! has rates, too.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cwasi_host::metrics::snapshot::{EdgeCounts, EdgeKey};

use super::files::Files;

/// Time between two samples; shims write once a second.
const SAMPLE_EVERY: Duration = Duration::from_secs(2);
/// Samples that are kept: rates are those of the last ten seconds.
const SAMPLES_MAX: usize = 6;

/// Calls and bytes of each edge at a moment.
#[derive(Debug)]
struct Sample {
    at: Instant,
    counts: BTreeMap<EdgeKey, (u64, u64)>,
}

/// The latest samples; clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Rates(Arc<Mutex<VecDeque<Sample>>>);

impl Rates {
    /// Samples of a namespace. A task of its own takes them, as long as the process lives.
    pub(super) fn start(state_dir: PathBuf, namespace: String) -> Self {
        let rates = Self::default();
        let sampling = rates.clone();
        tokio::spawn(async move {
            loop {
                let (state_dir, namespace) = (state_dir.clone(), namespace.clone());
                let reading = move || Files::read(&state_dir, &namespace);
                let files = tokio::task::spawn_blocking(reading).await.unwrap_or_default();
                let counts = files.edges.into_iter().map(|edge| (edge.key, totals(&edge.counts)));
                sampling.add(Instant::now(), counts.collect());
                tokio::time::sleep(SAMPLE_EVERY).await;
            }
        });
        rates
    }

    fn samples(&self) -> MutexGuard<'_, VecDeque<Sample>> {
        // Single insertions and removals: a panic elsewhere leaves it consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, at: Instant, counts: BTreeMap<EdgeKey, (u64, u64)>) {
        let mut samples = self.samples();
        samples.push_back(Sample { at, counts });
        while samples.len() > SAMPLES_MAX {
            samples.pop_front();
        }
    }

    /// Calls and bytes per second of an edge since the oldest sample. A shim that began anew counts from 0.
    pub(super) fn of(&self, key: &EdgeKey, now: Instant, counts: &EdgeCounts) -> (f64, f64) {
        let samples = self.samples();
        let Some(oldest) = samples.front() else { return (0.0, 0.0) };
        let seconds = now.saturating_duration_since(oldest.at).as_secs_f64();
        let (calls, bytes) = totals(counts);
        let (calls_before, bytes_before) = oldest.counts.get(key).copied().unwrap_or((0, 0));
        if seconds <= 0.0 || calls < calls_before || bytes < bytes_before {
            return (0.0, 0.0);
        }
        #[expect(clippy::cast_precision_loss, reason = "rates for people")]
        let rate = |now: u64, before: u64| (now - before) as f64 / seconds;
        (rate(calls, calls_before), rate(bytes, bytes_before))
    }
}

const fn totals(counts: &EdgeCounts) -> (u64, u64) {
    (counts.calls, counts.request_bytes.saturating_add(counts.response_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_that_of_the_last_samples_and_never_negative() {
        let (rates, key, began) = (Rates::default(), EdgeKey::default(), Instant::now());
        let counts =
            |calls| EdgeCounts { calls, request_bytes: 10 * calls, ..EdgeCounts::default() };
        assert_eq!(rates.of(&key, began, &counts(5)), (0.0, 0.0));
        for second in 0..10 {
            let at = began + Duration::from_secs(second);
            rates.add(at, [(key.clone(), totals(&counts(100 * second)))].into());
        }
        let now = began + Duration::from_secs(14);
        assert_eq!(rates.of(&key, now, &counts(1300)), (90.0, 900.0));
        assert_eq!(rates.of(&key, now, &counts(3)), (0.0, 0.0));
        // An edge that is new since then.
        let other = EdgeKey { callee: "new".into(), ..EdgeKey::default() };
        assert_eq!(rates.of(&other, now, &counts(10)), (1.0, 10.0));
    }
}
