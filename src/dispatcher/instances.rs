//! The choice among a caller's connections to the instances of one callee, and when it asks for another instance. No
//! I/O and no clock. Every caller uses it: workers, and processes of the host.
//!
//! A call takes the connection with the fewest calls in flight. When all have some, it asks for an instance that the
//! caller does not know yet, unless the shim said less than [`REFRESH_INTERVAL`] ago that there is none.

use std::time::{Duration, Instant};

use cwasi_modes::ModeKind;

/// Age up to which the shim's last word on instances is trusted.
pub const REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// A connection, as the choice sees it.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Calls in flight over it.
    pub in_flight: usize,
    pub mode: ModeKind,
    /// True if an instance of the caller's own group would come first.
    pub is_far: bool,
}

/// The connection for the next call.
#[derive(Debug, PartialEq, Eq)]
pub enum Pick<T> {
    /// Use this connection.
    Take(T),
    /// Ask for another instance, or use this connection.
    AskFirst {
        fallback: T,
        /// Ask for an instance of the caller's own group.
        nearer: bool,
    },
    /// Ask for a route.
    Ask,
}

/// What a caller knows about the instances of a callee.
#[derive(Debug)]
pub struct KnownInstances {
    /// Most connections.
    max: usize,
    /// Number of reachable instances, as the shim last said.
    count: usize,
    counted: Instant,
    /// Time of the last question for an instance of the caller's own group.
    asked_nearer: Instant,
}

impl KnownInstances {
    /// A callee with `count` instances, to which at most `max` connections are made.
    #[must_use]
    pub const fn new(max: usize, count: usize, now: Instant) -> Self {
        Self { max, count, counted: now, asked_nearer: now }
    }

    /// Records the shim's number of instances.
    pub const fn set_count(&mut self, count: usize, now: Instant) {
        self.count = count;
        self.counted = now;
    }

    /// Records that the shim knows no nearer instance.
    pub const fn set_none_nearer(&mut self, now: Instant) {
        self.asked_nearer = now;
    }

    /// The connection for the next call.
    pub fn pick<T>(&self, connections: impl Iterator<Item = (T, Load)>, now: Instant) -> Pick<T> {
        let is_old = |since| now.saturating_duration_since(since) >= REFRESH_INTERVAL;
        let (mut known, mut idlest) = (0, None::<(T, Load)>);
        for (connection, load) in connections {
            known += 1;
            if idlest.as_ref().is_none_or(|(_, least)| load.in_flight < least.in_flight) {
                idlest = Some((connection, load));
            }
        }
        let Some((idlest, load)) = idlest else { return Pick::Ask };
        if load.is_far && is_old(self.asked_nearer) {
            return Pick::AskFirst { fallback: idlest, nearer: true };
        }
        // The bridge to other hosts chooses instances itself.
        let may_have_more = load.mode == ModeKind::Local
            && known < self.max
            && (known < self.count || is_old(self.counted));
        if load.in_flight > 0 && may_have_more {
            return Pick::AskFirst { fallback: idlest, nearer: false };
        }
        Pick::Take(idlest)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LOCAL: ModeKind = ModeKind::Local;

    fn pick(
        known: &KnownInstances,
        loads: &[(usize, ModeKind, bool)],
        now: Instant,
    ) -> Pick<usize> {
        let load =
            |&(in_flight, mode, is_far): &(usize, ModeKind, bool)| Load { in_flight, mode, is_far };
        known.pick(loads.iter().map(load).enumerate(), now)
    }

    #[test]
    fn the_idlest_serves_and_others_are_asked_for_while_there_may_be_some() {
        let now = Instant::now();
        let mut known = KnownInstances::new(3, 2, now);
        let ask = |fallback, nearer| Pick::AskFirst { fallback, nearer };
        assert_eq!(pick(&known, &[], now), Pick::Ask);
        assert_eq!(pick(&known, &[(0, LOCAL, false)], now), Pick::Take(0));
        assert_eq!(pick(&known, &[(1, LOCAL, false)], now), ask(0, false), "there is one more");
        let two = [(2, LOCAL, false), (1, LOCAL, false)];
        assert_eq!(pick(&known, &two, now), Pick::Take(1));
        let now = now + REFRESH_INTERVAL;
        assert_eq!(pick(&known, &two, now), ask(1, false));
        assert_eq!(pick(&known, &[(1, LOCAL, false); 3], now), Pick::Take(0), "no more than these");
        assert_eq!(pick(&known, &[(1, ModeKind::Networked, false)], now), Pick::Take(0));
        known.set_count(1, now);
        assert_eq!(
            pick(&known, &[(1, LOCAL, false)], now),
            Pick::Take(0),
            "it has just been asked"
        );
    }

    #[test]
    fn a_nearer_instance_is_asked_for_now_and_then() {
        let now = Instant::now();
        let mut known = KnownInstances::new(3, 1, now);
        let far = [(0, LOCAL, true)];
        assert_eq!(pick(&known, &far, now), Pick::Take(0), "it has just been asked");
        let now = now + REFRESH_INTERVAL;
        assert_eq!(pick(&known, &far, now), Pick::AskFirst { fallback: 0, nearer: true });
        assert_eq!(pick(&known, &[(0, LOCAL, false)], now), Pick::Take(0));
        known.set_none_nearer(now);
        assert_eq!(pick(&known, &far, now), Pick::Take(0));
    }

    /// A caller that is always busy, and its shim.
    struct World {
        known: KnownInstances,
        now: Instant,
        /// Instances that there are, and those to which the caller has connections.
        instances: usize,
        connected: usize,
        /// When the shim answered last.
        asked: Instant,
        /// When it last answered that there is no other instance.
        refused: Option<Instant>,
    }

    impl World {
        const MAX: usize = 5;

        fn new() -> Self {
            let now = Instant::now();
            let known = KnownInstances::new(Self::MAX, 1, now);
            Self { known, now, instances: 1, connected: 1, asked: now, refused: None }
        }

        /// The shim's answer to the caller.
        fn answer(&mut self) {
            self.asked = self.now;
            self.known.set_count(self.instances, self.now);
            let has_other = self.connected < self.instances;
            self.connected += usize::from(has_other);
            self.refused = (!has_other).then_some(self.now);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5000))]

        /// The shim is not asked in vain twice in an interval, and a new instance is found within one.
        #[test]
        fn a_busy_caller_finds_each_instance_and_asks_no_more_than_it_must(
            steps in prop::collection::vec((0..700_u64, 1..8_usize), 0..60),
        ) {
            let mut world = World::new();
            for (pause, instances) in steps {
                world.now += Duration::from_millis(pause);
                world.instances = instances;
                if world.connected > instances {
                    // The caller asks for another one at once.
                    (world.connected, world.refused) = (instances, None);
                }
                match pick(&world.known, &vec![(1, LOCAL, false); world.connected], world.now) {
                    Pick::AskFirst { nearer, .. } => {
                        let refused = world.refused.map(|at| world.now - at);
                        prop_assert!(!nearer && refused.is_none_or(|ago| ago >= REFRESH_INTERVAL));
                        world.answer();
                    }
                    Pick::Take(_) => {
                        let may_have_more = world.connected < World::MAX.min(instances);
                        let asked_ago = world.now - world.asked;
                        prop_assert!(!may_have_more || asked_ago < REFRESH_INTERVAL);
                    }
                    Pick::Ask => prop_assert!(false, "it has a connection"),
                }
            }
        }
    }
}
