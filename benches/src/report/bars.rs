//! The bars: the required ratio of each case to its baseline. The only list of them.

use std::fmt;

use super::{Direction, Entry};

/// What a bar asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// Baseline by ours, at least.
    TimesAtLeast(f64),
    /// Ours by baseline, at most.
    TimesAtMost(f64),
    /// Ours, at most that many times the baseline and so much more, in the entry's unit.
    TimesAndMoreAtMost(f64, f64),
    /// Ours alone, at most, in the entry's unit, which is named.
    AtMost(f64, &'static str),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bar {
    pub case: &'static str,
    /// The baseline; `none` for a bar on ours alone.
    pub baseline: &'static str,
    /// What is asked for.
    pub limit: Limit,
}

/// How an entry stands to its bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Met,
    /// It does not, or has no numbers.
    NotMet,
}

const fn bar(case: &'static str, baseline: &'static str, limit: Limit) -> Bar {
    Bar { case, baseline, limit }
}

pub const BARS: [Bar; 39] = {
    use Limit::{AtMost, TimesAndMoreAtMost, TimesAtLeast, TimesAtMost};
    [
        bar("local-100MiB-inplace-touch-none", "uds-copy", TimesAtLeast(50.0)),
        bar("local-100MiB-inplace-touch-none", "http-loopback", TimesAtLeast(8.0)),
        bar("local-100MiB-inplace-touch-all-call", "uds-copy", TimesAtLeast(3.0)),
        bar("local-100MiB-inplace-touch-all-call", "http-loopback", TimesAtLeast(8.0)),
        bar("local-2MiB-inplace-touch-none", "uds-copy", TimesAtLeast(3.0)),
        bar("local-2MiB-inplace-touch-all-call", "http-loopback", TimesAtLeast(5.0)),
        bar("local-64B-call", "uds-pingpong", TimesAndMoreAtMost(2.0, 30.0)),
        bar("local-64B-call", "http-loopback", TimesAtLeast(1.0)),
        bar("fanout-2MiB-100-touch-none", "uds-copy", TimesAtLeast(40.0)),
        bar("fanout-2MiB-100-touch-none-call", "uds-copy", TimesAtLeast(8.0)),
        bar("fanout-2MiB-500-touch-none", "uds-copy", TimesAtLeast(40.0)),
        bar("fanout-2MiB-500-touch-none-call", "uds-copy", TimesAtLeast(8.0)),
        bar("fanin-2MiB-100-call", "http-loopback", TimesAtLeast(8.0)),
        bar("embedded-64B-call", "uds-pingpong", TimesAtLeast(30.0)),
        bar("throughput-64B-8-callers", "http-loopback", TimesAtLeast(1.0)),
        bar("network-64B-call", "tls", TimesAtMost(1.5)),
        bar("network-64B-call", "redis", TimesAtMost(1.0)),
        bar("network-2MiB-call", "tls", TimesAtMost(1.3)),
        bar("network-2MiB-call", "redis", TimesAtLeast(3.0)),
        bar("network-100MiB-call", "tls", TimesAtMost(1.2)),
        bar("network-100MiB-call", "redis", TimesAtLeast(2.0)),
        bar("network-100MiB-call", "over-redis", TimesAtLeast(2.0)),
        bar("network-64B-8-callers", "http2", TimesAtLeast(1.0)),
        bar("network-64B-64-callers", "http2", TimesAtLeast(1.0)),
        bar("network-64B-first-call", "kept", AtMost(3000.0, "µs")),
        // 95 and 90 % of what TLS alone reaches there.
        bar("network-100MiB-1Gbit-call", "tls", TimesAtMost(1.05)),
        bar("network-100MiB-10Gbit-call", "tls", TimesAtMost(1.11)),
        bar("coldstart-ctr-run", "runc", TimesAtMost(0.5)),
        bar("http-64B-1-connections", "http-loopback", TimesAtMost(1.5)),
        bar("http-64B-32-connections", "http-loopback", TimesAtMost(1.5)),
        bar("http-2MiB-1-connections", "http-loopback", TimesAtMost(1.3)),
        bar("component-64B-call", "core-module", TimesAtMost(1.3)),
        bar("component-http-hello-1-connections", "wasmtime-serve", TimesAtMost(1.0)),
        bar("component-http-hello-32-connections", "wasmtime-serve", TimesAtMost(1.0)),
        bar("component-http-hello-128-connections", "wasmtime-serve", TimesAtMost(1.0)),
        bar("http-overload-unanswered", "none", AtMost(0.0, "unanswered")),
        bar("idle-memory-per-function-at-100", "none", AtMost(0.7, "MiB")),
        bar("idle-suspended-memory", "none", AtMost(300.0, "KiB")),
        bar("idle-wake-64B-call", "awake", AtMost(3000.0, "µs")),
    ]
};

/// The bar for an entry.
#[must_use]
pub fn of(entry: &Entry) -> Option<&'static Bar> {
    BARS.iter().find(|bar| bar.case == entry.case && bar.baseline == entry.baseline)
}

/// What the ratio of a case with a baseline compares: what its bar is stated in.
#[must_use]
pub fn direction(case: &str, baseline: &str) -> Direction {
    let bar = BARS.iter().find(|bar| bar.case == case && bar.baseline == baseline);
    match bar.map(|bar| bar.limit) {
        Some(Limit::TimesAtMost(_) | Limit::TimesAndMoreAtMost(..)) => Direction::OursByBaseline,
        _ => Direction::BaselineByOurs,
    }
}

impl Bar {
    /// Judges an entry by this bar.
    #[must_use]
    pub fn judge(&self, entry: &Entry) -> Verdict {
        let met = || {
            let ours = entry.ours_p50?;
            Some(match self.limit {
                Limit::TimesAtLeast(times) => entry.ratio? >= times,
                Limit::TimesAtMost(times) => entry.ratio? <= times,
                Limit::TimesAndMoreAtMost(times, more) => {
                    ours <= times * entry.baseline_p50? + more
                }
                Limit::AtMost(most, _) => ours <= most,
            })
        };
        if entry.failed.is_none() && met() == Some(true) { Verdict::Met } else { Verdict::NotMet }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimesAtLeast(1.0) => f.write_str("faster"),
            Self::TimesAtLeast(times) => write!(f, "≥ {times}×"),
            Self::TimesAtMost(times) => write!(f, "≤ {times}×"),
            Self::TimesAndMoreAtMost(times, more) => write!(f, "≤ {times}× + {more} µs"),
            Self::AtMost(most, unit) => write!(f, "≤ {most} {unit}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Comparison;
    use crate::stats::Rounds;

    fn entry(bar: &Bar, ours: f64, theirs: f64) -> Entry {
        let (ours, theirs) = (Rounds(vec![vec![ours]]), Rounds(vec![vec![theirs]]));
        Entry::from(Comparison {
            case: bar.case,
            unit: "us",
            ours: &ours,
            baseline: Some((bar.baseline, &theirs)),
            direction: direction(bar.case, bar.baseline),
            conditions: String::new(),
        })
    }

    #[test]
    fn each_kind_of_bar_has_two_sides() {
        let judged = |limit, ours, theirs| {
            let bar = BARS.iter().find(|bar| bar.limit == limit).unwrap();
            bar.judge(&entry(bar, ours, theirs))
        };
        assert_eq!(judged(Limit::TimesAtLeast(50.0), 1.0, 50.0), Verdict::Met);
        assert_eq!(judged(Limit::TimesAtLeast(50.0), 1.0, 49.0), Verdict::NotMet);
        assert_eq!(judged(Limit::TimesAtMost(0.5), 5.0, 10.0), Verdict::Met);
        assert_eq!(judged(Limit::TimesAtMost(0.5), 5.1, 10.0), Verdict::NotMet);
        assert_eq!(judged(Limit::TimesAndMoreAtMost(2.0, 30.0), 36.0, 3.0), Verdict::Met);
        assert_eq!(judged(Limit::TimesAndMoreAtMost(2.0, 30.0), 36.1, 3.0), Verdict::NotMet);
        assert_eq!(judged(Limit::AtMost(0.7, "MiB"), 0.7, 0.0), Verdict::Met);
        assert_eq!(judged(Limit::AtMost(0.7, "MiB"), 0.8, 0.0), Verdict::NotMet);
    }

    #[test]
    fn what_failed_meets_no_bar() {
        for bar in BARS {
            let failed = Entry { baseline: bar.baseline.into(), ..Entry::failed(bar.case, "why") };
            assert_eq!(of(&failed), Some(&bar));
            assert_eq!(bar.judge(&failed), Verdict::NotMet);
        }
    }
}
