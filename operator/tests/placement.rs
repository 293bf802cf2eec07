//! Where functions should be, by the advice in the status and by what their workloads have: advice alone changes no
//! template.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use cwasi_operator::objects;
use cwasi_operator::observe::Observed;
use cwasi_operator::placement::decide;
use cwasi_operator::plan::Plan;
use cwasi_operator::resource::{EdgeStatus, Workflow};
use k8s_openapi::api::apps::v1::Deployment;
use serde_json::{Value, json};

/// A plan of four functions; `level` is a field of `front`.
fn plan(placement: &Value, level: u32) -> Plan {
    let workflow: Workflow = serde_json::from_value(json!({
        "apiVersion": "cwasi.dev/v1alpha1",
        "kind": "Workflow",
        "metadata": { "name": "shop" },
        "spec": { "placement": placement, "functions": {
            "front": { "image": "i:1", "role": "secondary", "env": { "LEVEL": level } },
            "prices": { "image": "i:1", "role": "secondary" },
            "stock": { "image": "i:1", "role": "secondary" },
            "report": { "image": "i:1", "schedule": "@hourly" },
        } },
    }))
    .unwrap();
    Plan::read(&workflow).unwrap()
}

fn edge(caller: &str, callee: &str) -> EdgeStatus {
    let (caller, callee) = (caller.to_owned(), callee.to_owned());
    EdgeStatus { caller, callee, move_advised: true, ..EdgeStatus::default() }
}

/// The functions that `front` is to be near to.
fn near(plan: &Plan) -> Vec<&str> {
    let front = plan.functions.iter().find(|it| it.function.name == "front").unwrap();
    front.near.iter().map(String::as_str).collect()
}

/// The objects of a plan, as a cluster that has applied them.
fn applied(plan: &Plan) -> (Vec<Value>, Observed) {
    let bodies: Vec<Value> = objects::build(plan, &objects::Facilities::default())
        .into_iter()
        .map(|it| it.body)
        .collect();
    let deployments = bodies.iter().filter(|it| it["kind"] == "Deployment");
    let deployments =
        deployments.map(|it| serde_json::from_value::<Deployment>(it.clone()).unwrap());
    (bodies.clone(), Observed { deployments: deployments.collect(), ..Observed::default() })
}

#[test]
fn advice_alone_changes_no_template() {
    let moving = json!({ "move": true });
    let mut first = plan(&moving, 1);
    decide(&mut first, &Observed::default(), &[]);
    let (before, observed) = applied(&first);
    let mut advised = plan(&moving, 1);
    decide(&mut advised, &observed, &[edge("front", "prices")]);
    assert_eq!(applied(&advised).0, before);
}

#[test]
fn a_rollout_follows_the_advice_of_its_time_and_stays() {
    let moving = json!({ "move": true });
    let mut first = plan(&moving, 1);
    decide(&mut first, &Observed::default(), &[]);
    let (_, observed) = applied(&first);
    let mut changed = plan(&moving, 2);
    decide(&mut changed, &observed, &[edge("front:utils", "prices")]);
    assert_eq!(near(&changed), ["prices"]);
    let prices = &changed.functions.iter().find(|it| it.function.name == "prices").unwrap();
    assert!(prices.near.is_empty(), "prices has not changed: {prices:?}");
    // The calls are local now, so that the advice ends: a later rollout keeps what follows from it, and adds to it.
    let (before, observed) = applied(&changed);
    let mut same = plan(&moving, 2);
    decide(&mut same, &observed, &[]);
    assert_eq!(applied(&same).0, before);
    let mut next = plan(&moving, 3);
    decide(&mut next, &observed, &[edge("stock", "front"), edge("gateway", "front")]);
    assert_eq!(near(&next), ["prices", "stock"]);
}

#[test]
fn a_restart_by_kubectl_is_a_rollout() {
    let moving = json!({ "move": true });
    let mut first = plan(&moving, 1);
    decide(&mut first, &Observed::default(), &[]);
    let (_, mut observed) = applied(&first);
    let template = &mut observed.deployments[0].spec.as_mut().unwrap().template;
    let metadata = template.metadata.as_mut().unwrap();
    let annotations = metadata.annotations.get_or_insert_default();
    let key = "kubectl.kubernetes.io/restartedAt";
    annotations.insert(key.to_owned(), "2026-01-01T00:00:00Z".to_owned());
    let mut restarted = plan(&moving, 1);
    decide(&mut restarted, &observed, &[edge("front", "prices")]);
    assert_eq!(near(&restarted), ["prices"]);
    // It happens once for each restart.
    let (_, mut again) = applied(&restarted);
    again.deployments[0].spec = observed.deployments[0].spec.clone();
    let mut same = plan(&moving, 1);
    decide(&mut same, &again, &[edge("front", "stock")]);
    assert_eq!(near(&same), ["prices"]);
}

#[test]
fn without_the_users_leave_nothing_moves() {
    for placement in [json!({}), json!({ "policy": "node" }), json!({ "policy": "spread" })] {
        let mut plan = plan(&placement, 1);
        decide(&mut plan, &Observed::default(), &[edge("front", "prices")]);
        assert_eq!(near(&plan), [""; 0], "{placement}");
    }
    // Leave that was taken back ends what followed from it with the next rollout.
    let mut moved = plan(&json!({ "move": true }), 1);
    decide(&mut moved, &Observed::default(), &[edge("front", "prices")]);
    let (before, observed) = applied(&moved);
    let mut same = plan(&json!({}), 1);
    decide(&mut same, &observed, &[]);
    assert_eq!(applied(&same).0, before);
    let mut changed = plan(&json!({}), 2);
    decide(&mut changed, &observed, &[edge("front", "prices")]);
    assert_eq!(near(&changed), [""; 0]);
}

/// What an older version of the operator made has no record.
#[test]
fn a_workload_without_a_record_is_as_if_it_was_made_now() {
    let moving = json!({ "move": true });
    let mut first = plan(&moving, 1);
    decide(&mut first, &Observed::default(), &[]);
    let (before, mut observed) = applied(&first);
    for deployment in &mut observed.deployments {
        deployment.metadata.annotations = None;
    }
    let mut upgraded = plan(&moving, 1);
    decide(&mut upgraded, &observed, &[edge("front", "prices")]);
    assert_eq!(applied(&upgraded).0[0]["spec"], before[0]["spec"]);
}

#[test]
fn what_the_file_says_about_an_edge_replaces_the_advice() {
    let mut moved = plan(&json!({ "move": true }), 1);
    decide(&mut moved, &Observed::default(), &[edge("front", "prices"), edge("front", "stock")]);
    let (_, observed) = applied(&moved);
    assert_eq!(near(&moved), ["prices", "stock"]);
    let mut placed = plan(&json!({ "move": true, "edges": { "front->prices": "spread" } }), 1);
    decide(&mut placed, &observed, &[]);
    assert_eq!(near(&placed), ["stock"]);
}
