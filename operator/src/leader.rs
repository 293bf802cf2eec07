//! Whether this process still has its Lease. What keeps the Lease (`kube-lease-manager`) tells of a loss only when it
//! reads that somebody else has it. A process that cannot renew it, or not reach the API at all, has to end before.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use tokio::time::{Instant, sleep, timeout_at};
use tracing::debug;

/// How often the Lease is read in the time for which it is valid.
const LOOKS: u32 = 15;

/// Ends when `identity` has not renewed the Lease for `valid`. It begins when `identity` has just got it.
pub async fn expired(client: Client, lease: &str, identity: &str, valid: Duration) {
    let leases: Api<Lease> = Api::default_namespaced(client);
    let pause = valid / LOOKS;
    // `since`: before the last renewal that was seen; `looked`: before the last answer.
    let mut since = Instant::now();
    let mut looked = since;
    let mut last = None;
    while since.elapsed() < valid {
        let now = Instant::now();
        let until = (now + 2 * pause).min(since + valid);
        match timeout_at(until, leases.get(lease)).await {
            Ok(Ok(found)) => {
                let spec = found.spec.unwrap_or_default();
                let is_own = spec.holder_identity.as_deref() == Some(identity);
                if is_own && spec.renew_time != last {
                    since = looked;
                    last = spec.renew_time;
                }
                looked = now;
            }
            Ok(Err(error)) => debug!(%error, "the Lease cannot be read"),
            Err(_late) => debug!("the API does not answer about the Lease"),
        }
        sleep(pause).await;
    }
}
