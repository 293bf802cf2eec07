//! One process of several works: the one that has the Lease.
//!
//! What keeps the Lease (`kube-lease-manager`) tells of a loss only when it reads that somebody else has it. A process that
//! cannot renew it, or not reach the API at all, has to end before: [`expired`].

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client};
use kube_lease_manager::LeaseManager;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout_at};
use tracing::{debug, warn};

/// After an error of the API.
const RETRY: Duration = Duration::from_secs(1);
/// How often the Lease is read in the time for which it is valid, and the share of it that an answer may take.
const LOOKS: u32 = 10;
const ANSWER_SHARE: u32 = 3;

/// Takes and renews the Lease until the receiver is dropped, and then gives it back. The receiver says whether this
/// process has it. (The manager's own `watch` waits longer after each error of its life, at last longer than the Lease
/// is valid.)
#[must_use]
pub fn keep(manager: LeaseManager) -> (watch::Receiver<bool>, JoinHandle<()>) {
    let (sender, receiver) = watch::channel(false);
    let keeping = async move {
        loop {
            tokio::select! {
                () = sender.closed() => break,
                changed = manager.changed() => match changed {
                    Ok(leads) => {
                        sender.send_replace(leads);
                    }
                    Err(error) => {
                        warn!(%error, "the Lease cannot be taken or renewed; trying again");
                        sleep(RETRY).await;
                    }
                },
            }
        }
        if let Err(error) = manager.release().await {
            debug!(%error, "the Lease is not given back, and ends by itself");
        }
    };
    (receiver, tokio::spawn(keeping))
}

/// Ends when the Lease is not `identity`'s, or was not renewed for `valid`. It begins when `identity` has it.
pub async fn expired(client: Client, lease: &str, identity: &str, valid: Duration) {
    let leases: Api<Lease> = Api::default_namespaced(client);
    let mut held = HeldLease::new(valid, Instant::now());
    while !held.has_expired(Instant::now()) {
        match timeout_at(held.answer_by(Instant::now()), leases.get(lease)).await {
            Ok(Ok(found)) => {
                let spec = found.spec.unwrap_or_default();
                if spec.holder_identity.as_deref() != Some(identity) {
                    return;
                }
                if let Some(at) = spec.renew_time {
                    held.read(at.0, Timestamp::now(), Instant::now());
                }
            }
            Ok(Err(error)) => debug!(%error, "the Lease cannot be read"),
            Err(_late) => debug!("the API does not answer about the Lease"),
        }
        sleep(valid / LOOKS).await;
    }
}

/// When this process renewed its Lease last, as far as the API has told. No I/O and no clock.
#[derive(Debug)]
struct HeldLease {
    valid: Duration,
    renewed: Instant,
    /// The last renewal that was read, by the clock that wrote it.
    last: Option<Timestamp>,
}

impl HeldLease {
    /// A Lease that is held since `now`.
    const fn new(valid: Duration, now: Instant) -> Self {
        Self { valid, renewed: now, last: None }
    }

    /// Records a renewal at `at`. `time` and `now` are this moment: this process renewed the Lease by the same clock.
    fn read(&mut self, at: Timestamp, time: Timestamp, now: Instant) {
        if self.last != Some(at) {
            let age = time.duration_since(at).unsigned_abs();
            self.renewed = now.checked_sub(age).unwrap_or(self.renewed);
            self.last = Some(at);
        }
    }

    /// When a question that is asked `now` has to be answered.
    fn answer_by(&self, now: Instant) -> Instant {
        (now + self.valid / ANSWER_SHARE).min(self.renewed + self.valid)
    }

    fn has_expired(&self, now: Instant) -> bool {
        self.renewed + self.valid <= now
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const VALID: Duration = Duration::from_secs(15);

    /// A process that holds a Lease, and the clocks.
    struct World {
        held: HeldLease,
        begin: Instant,
        /// Since the begin.
        now: Duration,
        /// What the API has, and what the process has read of it.
        renewed: Duration,
        read: Duration,
    }

    impl World {
        fn new() -> Self {
            let (begin, zero) = (Instant::now(), Duration::ZERO);
            let held = HeldLease::new(VALID, begin);
            Self { held, begin, now: zero, renewed: zero, read: zero }
        }

        /// A moment on the wall's clock.
        fn time(at: Duration) -> Timestamp {
            Timestamp::UNIX_EPOCH + at
        }

        fn step(&mut self, choice: u8, pause: Duration) {
            self.now += pause;
            match choice % 3 {
                0 => self.renewed = self.now,
                1 => {
                    let now = self.begin + self.now;
                    self.held.read(Self::time(self.renewed), Self::time(self.now), now);
                    self.read = self.renewed;
                }
                // The API is away.
                _ => {}
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5000))]

        /// It ends neither earlier nor later than `VALID` after the last renewal that it has read.
        #[test]
        fn a_lease_lasts_from_the_last_renewal_that_was_read(
            steps in prop::collection::vec((any::<u8>(), 0..4000_u64), 0..40),
        ) {
            let mut world = World::new();
            for (choice, pause) in steps {
                world.step(choice, Duration::from_millis(pause));
                let (now, end) = (world.begin + world.now, world.begin + world.read + VALID);
                prop_assert_eq!(world.held.has_expired(now), end <= now);
                prop_assert!(world.held.answer_by(now) <= end);
            }
        }
    }
}
