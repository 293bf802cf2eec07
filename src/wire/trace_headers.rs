//! The two headers of W3C trace context as calls carry them: `traceparent` and `tracestate`. Pure data.
//!
//! `tracestate` belongs to the tracing systems of a request's clients. This runtime reads nothing from it, adds nothing
//! to it, and passes it on, to callees and into spans.

use super::trace::TraceContext;

/// Longest `tracestate` in bytes: as much as the specification wants to be passed on
/// (<https://www.w3.org/TR/trace-context/#tracestate-limits>).
pub const TRACESTATE_MAX: usize = 512;
/// Longer members of the list are left out first, where not all fit.
const MEMBER_LONG: usize = 128;

/// The trace context of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceHeaders<'a> {
    /// Trace, span and flags; empty when the call is not traced.
    pub traceparent: &'a str,
    /// What tracing systems keep beside them; empty without.
    pub tracestate: &'a str,
}

impl TraceHeaders<'_> {
    /// The `tracestate` to pass on, at most [`TRACESTATE_MAX`] bytes. Empty without a valid `traceparent`.
    #[must_use]
    pub fn accepted_state(&self) -> String {
        if self.tracestate.is_empty() || TraceContext::parse(self.traceparent).is_none() {
            return String::new();
        }
        bounded(self.tracestate)
    }
}

/// The members of a list that fit, in their order; all of a list that fits, unchanged. Empty for a text that no header
/// can hold.
#[must_use]
pub fn bounded(list: &str) -> String {
    let printable = |byte: u8| matches!(byte, b' '..=b'~' | b'\t');
    if !list.bytes().all(printable) {
        return String::new();
    }
    if list.len() <= TRACESTATE_MAX {
        return list.to_owned();
    }
    // From the last one, each once: a list may be as long as its sender likes.
    let mut members: Vec<&str> = list.rsplit(',').map(str::trim).collect();
    let mut length: usize = members.iter().map(|member| member.len() + 1).sum();
    for shortest in [MEMBER_LONG + 1, 0] {
        members.retain(|member| {
            let leaves = length > TRACESTATE_MAX + 1 && member.len() >= shortest;
            length -= if leaves { member.len() + 1 } else { 0 };
            !leaves
        });
    }
    members.reverse();
    members.join(",")
}

#[cfg(test)]
mod tests {

    use super::*;

    const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

    fn accepted(tracestate: &str) -> String {
        TraceHeaders { traceparent: TRACEPARENT, tracestate }.accepted_state()
    }

    #[test]
    fn what_fits_is_unchanged() {
        for state in ["", "a=1", "rojo=00f067aa0ba902b7, congo=t61rcWkgMzE", "a=1 ,\tb=2,,", "?"] {
            assert_eq!(accepted(state), state);
        }
        let full = "k=".to_owned() + &"v".repeat(TRACESTATE_MAX - 2);
        assert_eq!(accepted(&full), full);
    }

    #[test]
    fn long_members_are_dropped_first() {
        let long = |key: &str| format!("{key}={}", "v".repeat(MEMBER_LONG));
        let short: Vec<_> = (0..50).map(|number| format!("k{number:02}=123456")).collect();
        let kept = accepted(&format!("{},{},{}", long("a"), short[..30].join(","), long("b")));
        assert_eq!(kept, format!("{},{}", long("a"), short[..30].join(",")));
        let kept = accepted(&short.join(","));
        assert!(kept.len() <= TRACESTATE_MAX && kept.len() > TRACESTATE_MAX - 11, "{kept}");
        assert!(short.join(",").starts_with(&kept), "{kept}");
        assert_eq!(accepted(&"v".repeat(TRACESTATE_MAX + 1)), "");
    }

    #[test]
    fn no_state_without_a_valid_trace() {
        for traceparent in ["", "nonsense"] {
            assert_eq!(TraceHeaders { traceparent, tracestate: "a=1" }.accepted_state(), "");
        }
        for state in ["a=\n", "a=\u{1b}[2J", "ä=1"] {
            assert_eq!(accepted(state), "");
        }
    }
}
