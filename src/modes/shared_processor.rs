//! When a leader shares its processor with its caller, and lets another worker lead. Runs in a secondary's worker.
//!
//! A message wakes its reader on its sender's processor, if that one is about to sleep. So the two ends of a call can
//! share one processor while another one is idle, and nothing overlaps. The leader notices: it polls in vain, and as
//! soon as it sleeps a request comes. It then hands the lead over once. A follower wakes where it ran last, which is
//! usually another processor. If the follower does not read before this worker sleeps again, this worker leads again.

use crate::spin::{LastSpin, SPIN_NS, Spin};

/// Shortest time between two handovers, in nanoseconds; doubles with each of them ...
const PAUSE_MIN_NS: u64 = 250_000;
/// ... up to so many times. Each poll that finds a request takes one doubling back.
const DOUBLINGS_MAX: u32 = 12;

#[derive(Debug, Default)]
pub struct SharedProcessor {
    /// The current request came as soon as the leader slept.
    came_soon: bool,
    /// Of [`PAUSE_MIN_NS`], for the pause after the next handover.
    doublings: u32,
    /// On the clock of [`monotonic_ns`](cwasi_sys::clock::monotonic_ns).
    next_handover_ns: u64,
}

impl SharedProcessor {
    /// The worker begins to wait for its next request.
    pub const fn waits(&mut self) {
        self.came_soon = false;
    }

    /// The leader slept from `from_ns` until a request came at `until_ns`.
    pub const fn slept(&mut self, from_ns: u64, until_ns: u64) {
        self.came_soon = until_ns.saturating_sub(from_ns) < SPIN_NS;
    }

    /// The worker polled, and found a request in time: it has a processor of its own.
    pub const fn found(&mut self) {
        self.doublings = self.doublings.saturating_sub(1);
    }

    /// True when the worker is to hand the lead over, if it `may`, before it runs the current request. Its next wait
    /// then leaves the processor to its caller. If it slept without polling, its next wait polls: to find out whether
    /// it shares its processor, or because it does not.
    pub fn hands_over(&mut self, spin: &mut Spin, may: bool, now: u64) -> bool {
        let came_soon = std::mem::take(&mut self.came_soon);
        if !came_soon || !may || now < self.next_handover_ns {
            return false;
        }
        if spin.last() != LastSpin::InVain {
            spin.poll_next();
            return false;
        }
        self.next_handover_ns = now.saturating_add(PAUSE_MIN_NS << self.doublings);
        self.doublings = (self.doublings + 1).min(DOUBLINGS_MAX);
        spin.sleep_next();
        true
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// A worker whose polls are in vain, and its clock.
    #[derive(Default)]
    struct Leader {
        sharing: SharedProcessor,
        spin: Spin,
        now: u64,
    }

    impl Leader {
        /// It sleeps for `ns`. True if it hands over then.
        fn waits(&mut self, ns: u64, may: bool) -> bool {
            let Ok(found) = self.spin.wait(|| Ok::<Option<()>, Infallible>(None));
            assert!(found.is_none());
            self.sharing.slept(self.now, self.now + ns);
            self.now += ns;
            let hands_over = self.sharing.hands_over(&mut self.spin, may, self.now);
            assert!(!self.sharing.hands_over(&mut self.spin, may, self.now), "once");
            hands_over
        }
    }

    #[test]
    fn handovers_back_off() {
        let mut leader = Leader::default();
        let mut handovers = Vec::new();
        while leader.now < 100 * PAUSE_MIN_NS {
            if leader.waits(10_000, true) {
                handovers.push(leader.now);
            }
        }
        assert!(handovers[0] <= 20_000, "{handovers:?}");
        let pauses: Vec<_> = handovers.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!((5..8).contains(&pauses.len()), "{pauses:?}");
        for (doublings, pause) in pauses.into_iter().enumerate() {
            let at_least = PAUSE_MIN_NS << doublings;
            assert!((at_least..at_least + 50_000).contains(&pause), "{pause}");
        }
        (0..DOUBLINGS_MAX).for_each(|_| leader.sharing.found());
        leader.now += PAUSE_MIN_NS << DOUBLINGS_MAX;
        assert!((0..3).any(|_| leader.waits(10_000, true)));
        leader.now += PAUSE_MIN_NS;
        assert!((0..3).any(|_| leader.waits(10_000, true)), "soon again, because it had helped");
    }

    #[test]
    fn long_waits_keep_the_lead() {
        for (ns, may) in [(SPIN_NS, true), (10_000, false)] {
            let mut leader = Leader::default();
            assert!((0..100).all(|_| !leader.waits(ns, may)));
        }
    }
}
