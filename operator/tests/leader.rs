//! A leader that cannot renew its Lease ends before another process begins.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::time::Duration;

use cwasi_fake_api::FakeApi;
use cwasi_operator::leader::expired;
use hyper::StatusCode;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::timeout;

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/n/leases/l";
const PATIENCE: Duration = Duration::from_secs(60);
/// Longer than a test takes: only what the API says ends a leader.
const LONG: Duration = Duration::from_secs(3600);

fn renew(api: &FakeApi, holder: &str) {
    let now = format!("{:.6}", Timestamp::now());
    let spec = json!({ "holderIdentity": holder, "renewTime": now });
    api.put(LEASE, json!({ "metadata": { "name": "l", "namespace": "n" }, "spec": spec }));
}

/// A process that holds the Lease.
fn leading(api: &FakeApi, valid: Duration) -> JoinHandle<()> {
    renew(api, "me");
    let client = api.client();
    tokio::spawn(async move { expired(client, "l", "me", valid).await })
}

async fn ends(leader: JoinHandle<()>) {
    timeout(PATIENCE, leader).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_lease_that_is_not_renewed_ends() {
    ends(leading(&FakeApi::default(), Duration::from_secs(1))).await;
}

#[tokio::test]
async fn a_lease_of_which_the_api_says_nothing_ends() {
    let api = FakeApi::default();
    let leader = leading(&api, Duration::from_secs(1));
    api.deny(LEASE, StatusCode::SERVICE_UNAVAILABLE, "no time");
    ends(leader).await;
}

#[tokio::test]
async fn a_lease_that_another_process_has_ends() {
    let api = FakeApi::default();
    renew(&api, "other");
    let client = api.client();
    ends(tokio::spawn(async move { expired(client, "l", "me", LONG).await })).await;
}
