//! Addresses and shims that did not answer: left alone for a while, so that calls take another path. Each decision gets
//! the time.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::{PeerError, dial, unanswered};

/// How long an address that does not answer is left alone.
pub(super) const ADDRESS_AVOIDED: Duration = Duration::from_secs(10);
/// How long it is remembered beyond that, so that the log says once that it does not answer.
const REMEMBERED_FOR: Duration = Duration::from_secs(600);

/// Those that are left alone, by their names; clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Avoided(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    failures: HashMap<String, Failure>,
    /// Addresses that are being probed.
    probed: HashSet<String>,
}

#[derive(Debug)]
struct Failure {
    until: Instant,
    error: PeerError,
}

impl Avoided {
    fn state(&self) -> MutexGuard<'_, State> {
        // Single insertions and removals: a panic elsewhere leaves it consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why one of these is left alone now, if one is.
    pub(super) fn reason(&self, names: &[String], now: Instant) -> Option<PeerError> {
        let state = self.state();
        let found = names.iter().filter_map(|it| state.failures.get(it));
        found.filter(|it| it.until > now).map(|it| it.error.clone()).next()
    }

    /// Leaves one alone until then.
    pub(super) fn add(&self, whom: &str, error: &PeerError, until: Instant) {
        let failure = Failure { until, error: error.clone() };
        let before = self.state().failures.insert(whom.to_owned(), failure);
        if before.is_none() {
            tracing::warn!(%error, "no direct connection; calls go over Redis if they can");
        }
    }

    /// They answer again; false if that is nothing new.
    pub(super) fn remove(&self, names: &[String]) -> bool {
        let mut state = self.state();
        names.iter().filter(|it| state.failures.remove(*it).is_some()).count() > 0
    }

    /// Forgets those that were not mentioned for long.
    pub(super) fn sweep(&self, now: Instant) {
        self.state().failures.retain(|_whom, failure| failure.until + REMEMBERED_FOR > now);
    }

    /// Finds out whether an address answers, for a call whose deadline came before that was known. Later calls with such
    /// deadlines take another path then.
    pub(super) fn probe(&self, address: &str) {
        if !self.state().probed.insert(address.to_owned()) {
            return;
        }
        let (avoided, address) = (self.clone(), address.to_owned());
        tokio::spawn(async move {
            if let Err(error) = dial(&address).await {
                let until = Instant::now() + ADDRESS_AVOIDED;
                avoided.add(&address, &unanswered(&address, &error), until);
            }
            avoided.state().probed.remove(&address);
        });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Each is left alone until its time or its answer, whatever is swept.
        #[test]
        fn each_is_left_alone_for_its_time(
            steps in prop::collection::vec((0..3_u8, 0..2_usize, 0..15_u64), 0..60),
        ) {
            let (avoided, mut now) = (Avoided::default(), Instant::now());
            let names = ["a".to_owned(), "b".to_owned()];
            let mut until = [None; 2];
            for (choice, whom, seconds) in steps {
                now += Duration::from_secs(seconds);
                let name = &names[whom];
                match choice {
                    0 => {
                        let error = PeerError::Busy { address: name.clone() };
                        avoided.add(name, &error, now + ADDRESS_AVOIDED);
                        until[whom] = Some(now + ADDRESS_AVOIDED);
                    }
                    1 => {
                        avoided.remove(std::slice::from_ref(name));
                        until[whom] = None;
                    }
                    _ => avoided.sweep(now),
                }
                for (name, until) in names.iter().zip(until) {
                    let reason = avoided.reason(std::slice::from_ref(name), now);
                    prop_assert_eq!(reason.is_some(), until.is_some_and(|until| until > now));
                }
            }
        }
    }
}
