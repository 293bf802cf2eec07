//! Connections to one shim that have no call, and which of them the next call gets. Each decision gets the time.

use std::time::Duration;

use tokio::time::Instant;

use super::{Made, Pair, USED_FOR};

/// Most of them.
const IDLE_MAX: usize = 64;
/// How long one is kept without a call. Shims close theirs later ([`super::super::port`]'s users).
const IDLE_FOR: Duration = Duration::from_secs(30);

#[derive(Debug)]
struct Connection<S> {
    stream: S,
    since: Instant,
    made: Made,
    /// Whose the last call was.
    pair: Pair,
}

impl<S> Connection<S> {
    /// True if the next call may use it, on a node whose proof has this number.
    fn is_usable(&self, number: u64, now: Instant, is_silent: impl Fn(&S) -> bool) -> bool {
        let is_new = self.made.with == number && now < self.made.at + USED_FOR;
        is_new && now < self.since + IDLE_FOR && is_silent(&self.stream)
    }
}

/// The connections, in the order of their last calls' ends.
#[derive(Debug)]
pub(super) struct Idle<S>(Vec<Connection<S>>);

impl<S> Default for Idle<S> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<S> Idle<S> {
    /// The connection of the pair's last call. Otherwise the one that was not used for longest: pairs that call now
    /// keep theirs.
    pub(super) fn take(
        &mut self,
        pair: &Pair,
        number: u64,
        now: Instant,
        is_silent: impl Fn(&S) -> bool,
    ) -> Option<(S, Made)> {
        while !self.0.is_empty() {
            let own = self.0.iter().rposition(|connection| connection.pair == *pair);
            let connection = self.0.remove(own.unwrap_or(0));
            if connection.is_usable(number, now, &is_silent) {
                return Some((connection.stream, connection.made));
            }
        }
        None
    }

    /// Keeps a connection, if there is room for it.
    pub(super) fn add(&mut self, stream: S, made: Made, pair: Pair, now: Instant) {
        if self.0.len() < IDLE_MAX {
            self.0.push(Connection { stream, since: now, made, pair });
        }
    }

    /// Closes those that no call may use.
    pub(super) fn sweep(&mut self, number: u64, now: Instant, is_silent: impl Fn(&S) -> bool) {
        self.0.retain(|connection| connection.is_usable(number, now, &is_silent));
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pair(caller: u8) -> Pair {
        Pair { caller: caller.to_string(), callee: "callee".to_owned() }
    }

    /// A connection, as the test remembers it.
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Known {
        name: usize,
        caller: u8,
        since: Instant,
        at: Instant,
        with: u64,
    }

    /// Calls of some pairs in simulated time.
    struct World {
        now: Instant,
        /// Of the node's proof.
        number: u64,
        idle: Idle<usize>,
        known: Vec<Known>,
        /// Names of those that the other side has closed.
        closed: Vec<usize>,
        made: usize,
    }

    impl World {
        fn usable(&self) -> impl DoubleEndedIterator<Item = &Known> {
            self.known.iter().filter(|it| {
                let is_kept = self.now - it.since < IDLE_FOR && self.now - it.at < USED_FOR;
                is_kept && it.with == self.number && !self.closed.contains(&it.name)
            })
        }

        /// A call: over the expected connection, or over a new one.
        fn call(&mut self, caller: u8) -> Result<(), TestCaseError> {
            let own = self.usable().rfind(|it| it.caller == caller);
            let expected = own.or_else(|| self.usable().next()).copied();
            let (number, now, closed) = (self.number, self.now, &self.closed);
            let taken = self.idle.take(&pair(caller), number, now, |name| !closed.contains(name));
            prop_assert_eq!(taken.map(|it| it.0), expected.map(|it| it.name));
            let (name, made) = taken.unwrap_or_else(|| {
                self.made += 1;
                (self.made, Made { at: now, with: number })
            });
            self.known.retain(|it| it.name != name);
            self.known.push(Known { name, caller, since: now, at: made.at, with: made.with });
            self.idle.add(name, made, pair(caller), now);
            Ok(())
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn a_call_gets_its_pairs_connection_or_the_oldest_that_is_usable(
            steps in prop::collection::vec((0..12_u8, 0..4_u8, 0..20_u64), 0..60),
        ) {
            let mut world = World {
                now: Instant::now(),
                number: 0,
                idle: Idle::default(),
                known: Vec::new(),
                closed: Vec::new(),
                made: 0,
            };
            for (choice, caller, seconds) in steps {
                world.now += Duration::from_secs(seconds);
                match choice {
                    0 => world.number += 1,
                    1 => world.closed.push(usize::from(caller)),
                    2 => {
                        let (number, closed) = (world.number, &world.closed);
                        world.idle.sweep(number, world.now, |name| !closed.contains(name));
                        prop_assert_eq!(world.idle.0.len(), world.usable().count());
                    }
                    _ => world.call(caller)?,
                }
            }
        }
    }

    #[test]
    fn connections_are_bounded() {
        let (mut idle, now) = (Idle::default(), Instant::now());
        for name in 0..2 * IDLE_MAX {
            idle.add(name, Made { at: now, with: 0 }, pair(0), now);
        }
        assert_eq!(idle.0.len(), IDLE_MAX);
    }
}
