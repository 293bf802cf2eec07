//! The OTLP message of recorded spans.

use std::collections::BTreeMap;

use cwasi_abi::Errno;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{
    AnyValue, InstrumentationScope, KeyValue, any_value::Value,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::{Event, SpanKind as OtlpKind};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode as OtlpCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span as OtlpSpan, Status};
use prost::Message as _;

use cwasi_wire::trace::{RecordedSpan, Span, SpanKind};

/// Number of bits of the flags that say "sampled".
const SAMPLED_FLAG: u32 = 1;

/// The body of a request with these spans.
#[must_use]
pub fn encode(spans: &[RecordedSpan]) -> Vec<u8> {
    let mut services: BTreeMap<_, Vec<&RecordedSpan>> = BTreeMap::new();
    for span in spans {
        let RecordedSpan { namespace, pod_namespace, service, instance, .. } = span;
        services.entry((namespace, pod_namespace, service, instance)).or_default().push(span);
    }
    let resource_spans = services.into_values().map(|spans| ResourceSpans {
        resource: Some(resource(spans[0])),
        scope_spans: vec![ScopeSpans {
            scope: Some(InstrumentationScope {
                name: "cwasi".to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                ..InstrumentationScope::default()
            }),
            spans: spans.into_iter().map(span).collect(),
            ..ScopeSpans::default()
        }],
        ..ResourceSpans::default()
    });
    ExportTraceServiceRequest { resource_spans: resource_spans.collect() }.encode_to_vec()
}

fn resource(span: &RecordedSpan) -> Resource {
    let texts = [
        ("service.name", &span.service),
        ("service.namespace", &span.namespace),
        ("service.instance.id", &span.instance),
        ("k8s.namespace.name", &span.pod_namespace),
        ("host.name", &span.node),
        ("cwasi.workflow", &span.workflow),
    ];
    Resource { attributes: attributes(texts), ..Resource::default() }
}

fn span(recorded: &RecordedSpan) -> OtlpSpan {
    let span = &recorded.span;
    let texts =
        [("cwasi.peer", &span.peer), ("cwasi.module", &span.module), ("cwasi.mode", &span.mode)];
    let mut attributes = attributes(texts);
    let chosen = [("cwasi.mode.reason", &span.reason), ("cwasi.path", &span.path)];
    attributes.extend(self::attributes(chosen));
    let numbers = [
        ("cwasi.request.bytes", span.request_bytes),
        ("cwasi.response.bytes", span.response_bytes),
    ];
    attributes.extend(numbers.map(|(key, number)| {
        attribute(key, Value::IntValue(i64::try_from(number).unwrap_or(i64::MAX)))
    }));
    let (kind, name) = match span.kind {
        SpanKind::Run => (OtlpKind::Internal, &recorded.service),
        SpanKind::Server => (OtlpKind::Server, &recorded.service),
        SpanKind::Client => (OtlpKind::Client, &span.peer),
        SpanKind::Producer => (OtlpKind::Producer, &span.peer),
    };
    let status = (span.errno != 0).then(|| {
        let message = outcome(span);
        attributes.push(attribute("error.type", Value::StringValue(message.clone())));
        Status { message, code: OtlpCode::Error as i32 }
    });
    let events = span.phases.iter().map(|phase| Event {
        time_unix_nano: phase.start_ns,
        name: phase.kind.name().to_owned(),
        attributes: vec![attribute(
            "cwasi.duration_ns",
            Value::IntValue(i64::try_from(phase.end_ns - phase.start_ns).unwrap_or(i64::MAX)),
        )],
        ..Event::default()
    });
    OtlpSpan {
        trace_id: span.trace.bytes().to_vec(),
        span_id: span.id.bytes().to_vec(),
        parent_span_id: span.parent.map(|parent| parent.bytes().to_vec()).unwrap_or_default(),
        trace_state: span.tracestate.clone(),
        flags: SAMPLED_FLAG,
        name: name.clone(),
        kind: kind as i32,
        start_time_unix_nano: span.start_ns,
        end_time_unix_nano: span.end_ns,
        events: events.collect(),
        attributes,
        status,
        ..OtlpSpan::default()
    }
}

/// How a span that failed ended: the errno's name, or the exit code of a run.
fn outcome(span: &Span) -> String {
    if span.kind == SpanKind::Run {
        return format!("exit code {}", span.errno);
    }
    let errno = Errno::ALL.iter().find(|errno| errno.code() == span.errno);
    errno.map_or_else(|| format!("errno {}", span.errno), |errno| errno.name().to_owned())
}

/// Those that are not empty.
fn attributes<const N: usize>(texts: [(&str, &String); N]) -> Vec<KeyValue> {
    let given = texts.into_iter().filter(|(_, text)| !text.is_empty());
    given.map(|(key, text)| attribute(key, Value::StringValue(text.clone()))).collect()
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}

#[cfg(test)]
mod tests {
    use cwasi_testbed::span_line::SPAN_LINE;

    use super::*;

    fn recorded(service: &str, errno: i32) -> RecordedSpan {
        let line: RecordedSpan = serde_json::from_str(SPAN_LINE).unwrap();
        let span = Span { response_bytes: u64::MAX, errno, ..line.span };
        RecordedSpan { service: service.into(), span, ..line }
    }

    #[test]
    fn spans_are_grouped_by_instance() {
        let bytes = encode(&[recorded("a", 0), recorded("b", 5), recorded("a", 0)]);
        let request = ExportTraceServiceRequest::decode(bytes.as_slice()).unwrap();
        let counts: Vec<_> =
            request.resource_spans.iter().map(|it| it.scope_spans[0].spans.len()).collect();
        assert_eq!(counts, [2, 1]);
        let span = &request.resource_spans[1].scope_spans[0].spans[0];
        assert_eq!((span.trace_id.as_slice(), span.kind), (&[7; 16][..], OtlpKind::Server as i32));
        assert_eq!(
            (span.parent_span_id.as_slice(), span.trace_state.as_str()),
            (&[3; 8][..], "a=1")
        );
        let status = span.status.as_ref().unwrap();
        assert_eq!((status.code, status.message.as_str()), (OtlpCode::Error as i32, "timeout"));
        assert_eq!(span.events[0].name, "run");
    }
}
