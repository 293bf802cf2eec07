//! Back-off: pauses between attempts that double up to a bound, with jitter, so that shims do not all return at once.

use std::time::Duration;

use cwasi_sys::random::bytes16;

/// The pauses of one sequence of attempts.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    /// Pauses from `first` to `longest`.
    #[must_use]
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, next: first }
    }

    /// How long to wait before the next attempt: between half and all of the pause that is due.
    pub fn pause(&mut self) -> Duration {
        let due = self.next;
        self.next = (due * 2).min(self.longest);
        due.mul_f64(0.5 + f64::from(bytes16()[0]) / 512.0)
    }

    /// Starts over, after a success.
    pub const fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_bound() {
        let (first, longest) = (Duration::from_millis(10), Duration::from_millis(50));
        let mut backoff = Backoff::new(first, longest);
        for due in [10, 20, 40, 50, 50].map(Duration::from_millis) {
            let pause = backoff.pause();
            assert!(pause >= due / 2 && pause <= due, "{pause:?} of {due:?}");
        }
        backoff.reset();
        assert!(backoff.pause() <= first);
    }
}
