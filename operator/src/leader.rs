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
    let (mut renewed, mut last) = (Instant::now(), None);
    while renewed.elapsed() < valid {
        let until = (Instant::now() + valid / ANSWER_SHARE).min(renewed + valid);
        match timeout_at(until, leases.get(lease)).await {
            Ok(Ok(found)) => {
                let spec = found.spec.unwrap_or_default();
                if spec.holder_identity.as_deref() != Some(identity) {
                    return;
                }
                // This process wrote it, by the same clock.
                if let Some(at) = spec.renew_time.map(|it| it.0).filter(|at| last != Some(*at)) {
                    let age = Timestamp::now().duration_since(at).unsigned_abs();
                    renewed = Instant::now().checked_sub(age).unwrap_or(renewed);
                    last = Some(at);
                }
            }
            Ok(Err(error)) => debug!(%error, "the Lease cannot be read"),
            Err(_late) => debug!("the API does not answer about the Lease"),
        }
        sleep(valid / LOOKS).await;
    }
}
