//! The choice among a caller's connections to the instances of one callee, and when it asks for another instance. No
//! I/O. Every caller uses it: workers, and processes of the host.
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
    pub fn new(max: usize, count: usize) -> Self {
        let now = Instant::now();
        Self { max, count, counted: now, asked_nearer: now }
    }

    /// Records the shim's number of instances.
    pub fn set_count(&mut self, count: usize) {
        self.count = count;
        self.counted = Instant::now();
    }

    /// Records that the shim knows no nearer instance.
    pub fn set_none_nearer(&mut self) {
        self.asked_nearer = Instant::now();
    }

    /// The connection for the next call.
    pub fn pick<T>(&self, connections: impl Iterator<Item = (T, Load)>) -> Pick<T> {
        let (mut known, mut idlest) = (0, None::<(T, Load)>);
        for (connection, load) in connections {
            known += 1;
            if idlest.as_ref().is_none_or(|(_, least)| load.in_flight < least.in_flight) {
                idlest = Some((connection, load));
            }
        }
        let Some((idlest, load)) = idlest else { return Pick::Ask };
        if load.is_far && self.asked_nearer.elapsed() >= REFRESH_INTERVAL {
            return Pick::AskFirst { fallback: idlest, nearer: true };
        }
        // The bridge to other hosts chooses instances itself.
        let may_have_more = load.mode == ModeKind::Local
            && known < self.max
            && (known < self.count || self.counted.elapsed() >= REFRESH_INTERVAL);
        if load.in_flight > 0 && may_have_more {
            return Pick::AskFirst { fallback: idlest, nearer: false };
        }
        Pick::Take(idlest)
    }

    #[cfg(test)]
    pub fn age(&mut self) {
        let past = Instant::now().checked_sub(REFRESH_INTERVAL).unwrap();
        (self.counted, self.asked_nearer) = (past, past);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pick(known: &KnownInstances, loads: &[(usize, ModeKind, bool)]) -> Pick<usize> {
        let load =
            |&(in_flight, mode, is_far): &(usize, ModeKind, bool)| Load { in_flight, mode, is_far };
        known.pick(loads.iter().map(load).enumerate())
    }

    #[test]
    fn the_idlest_serves_and_others_are_asked_for_while_there_may_be_some() {
        const LOCAL: ModeKind = ModeKind::Local;
        let mut known = KnownInstances::new(3, 2);
        let ask = |fallback, nearer| Pick::AskFirst { fallback, nearer };
        assert_eq!(pick(&known, &[]), Pick::Ask);
        assert_eq!(pick(&known, &[(0, LOCAL, false)]), Pick::Take(0));
        assert_eq!(pick(&known, &[(1, LOCAL, false)]), ask(0, false), "there is one more");
        assert_eq!(pick(&known, &[(2, LOCAL, false), (1, LOCAL, false)]), Pick::Take(1));
        known.age();
        assert_eq!(pick(&known, &[(2, LOCAL, false), (1, LOCAL, false)]), ask(1, false));
        assert_eq!(pick(&known, &[(1, LOCAL, false); 3]), Pick::Take(0), "no more than these");
        assert_eq!(pick(&known, &[(1, ModeKind::Networked, false)]), Pick::Take(0));
        known.set_count(1);
        assert_eq!(pick(&known, &[(1, LOCAL, false)]), Pick::Take(0), "it has just been asked");
    }

    #[test]
    fn a_nearer_instance_is_asked_for_now_and_then() {
        let mut known = KnownInstances::new(3, 1);
        let far = [(0, ModeKind::Local, true)];
        assert_eq!(pick(&known, &far), Pick::Take(0), "it has just been asked");
        known.age();
        assert_eq!(pick(&known, &far), Pick::AskFirst { fallback: 0, nearer: true });
        assert_eq!(pick(&known, &[(0, ModeKind::Local, false)]), Pick::Take(0));
        known.set_none_nearer();
        assert_eq!(pick(&known, &far), Pick::Take(0));
    }
}
