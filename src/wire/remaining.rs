//! The remaining time of a deadline, as it travels between processes and hosts.
//!
//! Clocks of two hosts differ, so a deadline travels as remaining time. The sender converts its deadline once, and
//! the receiver converts it back once. Within a host a deadline is a time of one clock (`sys::clock`).

use std::time::Duration;

use super::envelope::Request;
use super::network::Call;

/// Microseconds for a message; `None` = without a bound.
#[must_use]
pub fn encode(left: Option<Duration>) -> u64 {
    match left {
        None => 0,
        // At least 1: 0 means "without a bound".
        Some(left) => u64::try_from(left.as_micros()).unwrap_or(u64::MAX).max(1),
    }
}

/// What a message's microseconds mean; `None` = without a bound.
#[must_use]
pub fn decode(remaining_us: u64) -> Option<Duration> {
    (remaining_us > 0).then(|| Duration::from_micros(remaining_us))
}

impl Request {
    /// How long its caller still waits; `None` = without a bound.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        decode(self.remaining_us)
    }
}

impl Call {
    /// How long its caller still waits; `None` = without a bound.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        decode(self.remaining_us)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn passed_deadlines_are_finite() {
        assert_eq!(encode(None), 0);
        assert_eq!(decode(0), None);
        for left in [Duration::ZERO, Duration::from_nanos(999)] {
            assert_eq!(decode(encode(Some(left))), Some(Duration::from_micros(1)));
        }
        assert_eq!(encode(Some(Duration::MAX)), u64::MAX);
    }

    proptest! {
        #[test]
        fn microseconds_survive(us in 1..u64::MAX) {
            prop_assert_eq!(encode(decode(us)), us);
        }
    }
}
