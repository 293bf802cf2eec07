//! Metrics and traces of triggers: they are callers without a worker that would report. Runs in the shim daemon.

use std::sync::OnceLock;
use std::time::Instant;

use crate::metrics::Metrics;
use crate::metrics::snapshot::FunctionKey;
use crate::spans::{SpanSource, Spans};
use cwasi_config::triggers::Trigger;
use cwasi_coordinator::registry::Record;
use cwasi_dispatcher::edges::{EMIT, EMIT_REASON, EdgeCounters, EndedCall};
use cwasi_dispatcher::spans::{OpenSpan, SpanEnd};
use cwasi_modes::{CallError, ModeKind};
use cwasi_wire::trace::{SampleRatio, SpanKind, SpanReport};

use super::entries::caller_of;

/// Where the daemon's counts and spans go; nowhere in a process without a group's files.
#[derive(Debug, Default)]
pub(super) struct TriggerCounts(OnceLock<Sinks>);

#[derive(Debug)]
struct Sinks {
    metrics: Metrics,
    spans: Spans,
    /// Share of the traces that are recorded.
    sample: SampleRatio,
}

/// A message of a trigger on its way to the function.
pub(super) struct OpenMessage<'a> {
    counts: &'a TriggerCounts,
    trigger: &'a Trigger,
    record: &'a Record,
    span: Option<OpenSpan>,
    began: Instant,
}

impl TriggerCounts {
    pub(super) fn set(&self, metrics: Metrics, spans: Spans, sample: SampleRatio) {
        // A daemon sets it once, when it starts.
        let _first = self.0.set(Sinks { metrics, spans, sample });
    }

    pub(super) fn begin<'a>(&'a self, trigger: &'a Trigger, record: &'a Record) -> OpenMessage<'a> {
        let span = self.0.get().and_then(|sinks| OpenSpan::sampled(sinks.sample));
        OpenMessage { counts: self, trigger, record, span, began: Instant::now() }
    }
}

impl OpenMessage<'_> {
    /// The trace context that the function gets; empty if the message is not traced.
    pub(super) fn traceparent(&self) -> String {
        self.span.map_or_else(String::new, |span| span.traceparent())
    }

    /// Counts its end.
    pub(super) fn end(self, length: u64, ended: Result<(), &CallError>) {
        let Some(sinks) = self.counts.0.get() else { return };
        let caller = caller_of(self.trigger, &self.record.identity);
        let callee = self.record.identity.function.as_str();
        let mut counters = EdgeCounters::new(&caller.function);
        counters.count(EndedCall {
            module: None,
            callee,
            mode: EMIT,
            path: "",
            reason: EMIT_REASON,
            request_bytes: length,
            response_bytes: ended.map(|()| 0).map_err(|error| error.errno().name()),
            latency: self.began.elapsed(),
        });
        let key = FunctionKey {
            namespace: caller.namespace.clone(),
            pod_namespace: caller.pod_namespace.clone(),
            workflow: self.record.workflow.clone(),
            function: caller.function.clone(),
        };
        sinks.metrics.add(&key, counters.take());
        let Some(span) = self.span else { return };
        let end = SpanEnd {
            kind: SpanKind::Producer,
            peer: callee,
            mode: ModeKind::Networked.name(),
            request_bytes: length,
            errno: ended.err().map_or(0, |error| error.errno().code()),
            ..SpanEnd::default()
        };
        let source =
            SpanSource { identity: &caller, workflow: &self.record.workflow, instance: "" };
        sinks.spans.add(source, SpanReport { spans: vec![span.end(end)], dropped: 0 });
    }
}
