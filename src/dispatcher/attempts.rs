//! Which failed attempts of a call are repeated, and where. No I/O. Every caller uses it: workers, and processes of the
//! host.

use cwasi_modes::CallError;

/// Most attempts of one call. Only attempts that the callee certainly did not accept are repeated.
pub const ATTEMPTS_MAX: u32 = 4;

/// The attempts of one call.
#[derive(Debug)]
pub struct Attempts {
    number: u32,
    avoid: Vec<String>,
}

impl Default for Attempts {
    fn default() -> Self {
        Self { number: 1, avoid: Vec::new() }
    }
}

impl Attempts {
    /// Number of the running attempt, from 1.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// Instances that certainly did not accept the call: used last.
    #[must_use]
    pub fn avoid(&self) -> &[String] {
        &self.avoid
    }

    /// Avoids an instance from now on.
    pub fn avoid_also(&mut self, instance: Option<String>) {
        self.avoid.extend(instance);
    }

    /// Ends the running attempt with an error. True if another one follows: it is safe, and there were not too many.
    pub const fn repeat_after(&mut self, error: &CallError) -> bool {
        let repeat = error.not_accepted() && self.number < ATTEMPTS_MAX;
        if repeat {
            self.number += 1;
        }
        repeat
    }
}

/// True if the connection is usable after this error.
#[must_use]
pub const fn keeps_connection(error: &CallError) -> bool {
    !matches!(
        error,
        CallError::Unreachable { .. } | CallError::Broken { .. } | CallError::Internal { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use cwasi_modes::causes::{Break, Unreached};

    #[test]
    fn only_calls_that_did_not_run_are_repeated_within_a_bound() {
        let target = || "b".to_owned();
        let unreachable = CallError::Unreachable { target: target(), cause: Unreached::Closed };
        let broken = CallError::Broken { target: target(), cause: Break::Closed };
        let mut attempts = Attempts::default();
        assert!(!attempts.repeat_after(&broken) && attempts.number() == 1);
        let repeats = (0..10).filter(|_| attempts.repeat_after(&unreachable)).count();
        assert_eq!((repeats, attempts.number()), (3, ATTEMPTS_MAX));
        assert!(!keeps_connection(&unreachable) && !keeps_connection(&broken));
        assert!(keeps_connection(&CallError::Timeout { target: target() }));
    }
}
