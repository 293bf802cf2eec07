//! Traces: W3C trace contexts, spans, and when a trace begins. Pure data.
//!
//! A span's moments are `CLOCK_MONOTONIC` nanoseconds in a sandbox's report, and Unix nanoseconds in what a shim keeps
//! and exports: the shim converts them once, when the report arrives.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Length of a `traceparent` of version 00 in bytes.
const TRACEPARENT_LEN: usize = 55;
/// The version that this runtime writes.
const VERSION: &str = "00";
/// A version that no sender may use.
const VERSION_INVALID: &str = "ff";
/// Bit of the flags: the sender records this trace.
const SAMPLED: u8 = 1;
/// [`SampleRatio::ALWAYS`] in its unit.
const PARTS: u32 = 1_000_000;
/// Most phases of one span.
pub const PHASES_MAX: usize = 4;
/// Most spans in one [`SpanReport`]. With names of the greatest length, they fit into a control message.
pub const SPANS_PER_REPORT: usize = 32;
/// Longest name or reason in a span in bytes.
pub const SPAN_TEXT_MAX: usize = 512;

/// A text is not what its place in a trace needs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {expected}")]
pub struct TraceTextError {
    text: String,
    expected: &'static str,
}

impl TraceTextError {
    fn of(text: &str, expected: &'static str) -> Self {
        Self { text: text.chars().take(TRACEPARENT_LEN).collect(), expected }
    }
}

/// Defines an id of `$len` bytes: lower-case hexadecimal digits as text, never all zero.
macro_rules! trace_id_type {
    ($(#[$doc:meta])* $name:ident, $len:literal, $expected:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name([u8; $len]);

        impl $name {
            /// The id of these bytes; `None` if all are zero.
            #[must_use]
            pub fn from_bytes(bytes: [u8; $len]) -> Option<Self> {
                (bytes != [0; $len]).then_some(Self(bytes))
            }

            /// The id of this text; `None` if it is another one.
            #[must_use]
            pub fn parse(text: &str) -> Option<Self> {
                let lower = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
                let mut bytes = [0; $len];
                let read = lower && hex::decode_to_slice(text, &mut bytes).is_ok();
                read.then(|| Self::from_bytes(bytes)).flatten()
            }

            #[must_use]
            pub const fn bytes(&self) -> &[u8; $len] {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&hex::encode(self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{self}")
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.to_string()
            }
        }

        impl TryFrom<String> for $name {
            type Error = TraceTextError;

            fn try_from(text: String) -> Result<Self, TraceTextError> {
                Self::parse(&text).ok_or_else(|| TraceTextError::of(&text, $expected))
            }
        }
    };
}

trace_id_type!(TraceId, 16, "a trace id of 32 lower-case hexadecimal digits");
trace_id_type!(SpanId, 8, "a span id of 16 lower-case hexadecimal digits");

/// A position in a trace: what `traceparent` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TraceContext {
    pub trace: TraceId,
    /// The span that made the call.
    pub span: SpanId,
    /// True if the trace is recorded.
    pub sampled: bool,
}

impl TraceContext {
    /// Reads a `traceparent` (<https://www.w3.org/TR/trace-context/#traceparent-header>); `None` if it is invalid. Of a
    /// later version, the fields of version 00 count.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let fields = text.get(..TRACEPARENT_LEN)?;
        let rest = &text[TRACEPARENT_LEN..];
        let mut parts = fields.split('-');
        let mut part = |len| parts.next().filter(|part| part.len() == len);
        let (version, trace, span, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
        let hexadecimal =
            |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let ends =
            if version == VERSION { rest.is_empty() } else { !rest.starts_with(|c| c != '-') };
        if version == VERSION_INVALID || !hexadecimal(version) || !hexadecimal(flags) || !ends {
            return None;
        }
        let flags = u8::from_str_radix(flags, 16).ok()?;
        let (trace, span) = (TraceId::parse(trace)?, SpanId::parse(span)?);
        Some(Self { trace, span, sampled: flags & SAMPLED != 0 })
    }

    /// True if this `traceparent` is valid and says that the trace is recorded.
    #[must_use]
    pub fn is_sampled(traceparent: &str) -> bool {
        !traceparent.is_empty() && Self::parse(traceparent).is_some_and(|context| context.sampled)
    }

    /// The same position of a trace that is not recorded.
    #[must_use]
    pub const fn unsampled(self) -> Self {
        Self { sampled: false, ..self }
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = if self.sampled { SAMPLED } else { 0 };
        write!(f, "{VERSION}-{}-{}-{flags:02x}", self.trace, self.span)
    }
}

impl From<TraceContext> for String {
    fn from(context: TraceContext) -> Self {
        context.to_string()
    }
}

impl TryFrom<String> for TraceContext {
    type Error = TraceTextError;

    fn try_from(text: String) -> Result<Self, TraceTextError> {
        Self::parse(&text)
            .ok_or_else(|| TraceTextError::of(&text, "a traceparent of W3C trace context"))
    }
}

/// Share of the traces that are recorded, in millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct SampleRatio(u32);

impl SampleRatio {
    /// No trace.
    pub const NEVER: Self = Self(0);
    pub const ALWAYS: Self = Self(PARTS);

    /// True if a trace with this random number is recorded.
    #[must_use]
    pub const fn takes(self, random: u32) -> bool {
        // The product of the two is below 2^52.
        ((random as u64 * PARTS as u64) >> 32) < self.0 as u64
    }
}

impl TryFrom<f64> for SampleRatio {
    type Error = String;

    fn try_from(ratio: f64) -> Result<Self, String> {
        if !(0.0..=1.0).contains(&ratio) {
            return Err(format!("{ratio} is not a share between 0.0 and 1.0"));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the product is between 0 and a million"
        )]
        Ok(Self((ratio * f64::from(PARTS)).round() as u32))
    }
}

impl From<SampleRatio> for f64 {
    fn from(ratio: SampleRatio) -> Self {
        Self::from(ratio.0) / Self::from(PARTS)
    }
}

/// When a function's invocations begin traces, and whether its spans are recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceStart {
    /// False: it passes trace contexts on and records nothing.
    pub record: bool,
    /// Share of the traces that begin here and are recorded.
    pub sample: SampleRatio,
    /// A primary's invocation belongs to this trace; `None` = to one of its own.
    pub parent: Option<TraceContext>,
}

impl TraceStart {
    /// Begins no recorded traces.
    pub const UNSAMPLED: Self = Self { record: true, sample: SampleRatio::NEVER, parent: None };
}

/// The side of a call that a span shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SpanKind {
    /// A primary's run, or a run of the command `cwasi`.
    Run,
    /// A call, by its caller.
    Client,
    /// A call, by its callee.
    Server,
    /// A one-way message, by its sender.
    Producer,
}

/// What a part of a span was spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PhaseKind {
    /// The request waited in a socket or a queue.
    Queue,
    /// The payload was brought into the callee's memory.
    Transfer,
    /// The callee's code ran.
    Run,
    /// The response was sent.
    Answer,
    /// Of a run of the command: it checks images, and writes those that are missing.
    Images,
    /// Of a run of the command: containers are created and started, until the first primary runs.
    Start,
    /// Of a run of the command: it ends and removes what it started.
    End,
}

impl PhaseKind {
    /// Its name for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Transfer => "transfer",
            Self::Run => "run",
            Self::Answer => "answer",
            Self::Images => "images",
            Self::Start => "start",
            Self::End => "end",
        }
    }
}

/// A part of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// What it was spent on.
    pub kind: PhaseKind,
    /// Its begin in nanoseconds.
    pub start_ns: u64,
    /// Its end in nanoseconds.
    pub end_ns: u64,
}

/// One side of one call, or a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Span {
    pub trace: TraceId,
    pub id: SpanId,
    /// The span that caused it; `None` = it begins the trace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<SpanId>,
    pub kind: SpanKind,
    /// The embedded module whose span it is; empty = the function's own.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub module: String,
    /// The other side's function; empty in a run.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub peer: String,
    /// `embedded`, `local` or `networked`; empty if this side does not know.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mode: String,
    /// How a call went to another host: `direct` or `redis`; empty if it did not, or this side does not know.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// The reason for the mode.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Its begin in nanoseconds.
    pub start_ns: u64,
    /// Its end in nanoseconds.
    pub end_ns: u64,
    /// Payload length in bytes.
    pub request_bytes: u64,
    /// Response length in bytes.
    pub response_bytes: u64,
    /// Errno of the guest ABI; 0 = answered. Of a run: its exit code.
    pub errno: i32,
    /// What its time was spent on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<Phase>,
    /// What tracing systems of its trace keep beside the position (`wire::trace_headers`); empty without.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tracestate: String,
}

/// Spans of a sandbox since its worker's last report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpanReport {
    /// At most [`SPANS_PER_REPORT`].
    pub spans: Vec<Span>,
    /// Spans that the worker did not record.
    pub dropped: u64,
}

/// A span with its service: a line of a span file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedSpan {
    /// The function, as its shim knows it.
    pub service: String,
    /// containerd namespace of the function.
    pub namespace: String,
    /// Kubernetes namespace of its pod; empty outside Kubernetes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pod_namespace: String,
    /// Its workflow; empty without one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub workflow: String,
    /// Id of its instance.
    pub instance: String,
    pub node: String,
    /// The span; its moments are Unix nanoseconds.
    pub span: Span,
}

#[cfg(test)]
mod tests {
    use cwasi_testbed::span_line::SPAN_LINE;

    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn contexts_follow_the_standard() {
        let context = TraceContext::parse(GOOD).unwrap();
        assert!(context.sampled && TraceContext::is_sampled(GOOD));
        assert_eq!(context.to_string(), GOOD);
        assert_eq!(context.unsampled().to_string(), GOOD.replace("-01", "-00"));
        // Other flags are not ours; a later version may have more fields.
        let later = format!("01{}-more", &GOOD[2..].replace("-01", "-03"));
        assert_eq!(TraceContext::parse(&later).unwrap(), context);
        assert!(!TraceContext::is_sampled(""));
    }

    #[test]
    fn a_bad_context_is_none() {
        for bad in [
            String::new(),
            GOOD[..54].to_owned(),
            format!("{GOOD}-"),
            format!("{GOOD}0"),
            GOOD.to_uppercase(),
            GOOD.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            GOOD.replace("b7ad6b7169203331", &"0".repeat(16)),
            GOOD.replace("00-", "ff-"),
            GOOD.replace("00-", "0x-"),
            GOOD.replace("-01", "-0g"),
            GOOD.replace('-', "_"),
            format!("01{}x", &GOOD[2..]),
            format!("00-{}é-b7ad6b7169203331-01", &GOOD[3..33]),
        ] {
            assert_eq!(TraceContext::parse(&bad), None, "{bad}");
        }
    }

    #[test]
    fn ratios_sample_their_share() {
        let half = SampleRatio::try_from(0.5).unwrap();
        assert!(
            half.takes(0) && half.takes(u32::MAX / 2 - 5000) && !half.takes(u32::MAX / 2 + 5000)
        );
        assert!(!SampleRatio::NEVER.takes(0) && SampleRatio::ALWAYS.takes(u32::MAX));
        for bad in [-0.1, 1.1, f64::NAN] {
            assert!(SampleRatio::try_from(bad).is_err());
        }
        assert!((f64::from(half) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn spans_round_trip() {
        let line: RecordedSpan = serde_json::from_str(SPAN_LINE).unwrap();
        let text = serde_json::to_string(&line).unwrap();
        assert_eq!(serde_json::from_str::<RecordedSpan>(&text).unwrap(), line);
        for (valid, invalid) in [("\"0303", "\"A303"), ("\"server\"", "\"waiter\"")] {
            let wrong = text.replace(valid, invalid);
            assert!(wrong != text && serde_json::from_str::<RecordedSpan>(&wrong).is_err());
        }
    }
}
