//! The rate of spans that a group may report.

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
    pub(super) fn new() -> Self {
        Self { tokens: SPANS_AT_ONCE, filled: Instant::now() }
    }

    /// Takes a token; false if there is none.
    pub(super) fn take(&mut self) -> bool {
        let new = self.filled.elapsed().as_secs_f64() * f64::from(SPANS_PER_SECOND);
        if new >= 1.0 {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "at least 1, and saturates"
            )]
            let new = new as u32;
            self.tokens = self.tokens.saturating_add(new).min(SPANS_AT_ONCE);
            self.filled = Instant::now();
        }
        let taken = self.tokens > 0;
        self.tokens -= u32::from(taken);
        taken
    }
}
