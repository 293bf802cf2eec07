//! Checks the spans that sandboxes report: their moments, and the lengths of their texts.

use cwasi_modes::ModeKind;
use cwasi_wire::envelope::Path;
use cwasi_wire::trace::{PHASES_MAX, Phase, SPAN_TEXT_MAX, Span};
use cwasi_wire::trace_headers;

/// Longest span in nanoseconds, and furthest future.
const SPAN_MAX_NS: u64 = 24 * 3_600_000_000_000;
const FUTURE_MAX_NS: u64 = 1_000_000_000;

/// The beginning of a text of a sandbox, within its bound.
fn shortened(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(SPAN_TEXT_MAX));
    text
}

/// A span within its bounds, with Unix times; `None` if its moments cannot be. `now` and the span's moments are of
/// `CLOCK_MONOTONIC`, whose zero is `epoch`.
pub(super) fn checked(span: Span, now: u64, epoch: u64) -> Option<Span> {
    let latest = now.saturating_add(FUTURE_MAX_NS);
    let possible = |start: u64, end: u64| {
        start <= end && end <= latest && now.saturating_sub(start) <= SPAN_MAX_NS
    };
    if !possible(span.start_ns, span.end_ns) {
        return None;
    }
    let known = [ModeKind::Embedded, ModeKind::Local, ModeKind::Networked];
    let mode = known.iter().find(|mode| mode.name() == span.mode);
    let unix = |ns: u64| ns.saturating_add(epoch);
    let phases = span.phases.iter().filter(|phase| possible(phase.start_ns, phase.end_ns));
    let phases = phases.take(PHASES_MAX).map(|phase| Phase {
        start_ns: unix(phase.start_ns),
        end_ns: unix(phase.end_ns),
        ..*phase
    });
    Some(Span {
        phases: phases.collect(),
        mode: mode.map_or_else(String::new, |mode| mode.name().to_owned()),
        path: Path::known(&span.path).to_owned(),
        module: shortened(span.module),
        peer: shortened(span.peer),
        reason: shortened(span.reason),
        tracestate: trace_headers::bounded(&span.tracestate),
        start_ns: unix(span.start_ns),
        end_ns: unix(span.end_ns),
        ..span
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cwasi_dispatcher::spans::{OpenSpan, SpanEnd};
    use cwasi_wire::trace::PhaseKind;
    use cwasi_wire::trace_headers::TRACESTATE_MAX;

    fn ended() -> Span {
        OpenSpan::root().end(SpanEnd { peer: "b", mode: "local", ..SpanEnd::default() })
    }

    #[test]
    fn impossible_moments_are_refused_and_texts_are_bounded() {
        let (now, epoch) = (10 * SPAN_MAX_NS, 5);
        let at = |start_ns, end_ns| Span { start_ns, end_ns, ..ended() };
        assert!(checked(at(now - 9, now), now, epoch).is_some());
        for (start, end) in [(now, now - 1), (now, u64::MAX), (0, now), (u64::MAX, u64::MAX)] {
            assert!(checked(at(start, end), now, epoch).is_none(), "{start} {end}");
        }
        let phase = Phase { kind: PhaseKind::Run, start_ns: now - 3, end_ns: now - 2 };
        let hostile = Span {
            peer: "é".repeat(10_000),
            mode: "fast".into(),
            path: "pigeon".into(),
            tracestate: "a=1,".repeat(10_000),
            phases: vec![Phase { end_ns: u64::MAX, ..phase }, phase, phase, phase, phase, phase],
            ..at(now - 9, now)
        };
        let span = checked(hostile, now, epoch).unwrap();
        assert!(span.peer.len() <= SPAN_TEXT_MAX);
        assert_eq!((span.mode.as_str(), span.path.as_str()), ("", ""));
        assert!(span.tracestate.len() <= TRACESTATE_MAX);
        assert_eq!(span.phases.len(), PHASES_MAX);
        assert_eq!(span.phases[0].start_ns, now - 3 + epoch);
    }
}
