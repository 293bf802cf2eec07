//! Metrics for Prometheus: requests by function and status, their duration, bytes, and what is in flight.
//!
//! Invariant: clients choose names and paths, so the number of time series is bounded: only functions that were found
//! have a name of their own, and at most [`FUNCTIONS_MAX`] of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

/// Most functions with metrics of their own.
const FUNCTIONS_MAX: usize = 256;
/// The name of the others.
const OTHERS: &str = "other";
/// Upper bounds of the histogram's buckets in seconds.
const BUCKETS: [f64; 14] =
    [0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    function: String,
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FunctionLabels {
    function: String,
}

/// How a call with a callback ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(super) enum CallbackEnd {
    /// The receiver took the answer.
    Delivered,
    /// It did not.
    Undelivered,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallbackLabels {
    end: CallbackEnd,
}

/// The metrics; clones share them.
#[derive(Clone, Debug)]
pub(super) struct Metrics {
    registry: Arc<Registry>,
    requests: Family<RequestLabels, Counter>,
    durations: Family<FunctionLabels, Histogram>,
    in_flight: Gauge,
    callbacks: Family<CallbackLabels, Counter>,
    /// The functions with metrics of their own, and the number of requests for each.
    functions: Arc<Mutex<BTreeMap<String, u64>>>,
}

impl Metrics {
    pub(super) fn new() -> Self {
        let mut registry = Registry::with_prefix("cwasi_gateway");
        let requests = Family::<RequestLabels, Counter>::default();
        let durations =
            Family::<FunctionLabels, Histogram>::new_with_constructor(|| Histogram::new(BUCKETS));
        let in_flight = Gauge::default();
        registry.register("requests", "Requests by function and status", requests.clone());
        registry.register_with_unit(
            "request_duration",
            "Time from a request's head to the head of its response",
            Unit::Seconds,
            durations.clone(),
        );
        registry.register("requests_in_flight", "Requests being served", in_flight.clone());
        let callbacks = Family::<CallbackLabels, Counter>::default();
        registry.register("callbacks", "Calls with a callback, by their end", callbacks.clone());
        let (registry, functions) = (Arc::new(registry), Arc::default());
        Self { registry, requests, durations, in_flight, callbacks, functions }
    }

    /// Counts one call with a callback.
    pub(super) fn count_callback(&self, end: CallbackEnd) {
        self.callbacks.get_or_create(&CallbackLabels { end }).inc();
    }

    /// Counts one request; `found` says whether there is such a function.
    pub(super) fn count(&self, function: &str, found: bool, status: u16, duration: Duration) {
        let function =
            if found && self.count_known(function) { function } else { OTHERS }.to_owned();
        let labels = FunctionLabels { function: function.clone() };
        self.durations.get_or_create(&labels).observe(duration.as_secs_f64());
        self.requests.get_or_create(&RequestLabels { function, status }).inc();
    }

    /// Requests for a function since the gateway's start.
    pub(super) fn calls(&self, function: &str) -> u64 {
        let functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        functions.get(function).copied().unwrap_or(0)
    }

    fn count_known(&self, function: &str) -> bool {
        // Single insertions: a panic elsewhere leaves it consistent.
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(calls) = functions.get_mut(function) {
            *calls += 1;
            return true;
        }
        functions.len() < FUNCTIONS_MAX && functions.insert(function.to_owned(), 1).is_none()
    }

    /// The text for Prometheus.
    pub(super) fn text(&self, in_flight: usize) -> String {
        self.in_flight.set(i64::try_from(in_flight).unwrap_or(i64::MAX));
        let mut text = String::new();
        // Writing to a String does not fail.
        let _never = encode(&mut text, &self.registry);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_function_and_strangers_names_are_not() {
        let metrics = Metrics::new();
        for number in 0..2 * FUNCTIONS_MAX {
            metrics.count(&format!("guessed-{number}"), false, 404, Duration::ZERO);
        }
        metrics.count("echo", true, 200, Duration::from_millis(3));
        let text = metrics.text(7);
        for line in [
            "cwasi_gateway_requests_total{function=\"echo\",status=\"200\"} 1",
            "cwasi_gateway_requests_total{function=\"other\",status=\"404\"} 512",
            "cwasi_gateway_request_duration_seconds_bucket{le=\"0.005\",function=\"echo\"} 1",
            "cwasi_gateway_requests_in_flight 7",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(!text.contains("guessed"));
        assert_eq!(["echo", "guessed-1"].map(|name| metrics.calls(name)), [1, 0]);
    }
}
