//! What the status of a Workflow says about what the cluster has: conditions, reasons, remedies.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use cwasi_operator::conditions::{Refused, Trouble, View, of_faults, of_plan};
use cwasi_operator::objects::Facilities;
use cwasi_operator::observe::Observed;
use cwasi_operator::plan::Plan;
use cwasi_operator::resource::{Workflow, WorkflowStatus};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const FILE: &str = r#"
apiVersion: cwasi.dev/v1alpha1
kind: Workflow
metadata: {name: hello}
spec:
  functions:
    greeter: {image: "localhost/hello:1", role: secondary, http: 8080}
    hello: {image: "localhost/hello:1"}
"#;

fn plan() -> Plan {
    let workflow: Workflow = serde_saphyr::from_str(FILE).unwrap();
    Plan::read(&workflow).unwrap()
}

fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

/// A Deployment of the greeter with a status, and hello's Job.
fn observed(deployment: &Value, job: &Value, pods: &[Value]) -> Observed {
    let revision = plan().functions[1].revision.clone();
    Observed {
        deployments: vec![object(json!({
            "metadata": { "name": "hello-greeter", "generation": 2 },
            "spec": { "replicas": 1, "selector": {}, "template": {} },
            "status": deployment,
        }))],
        jobs: vec![object(json!({
            "metadata": { "name": format!("hello-hello-{revision}") },
            "status": job,
        }))],
        pods: pods.iter().map(|pod| object(pod.clone())).collect(),
        ..Observed::default()
    }
}

fn running() -> Value {
    json!({ "observedGeneration": 2, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1 })
}

fn status(observed: &Observed) -> WorkflowStatus {
    of_plan(&plan(), view(observed, Vec::new()), &WorkflowStatus::default(), 7)
}

/// A cluster without KEDA.
fn view(observed: &Observed, refused: Vec<Refused>) -> View<'_> {
    const NONE: Facilities = Facilities { has_keda: false, has_gateway_api: false, scaler: None };
    View { observed, facilities: &NONE, refused }
}

/// Status, reason and message of a condition.
fn condition<'s>(status: &'s WorkflowStatus, kind: &str) -> (&'s str, &'s str, &'s str) {
    let found = status.conditions.iter().find(|it| it.type_ == kind).unwrap();
    assert_eq!(found.observed_generation, Some(7));
    (&found.status, &found.reason, &found.message)
}

fn pod(status: &Value) -> Value {
    json!({
        "metadata": {
            "name": "hello-greeter-x",
            "labels": { "cwasi.dev/workflow": "hello", "cwasi.dev/function": "greeter" },
        },
        "status": status,
    })
}

#[test]
fn all_functions_are_ready() {
    let pods = [pod(&json!({ "containerStatuses": [{
        "name": "greeter", "ready": true, "restartCount": 0, "image": "localhost/hello:1",
        "imageID": "localhost/hello@sha256:4f53",
    }] }))];
    let status = status(&observed(&running(), &json!({ "succeeded": 1 }), &pods));
    assert_eq!(status.ready_functions, "2/2");
    assert_eq!(condition(&status, "Ready"), ("True", "AllReady", ""));
    assert_eq!(condition(&status, "Progressing").0, "False");
    assert_eq!(condition(&status, "Degraded").0, "False");
    let greeter = &status.functions[0];
    assert_eq!(greeter.workload, "Deployment/hello-greeter");
    assert_eq!(greeter.endpoint.as_deref(), Some("http://hello-greeter:80"));
    assert_eq!(greeter.image_digest.as_deref(), Some("sha256:4f53"));
}

#[test]
fn what_is_on_its_way_is_no_trouble() {
    // The status is that of the template before.
    let old = json!({ "observedGeneration": 1, "updatedReplicas": 1, "availableReplicas": 1 });
    let starting = json!({ "containerStatuses": [{
        "name": "greeter", "ready": false, "restartCount": 0, "image": "", "imageID": "",
        "state": { "waiting": { "reason": "ContainerCreating" } },
    }] });
    let status = status(&observed(&old, &json!({ "active": 1, "ready": 1 }), &[pod(&starting)]));
    assert_eq!(status.ready_functions, "1/2");
    assert_eq!(condition(&status, "Ready"), ("False", "Waiting", "not ready: greeter (0 of 1)"));
    assert_eq!(condition(&status, "Progressing").0, "True");
    assert_eq!(condition(&status, "Degraded").0, "False");
}

/// The available pod is that of the template before.
#[test]
fn a_pod_of_the_template_before_is_not_ready() {
    let updating = json!({
        "observedGeneration": 2, "replicas": 2, "updatedReplicas": 1, "availableReplicas": 1,
    });
    let status = status(&observed(&updating, &json!({ "succeeded": 1 }), &[]));
    assert_eq!(status.ready_functions, "1/2");
}

#[test]
fn each_trouble_names_the_function_and_the_remedy() {
    let waiting = |reason: &str, message: &str| {
        pod(&json!({ "containerStatuses": [{
            "name": "greeter", "ready": false, "restartCount": 3, "image": "", "imageID": "",
            "state": { "waiting": { "reason": reason, "message": message } },
        }] }))
    };
    let unschedulable = pod(&json!({ "conditions": [{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available",
    }] }));
    let failure = |message: &str| {
        json!({ "observedGeneration": 2, "conditions": [{
            "type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message,
        }] })
    };
    let none = json!({ "observedGeneration": 2 });
    let cases = [
        (
            &none,
            Some(waiting("ImagePullBackOff", "no such image")),
            "ImagePullBackOff",
            "greeter: container greeter of pod hello-greeter-x: no such image; check `image`",
        ),
        (
            &none,
            Some(waiting("CrashLoopBackOff", "back-off 10s")),
            "CrashLoopBackOff",
            "kubectl logs hello-greeter-x -c greeter --previous",
        ),
        (
            &none,
            Some(unschedulable),
            "Unschedulable",
            "nodes with the runtime have the label cwasi/runtime=true",
        ),
        (
            &failure("exceeded quota: small"),
            None,
            "FailedCreate",
            "greeter: exceeded quota: small: raise the namespace's quota",
        ),
        (
            &failure("RuntimeClass \"cwasi\" not found"),
            None,
            "FailedCreate",
            "install the runtime's RuntimeClass",
        ),
    ];
    for (deployment, pod, reason, part) in cases {
        let pods: Vec<_> = pod.into_iter().collect();
        let status = status(&observed(deployment, &json!({ "active": 1 }), &pods));
        let (is_degraded, found, message) = condition(&status, "Degraded");
        assert_eq!((is_degraded, found), ("True", reason), "{message}");
        assert!(message.contains(part), "{part} is missing in: {message}");
        assert_eq!(condition(&status, "Ready").0, "False");
    }
    let failed = json!({ "failed": 7, "conditions": [{
        "type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "too often",
    }] });
    let status = status(&observed(&running(), &failed, &[]));
    let (_, reason, message) = condition(&status, "Degraded");
    assert_eq!(reason, "JobFailed");
    assert!(
        message.starts_with(
            "hello: its Job has failed (too often): see `kubectl logs job/hello-hello-"
        ),
        "{message}"
    );
}

fn refused(object: &str) -> Vec<Refused> {
    let trouble = Trouble::new("Refused", format!("{object}: it is forbidden"));
    vec![Refused { object: object.to_owned(), trouble }]
}

#[test]
fn what_the_api_refuses_is_a_trouble_beside_functions_that_run() {
    let observed = observed(&running(), &json!({ "succeeded": 1 }), &[]);
    let view = view(&observed, refused("Ingress/hello-greeter"));
    let status = of_plan(&plan(), view, &WorkflowStatus::default(), 7);
    assert_eq!(condition(&status, "Ready").0, "True");
    assert_eq!(
        condition(&status, "Degraded"),
        ("True", "Refused", "Ingress/hello-greeter: it is forbidden")
    );
}

/// Its pods run, and have the template before.
#[test]
fn a_function_whose_workload_the_api_refuses_is_not_ready() {
    let observed = observed(&running(), &json!({ "succeeded": 1 }), &[]);
    let view = view(&observed, refused("Deployment/hello-greeter"));
    let status = of_plan(&plan(), view, &WorkflowStatus::default(), 7);
    let message = "Deployment/hello-greeter: it is forbidden";
    assert_eq!(condition(&status, "Ready"), ("False", "Refused", message));
    assert_eq!(status.ready_functions, "1/2");
    assert_eq!(condition(&status, "Progressing").2, "not ready: greeter (0 of 1)");
}

/// Nothing was changed, so what is said about functions stays; conditions keep the time since which they hold.
#[test]
fn a_wrong_spec_keeps_what_runs() {
    let before = status(&observed(&running(), &json!({ "succeeded": 1 }), &[]));
    let faults = ["spec.functions.hello.module is a file of your machine".to_owned()];
    let after = of_faults(&faults, &before, 7);
    assert_eq!(condition(&after, "Ready"), ("False", "Invalid", faults[0].as_str()));
    assert_eq!(condition(&after, "Progressing"), ("False", "Invalid", "nothing was changed"));
    assert_eq!(after.functions, before.functions);
    let again = of_faults(&faults, &after, 7);
    assert_eq!(again, after);
}

#[test]
fn a_service_that_does_not_run_is_named_with_the_remedy() {
    let file =
        FILE.replace("spec:\n", "spec:\n  services: {cache: {image: \"redis:7\", port: 6379}}\n");
    let file = file.replace(
        "hello: {image: \"localhost/hello:1\"}",
        "hello: {image: \"localhost/hello:1\", uses: [cache]}",
    );
    let plan = Plan::read(&serde_saphyr::from_str(&file).unwrap()).unwrap();
    let pod = json!({
        "metadata": {
            "name": "hello-cache-x",
            "labels": { "cwasi.dev/workflow": "hello", "cwasi.dev/service": "cache" },
        },
        "status": { "containerStatuses": [{
            "name": "cache", "ready": false, "restartCount": 0, "image": "redis:7", "imageID": "",
            "state": { "waiting": { "reason": "ImagePullBackOff", "message": "not found" } },
        }] },
    });
    let observed = observed(&running(), &json!({ "succeeded": 1 }), &[pod]);
    let status = of_plan(&plan, view(&observed, Vec::new()), &WorkflowStatus::default(), 7);
    let message = "service cache: container cache of pod hello-cache-x: not found; check `image`, and \
                   podTemplate.spec.imagePullSecrets";
    assert_eq!(condition(&status, "Degraded"), ("True", "ImagePullBackOff", message));
    assert_eq!(condition(&status, "Progressing").2, "not ready: hello (0 of 1), cache (0 of 1)");
    assert_eq!(status.services[0].endpoint.as_deref(), Some("hello-cache:6379"));
}

/// The new pod waits for what the old one has: a port of the node.
#[test]
fn a_pod_that_waits_for_the_end_of_another_one_is_no_trouble() {
    let waiting = json!({ "conditions": [{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no free ports",
    }] });
    let pods = |ends: Value| {
        let mut old = pod(&json!({}));
        old["metadata"]["deletionTimestamp"] = ends;
        status(&observed(&json!({}), &json!({ "succeeded": 1 }), &[old, pod(&waiting)]))
    };
    let while_it_ends = pods(json!("2026-01-01T00:00:00Z"));
    assert_eq!(condition(&while_it_ends, "Degraded").0, "False");
    assert_eq!(condition(&while_it_ends, "Ready").1, "Waiting");
    assert_eq!(condition(&pods(Value::Null), "Degraded").1, "Unschedulable");
}

const ZERO: &str = r#"
apiVersion: cwasi.dev/v1alpha1
kind: Workflow
metadata: {name: zero}
spec:
  functions:
    quiet: {image: "i:1", role: secondary, scale: {min: 0, max: 3}}
    web: {image: "i:1", role: secondary, http: 8080, scale: {min: 0, max: 3}}
    both: {image: "i:1", role: secondary, http: "8080, gateway", scale: {min: 0, max: 3}}
"#;

/// The condition with a ScaledObject of `quiet`, whose status is this.
fn scales_to_zero(scaled: &Value) -> (String, String, String) {
    let workflow: Workflow = serde_saphyr::from_str(ZERO).unwrap();
    let plan = Plan::read(&workflow).unwrap();
    let of = |name: &str, status: &Value| {
        object(json!({ "metadata": { "name": name }, "status": status }))
    };
    let new = json!({});
    let scaled_objects =
        vec![of("zero-quiet", scaled), of("zero-web", &new), of("zero-both", &new)];
    let observed = Observed { scaled_objects, ..Observed::default() };
    let facilities = Facilities {
        has_keda: true,
        scaler: Some("scaler:9091".to_owned()),
        ..Facilities::default()
    };
    let view = View { observed: &observed, facilities: &facilities, refused: Vec::new() };
    let status = of_plan(&plan, view, &WorkflowStatus::default(), 7);
    let (value, reason, message) = condition(&status, "ScalesToZero");
    (value.to_owned(), reason.to_owned(), message.to_owned())
}

#[test]
fn what_keda_says_of_a_scaled_object_is_a_condition() {
    let ready = |value: &str, reason: &str, message: &str| {
        json!({ "conditions": [
            { "type": "Active", "status": "Unknown" },
            { "type": "Ready", "status": value, "reason": reason, "message": message },
        ] })
    };
    for status in [json!({}), ready("True", "ScaledObjectReady", "is ready")] {
        let (value, reason, message) = scales_to_zero(&status);
        assert_eq!((value.as_str(), reason.as_str()), ("True", "Keda"), "{message}");
        // Only the port is no way to a function without a pod.
        assert!(
            message.starts_with("web: port 8080 is not reached while it has no pod"),
            "{message}"
        );
        assert!(!message.contains("both: ") && !message.contains("quiet: "), "{message}");
    }
    let (value, reason, message) =
        scales_to_zero(&ready("False", "ScaledObjectCheckFailed", "the target has an HPA"));
    assert_eq!((value.as_str(), reason.as_str()), ("False", "ScaledObjectCheckFailed"));
    assert!(
        message.starts_with(
            "quiet: KEDA does not scale ScaledObject zero-quiet: the target has an HPA; see `kubectl"
        ),
        "{message}"
    );
    let (value, reason, message) =
        scales_to_zero(&ready("False", "TriggerError", "triggers do not work"));
    assert_eq!((value.as_str(), reason.as_str()), ("False", "TriggerError"));
    assert!(
        message.contains(
            "until KEDA reaches the operator's scaler (scaler:9091), and the operator Redis"
        ),
        "{message}"
    );
}

/// No controller serves the Gateway, or there is none.
#[test]
fn a_route_without_an_answer_is_a_trouble_after_a_while() {
    let workflow: Workflow = serde_saphyr::from_str(
        &FILE.replace("http: 8080", "http: 8080, ingress: {gateway: public}"),
    )
    .unwrap();
    let plan = Plan::read(&workflow).unwrap();
    let reason = |created: String, status: Value| {
        let mut observed = observed(&running(), &json!({ "succeeded": 1 }), &[]);
        let metadata = json!({ "name": "hello-greeter", "creationTimestamp": created });
        observed.http_routes = vec![object(json!({ "metadata": metadata, "status": status }))];
        let facilities = Facilities { has_gateway_api: true, ..Facilities::default() };
        let view = View { observed: &observed, facilities: &facilities, refused: Vec::new() };
        let status = of_plan(&plan, view, &WorkflowStatus::default(), 7);
        condition(&status, "Degraded").1.to_owned()
    };
    let now = k8s_openapi::jiff::Timestamp::now().to_string();
    let before = "2026-01-01T00:00:00Z".to_owned();
    assert_eq!(reason(now, Value::Null), "AsExpected");
    assert_eq!(reason(before.clone(), json!({ "parents": [] })), "NoRoute");
    let accepted =
        json!({ "parents": [{ "conditions": [{ "type": "Accepted", "status": "True" }] }] });
    assert_eq!(reason(before, accepted), "AsExpected");
}
