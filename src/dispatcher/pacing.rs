//! When a worker receives answers besides waiting for the next one. Runs in a worker. No I/O.

use std::time::Duration;

use cwasi_sys::clock::Deadline;

/// How long a caller of many sleeps before it receives; the kernel adds up to 50 µs.
pub(super) const PAUSE: Duration = Duration::from_micros(20);
/// Number of starts after which a guest that does not wait receives its answers.
const STARTS_PER_RECEIVE: u32 = 32;
/// A caller that waits for so many calls takes their answers together: each one would wake it, often on the processor
/// on which the callee runs the next call.
const MANY: usize = 8;
/// It does so while its last answer is not older than this, in nanoseconds.
const FAST_NS: u64 = 100_000;

/// Starts and answers of one worker.
#[derive(Debug, Default)]
pub(super) struct Pacing {
    /// Number of started calls.
    started: u32,
    /// When one of many calls was answered last.
    last_answer_ns: u64,
}

impl Pacing {
    /// True if a wait for so many calls takes answers together.
    pub const fn is_many(calls: usize) -> bool {
        calls >= MANY
    }

    /// Counts a start. True when answers that have come should be received: left unread, they would delay the callees'
    /// workers.
    pub const fn start(&mut self) -> bool {
        self.started = self.started.wrapping_add(1);
        self.started.is_multiple_of(STARTS_PER_RECEIVE)
    }

    /// Records an answer to one of many calls.
    pub const fn answered(&mut self, now: u64) {
        self.last_answer_ns = now;
    }

    /// True when answers come faster than one after another can be waited for, and `stop` is not near.
    pub const fn answers_gather(&self, stop: Deadline, now: u64) -> bool {
        let fast = now.saturating_sub(self.last_answer_ns) < FAST_NS;
        fast && !stop.has_passed(now.saturating_add(FAST_NS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_gather_while_they_come_fast() {
        let now = 1_000_000_000;
        let (just_now, far) = (now - FAST_NS + 1, Deadline::at_ns(now + FAST_NS + 1));
        let gather =
            |last_answer_ns, stop| Pacing { started: 0, last_answer_ns }.answers_gather(stop, now);
        assert!(gather(just_now, far));
        for (last, stop) in [
            (now - FAST_NS, far),
            (0, far),
            (just_now, Deadline::at_ns(now + FAST_NS)),
            (just_now, Deadline::PASSED),
        ] {
            assert!(!gather(last, stop), "{last} {stop:?}");
        }
    }
}
