//! A leader that cannot renew its Lease ends before another process begins.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::time::Duration;

use cwasi_fake_api::FakeApi;
use cwasi_operator::leader::expired;
use hyper::StatusCode;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/n/leases/l";
const VALID: Duration = Duration::from_secs(4);
/// A try to renew it.
const STEP: Duration = Duration::from_millis(200);
/// More than for which it is valid.
const STEPS: u32 = 25;

fn renew(api: &FakeApi, holder: &str) {
    let now = format!("{:.6}", Timestamp::now());
    let spec = json!({ "holderIdentity": holder, "renewTime": now });
    api.put(LEASE, json!({ "metadata": { "name": "l", "namespace": "n" }, "spec": spec }));
}

/// A leader that has renewed its Lease for some time.
async fn leading(api: &FakeApi) -> JoinHandle<()> {
    renew(api, "me");
    let client = api.client();
    let leader = tokio::spawn(async move { expired(client, "l", "me", VALID).await });
    for _ in 0..STEPS {
        sleep(STEP).await;
        renew(api, "me");
    }
    assert!(!leader.is_finished());
    leader
}

async fn ends(leader: JoinHandle<()>) {
    timeout(10 * VALID, leader).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_lease_that_is_not_renewed_ends() {
    let api = FakeApi::default();
    ends(leading(&api).await).await;
}

#[tokio::test]
async fn a_lease_of_which_the_api_says_nothing_ends() {
    let api = FakeApi::default();
    let leader = leading(&api).await;
    api.deny(LEASE, StatusCode::SERVICE_UNAVAILABLE, "no time");
    ends(leader).await;
}

#[tokio::test]
async fn a_lease_that_another_process_has_ends() {
    let api = FakeApi::default();
    let leader = leading(&api).await;
    let renewing = async {
        loop {
            renew(&api, "other");
            sleep(STEP).await;
        }
    };
    tokio::select! {
        () = ends(leader) => {}
        () = renewing => {}
    }
}
