//! The rate of spans that a group may report. No clock.

use std::time::Instant;

/// Spans that a group may report at once, and per second from then on.
pub(super) const SPANS_AT_ONCE: u32 = 8192;
const SPANS_PER_SECOND: u32 = 1024;

/// Allows a burst and then a rate.
#[derive(Debug)]
pub(super) struct TokenBucket {
    tokens: u32,
    filled: Instant,
}

impl TokenBucket {
    /// One that is full.
    pub(super) const fn new(now: Instant) -> Self {
        Self { tokens: SPANS_AT_ONCE, filled: now }
    }

    /// Takes a token; false if there is none.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        let age = now.saturating_duration_since(self.filled);
        let new = age.as_secs_f64() * f64::from(SPANS_PER_SECOND);
        if new >= 1.0 {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "at least 1, and saturates"
            )]
            let new = new as u32;
            self.tokens = self.tokens.saturating_add(new).min(SPANS_AT_ONCE);
            self.filled = now;
        }
        let taken = self.tokens > 0;
        self.tokens -= u32::from(taken);
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    /// After this time there is a token at least.
    const REFILL: Duration = Duration::from_millis(1);

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        /// In any time, at most a burst and the rate are taken, and one that waited gets a token.
        #[test]
        fn a_burst_and_then_a_rate(
            steps in prop::collection::vec((0..2_000_000_u64, 1..12_000_u32), 0..20),
        ) {
            let begin = Instant::now();
            let (mut bucket, mut now, mut taken) = (TokenBucket::new(begin), begin, 0_u32);
            for (pause_us, takes) in steps {
                let pause = Duration::from_micros(pause_us);
                now += pause;
                let got = (0..takes).filter(|_| bucket.take(now)).count();
                prop_assert!(got > 0 || pause < REFILL);
                taken += u32::try_from(got).unwrap();
                let rate = (now - begin).as_secs_f64() * f64::from(SPANS_PER_SECOND);
                prop_assert!(f64::from(taken) <= f64::from(SPANS_AT_ONCE) + rate);
            }
        }
    }
}
