//! Reconciling against an API server in memory that stores what is applied: what is made, when, and what goes.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

mod replicas;
#[path = "../watching/mod.rs"]
mod watching;

use std::sync::Arc;

use cwasi_fake_api::FakeApi;
use cwasi_operator::cache::Cache;
use cwasi_operator::context::{Context, Written};
use cwasi_operator::endpoints::Metrics;
use cwasi_operator::plan::pod_security::PodSecurity;
use cwasi_operator::reconcile::{ReconcileError, reconcile};
use cwasi_operator::resource::Workflow;
use hyper::StatusCode;
use kube::runtime::controller::Action;
use kube::runtime::events::{Recorder, Reporter};
use serde_json::{Value, json};

use watching::watch;

const WORKFLOW: &str = "/apis/cwasi.dev/v1alpha1/namespaces/n/workflows/hello";
const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/n/deployments/hello-greeter";
const SERVICE: &str = "/api/v1/namespaces/n/services/hello-greeter";

/// A cluster with one Workflow.
struct Cluster {
    api: FakeApi,
    context: Arc<Context>,
}

impl Cluster {
    fn new(functions: Value) -> Self {
        let api = FakeApi::default();
        let client = api.client();
        let reporter = Reporter { controller: "test".to_owned(), instance: None };
        let recorder = Recorder::new(client.clone(), reporter);
        let metrics = Metrics::default();
        let scaler = Some("scaler:9091".to_owned());
        let (cache, written) = (Arc::<Cache>::default(), Written::default());
        let pod_security = PodSecurity::Baseline;
        let context = Context { client, cache, recorder, metrics, scaler, pod_security, written };
        let cluster = Self { api, context: Arc::new(context) };
        cluster.write(functions);
        cluster
    }

    /// Writes the Workflow's functions.
    fn write(&self, functions: Value) {
        self.write_with(functions, json!({}));
    }

    /// Writes the Workflow's functions and services.
    fn write_with(&self, functions: Value, services: Value) {
        let before = self.api.get(WORKFLOW);
        let generation =
            before.as_ref().map_or(1, |it| it["metadata"]["generation"].as_i64().unwrap() + 1);
        self.api.put(WORKFLOW, json!({
            "apiVersion": "cwasi.dev/v1alpha1",
            "kind": "Workflow",
            "metadata": { "name": "hello", "namespace": "n", "uid": "u1", "generation": generation },
            "spec": { "functions": functions, "services": services },
            "status": before.map(|it| it["status"].clone()).unwrap_or(Value::Null),
        }));
    }

    /// Writes the Workflow's annotations.
    fn annotate(&self, annotations: &Value) {
        let mut workflow = self.api.get(WORKFLOW).unwrap();
        workflow["metadata"]["annotations"] = annotations.clone();
        self.api.put(WORKFLOW, workflow);
    }

    /// Reconciles once; returns the requests.
    async fn reconcile(&self) -> Vec<String> {
        watch(&self.context.cache, &self.context.client).await;
        self.api.forget_requests();
        self.try_to_reconcile().await.unwrap();
        self.api.requests()
    }

    async fn try_to_reconcile(&self) -> Result<Action, ReconcileError> {
        let workflow: Workflow = serde_json::from_value(self.api.get(WORKFLOW).unwrap()).unwrap();
        reconcile(Arc::new(workflow), Arc::clone(&self.context)).await
    }

    /// As the controllers of Deployments would.
    fn run_pods(&self) {
        let mut deployment = self.api.get(DEPLOYMENT).unwrap();
        deployment["status"] = json!({ "updatedReplicas": 1, "availableReplicas": 1 });
        self.api.put(DEPLOYMENT, deployment);
    }

    /// Status and reason of a condition.
    fn condition(&self, kind: &str) -> (String, String) {
        let workflow = self.api.get(WORKFLOW).unwrap();
        let conditions = workflow["status"]["conditions"].as_array().unwrap().clone();
        let found = conditions.iter().find(|it| it["type"] == kind).unwrap();
        (found["status"].as_str().unwrap().to_owned(), found["reason"].as_str().unwrap().to_owned())
    }

    fn jobs(&self) -> Vec<String> {
        self.api.below("/apis/batch/v1/namespaces/n/jobs/")
    }
}

fn hello() -> Value {
    json!({
        "greeter": { "image": "i:1", "role": "secondary", "http": 8080 },
        "hello": { "image": "i:1" },
    })
}

#[tokio::test]
async fn a_job_waits_for_the_functions_that_it_may_call() {
    let cluster = Cluster::new(hello());
    cluster.reconcile().await;
    let deployment = cluster.api.get(DEPLOYMENT).unwrap();
    let owner = &deployment["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["uid"], &owner["controller"]), (&json!("u1"), &json!(true)));
    assert!(cluster.api.get(SERVICE).is_some());
    assert_eq!(cluster.jobs(), [""; 0]);
    cluster.run_pods();
    cluster.reconcile().await;
    let jobs = cluster.jobs();
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    // A Job that is there is never applied again, and stays while its callees are away.
    let mut deployment = cluster.api.get(DEPLOYMENT).unwrap();
    deployment["status"] = json!({});
    cluster.api.put(DEPLOYMENT, deployment);
    let requests = cluster.reconcile().await;
    assert_eq!(cluster.jobs(), jobs);
    assert!(!requests.iter().any(|it| it.starts_with("PATCH /apis/batch")), "{requests:?}");
}

#[tokio::test]
async fn a_job_waits_for_services_but_deployments_do_not() {
    const CACHE: &str = "/apis/apps/v1/namespaces/n/deployments/hello-cache";
    const DB: &str = "/apis/apps/v1/namespaces/n/statefulsets/hello-db";
    let cluster = Cluster::new(json!({}));
    let functions = json!({
        "greeter": { "image": "i:1", "role": "secondary", "uses": ["cache"] },
        "hello": { "image": "i:1", "uses": ["db"] },
    });
    let service = json!({ "image": "s:1", "port": 6379 });
    let mut stored = service.clone();
    stored["storage"] = json!({ "path": "/data" });
    cluster
        .write_with(functions.clone(), json!({ "cache": service, "db": stored, "spare": service }));
    cluster.reconcile().await;
    for path in [CACHE, DB, DEPLOYMENT] {
        assert!(cluster.api.get(path).is_some(), "{path}");
    }
    let services = cluster.api.below("/api/v1/namespaces/n/services/");
    assert_eq!(
        services,
        ["cache", "db"].map(|name| format!("/api/v1/namespaces/n/services/hello-{name}"))
    );
    cluster.run_pods();
    cluster.reconcile().await;
    assert_eq!(cluster.jobs(), [""; 0]);
    assert_eq!(cluster.condition("Ready"), ("False".to_owned(), "Waiting".to_owned()));
    let runs = |path: &str, status: Value| {
        let mut object = cluster.api.get(path).unwrap();
        object["status"] = status;
        cluster.api.put(path, object);
    };
    runs(CACHE, json!({ "updatedReplicas": 1, "availableReplicas": 1 }));
    cluster.reconcile().await;
    assert_eq!(cluster.jobs(), [""; 0]);
    let revision = "hello-db-1";
    runs(
        DB,
        json!({ "replicas": 1, "readyReplicas": 1, "currentRevision": revision, "updateRevision": revision }),
    );
    cluster.reconcile().await;
    assert_eq!(cluster.jobs().len(), 1);
    let status = cluster.api.get(WORKFLOW).unwrap()["status"].clone();
    let (cache, db) = (&status["services"][0], &status["services"][1]);
    assert_eq!(
        (&cache["workload"], &cache["readyReplicas"]),
        (&json!("Deployment/hello-cache"), &json!(1))
    );
    assert_eq!(
        (&db["workload"], &db["endpoint"]),
        (&json!("StatefulSet/hello-db"), &json!("hello-db:6379"))
    );
    // Without a user it goes; with storage it is another object.
    let functions =
        json!({ "greeter": { "image": "i:1", "role": "secondary", "uses": ["cache"] } });
    cluster.write_with(functions, json!({ "cache": stored, "db": stored }));
    cluster.reconcile().await;
    assert_eq!(cluster.api.below("/apis/apps/v1/namespaces/n/deployments/"), [DEPLOYMENT]);
    let sets = cluster.api.below("/apis/apps/v1/namespaces/n/statefulsets/");
    assert_eq!(sets, ["/apis/apps/v1/namespaces/n/statefulsets/hello-cache"]);
    let services = cluster.api.below("/api/v1/namespaces/n/services/");
    assert_eq!(services, ["/api/v1/namespaces/n/services/hello-cache"]);
}

#[tokio::test]
async fn what_is_no_longer_wanted_goes_and_nothing_else() {
    let cluster = Cluster::new(hello());
    cluster.reconcile().await;
    cluster.run_pods();
    cluster.reconcile().await;
    // Of another owner, with the same label.
    let other = "/api/v1/namespaces/n/services/other";
    cluster.api.put(
        other,
        json!({
            "metadata": { "name": "other", "labels": { "cwasi.dev/workflow": "hello" } },
        }),
    );
    let first = cluster.jobs();
    cluster.write(json!({
        "greeter": { "image": "i:1", "role": "secondary" },
        "hello": { "image": "i:2" },
    }));
    cluster.reconcile().await;
    assert!(cluster.api.get(SERVICE).is_none(), "a function without a port has no Service");
    assert!(cluster.api.get(DEPLOYMENT).is_some());
    assert!(cluster.api.get(other).is_some());
    let second = cluster.jobs();
    assert_eq!(second.len(), 1);
    assert_ne!(second, first, "a changed function is a new Job");
}

#[tokio::test]
async fn a_name_that_something_else_has_stays_its_own() {
    let cluster = Cluster::new(hello());
    let taken = json!({ "metadata": { "name": "hello-greeter", "uid": "u2" } });
    cluster.api.put(SERVICE, taken.clone());
    cluster.reconcile().await;
    assert_eq!(cluster.api.get(SERVICE), Some(taken));
    assert_eq!(cluster.condition("Degraded"), ("True".to_owned(), "NameTaken".to_owned()));
    assert!(cluster.api.get(DEPLOYMENT).is_some(), "the others are made");
}

#[tokio::test]
async fn a_wrong_spec_changes_nothing_but_the_status() {
    let cluster = Cluster::new(hello());
    cluster.reconcile().await;
    cluster.write(json!({ "greeter": { "module": "greeter.wasm", "role": "secondary" } }));
    let requests = cluster.reconcile().await;
    let writes: Vec<_> = requests.iter().filter(|it| !it.starts_with("GET")).collect();
    assert_eq!(writes[0], &format!("PATCH {WORKFLOW}/status"));
    assert!(writes[1..].iter().all(|it| it.contains("/events")), "{writes:?}");
    assert_eq!(cluster.condition("Ready"), ("False".to_owned(), "Invalid".to_owned()));
}

#[tokio::test]
async fn a_workflow_beyond_the_level_of_pod_security_changes_nothing_but_the_status() {
    let cluster = Cluster::new(hello());
    cluster.reconcile().await;
    let mut functions = hello();
    functions["greeter"]["podTemplate"] = json!({ "spec": { "serviceAccount": "admin" } });
    cluster.write(functions);
    let requests = cluster.reconcile().await;
    let writes: Vec<_> = requests.iter().filter(|it| !it.starts_with("GET")).collect();
    assert_eq!(writes[0], &format!("PATCH {WORKFLOW}/status"));
    assert!(writes[1..].iter().all(|it| it.contains("/events")), "{writes:?}");
    assert_eq!(cluster.condition("Ready"), ("False".to_owned(), "Invalid".to_owned()));
    let status = cluster.api.get(WORKFLOW).unwrap()["status"].to_string();
    let text = "greeter.podTemplate.spec.serviceAccount exceeds the level baseline of Pod Security";
    assert!(status.contains(text), "{status}");
}

#[tokio::test]
async fn an_object_that_the_api_refuses_stops_no_other() {
    let cluster = Cluster::new(hello());
    cluster.api.refuse(SERVICE, "services \"hello-greeter\" is forbidden: exceeded quota");
    cluster.reconcile().await;
    assert_eq!(cluster.condition("Degraded"), ("True".to_owned(), "Refused".to_owned()));
    assert!(cluster.api.get(DEPLOYMENT).is_some());
}

#[tokio::test]
async fn an_api_server_without_time_is_asked_again_and_nothing_is_called_refused() {
    let cluster = Cluster::new(hello());
    cluster.reconcile().await;
    cluster.write(json!({ "greeter": { "image": "i:2", "role": "secondary", "http": 8080 } }));
    cluster.api.deny(DEPLOYMENT, StatusCode::SERVICE_UNAVAILABLE, "leader changed");
    let failed = cluster.try_to_reconcile().await.unwrap_err();
    assert!(matches!(failed, ReconcileError::Api { .. }), "{failed}");
    assert_eq!(cluster.condition("Degraded").0, "False");
}

#[tokio::test]
async fn a_workflow_of_which_nothing_changed_costs_no_request() {
    let cluster = Cluster::new(hello());
    cluster.reconcile().await;
    cluster.run_pods();
    cluster.reconcile().await;
    assert_eq!(cluster.reconcile().await, [""; 0]);
    // The status of a Deployment changes: the Workflow's may, the objects do not.
    let mut deployment = cluster.api.get(DEPLOYMENT).unwrap();
    deployment["status"] = json!({ "replicas": 1, "updatedReplicas": 1 });
    cluster.api.put(DEPLOYMENT, deployment);
    let requests = cluster.reconcile().await;
    assert_eq!(requests, [format!("PATCH {WORKFLOW}/status")]);
    // Another operator, which has the same objects to read.
    let other = Cluster { api: cluster.api.clone(), context: Cluster::new(json!({})).context };
    let context = Arc::into_inner(other.context).unwrap();
    let client = cluster.api.client();
    let other = Cluster { api: other.api, context: Arc::new(Context { client, ..context }) };
    assert_eq!(other.reconcile().await, [""; 0]);
}

#[tokio::test]
async fn what_others_change_comes_back_and_what_they_add_stays() {
    let cluster = Cluster::new(hello());
    cluster.reconcile().await;
    let mut service = cluster.api.get(SERVICE).unwrap();
    service["spec"]["ports"][0]["port"] = json!(81);
    cluster.api.put(SERVICE, service);
    let requests = cluster.reconcile().await;
    assert!(requests.contains(&format!("PATCH {SERVICE}")), "{requests:?}");
    assert!(!requests.contains(&format!("PATCH {DEPLOYMENT}")), "{requests:?}");
    assert_eq!(cluster.api.get(SERVICE).unwrap()["spec"]["ports"][0]["port"], 80);
    let mut service = cluster.api.get(SERVICE).unwrap();
    service["metadata"]["labels"]["theirs"] = json!("x");
    cluster.api.put(SERVICE, service);
    let requests = cluster.reconcile().await;
    assert!(!requests.contains(&format!("PATCH {SERVICE}")), "{requests:?}");
    // A field that the file no longer has goes.
    cluster.write(json!({
        "greeter": { "image": "i:1", "role": "secondary", "http": 8080, "env": { "A": "1" } },
        "hello": { "image": "i:1" },
    }));
    cluster.reconcile().await;
    cluster.write(hello());
    cluster.reconcile().await;
    assert!(!cluster.api.get(DEPLOYMENT).unwrap().to_string().contains("\"A\""));
}

/// The Workflow that the watch shows is older than the status that was written.
#[tokio::test]
async fn a_status_that_was_just_written_is_not_written_again() {
    let cluster = Cluster::new(hello());
    let mut workflow = cluster.api.get(WORKFLOW).unwrap();
    workflow["metadata"]["resourceVersion"] = json!("1");
    let stale: Workflow = serde_json::from_value(workflow).unwrap();
    watch(&cluster.context.cache, &cluster.context.client).await;
    for expected in [1, 0] {
        cluster.api.forget_requests();
        reconcile(Arc::new(stale.clone()), Arc::clone(&cluster.context)).await.unwrap();
        let requests = cluster.api.requests();
        let writes = requests.iter().filter(|it| it.contains("/status")).count();
        assert_eq!(writes, expected, "{requests:?}");
    }
}

/// A function with a Gateway has an HTTPRoute where Gateways are, and else a condition that says so.
#[tokio::test]
async fn a_route_needs_the_gateway_api() {
    const ROUTE: &str = "/apis/gateway.networking.k8s.io/v1/namespaces/n/httproutes/hello-greeter";
    let cluster = Cluster::new(json!({
        "greeter": {
            "image": "i:1", "role": "secondary", "http": 8080,
            "ingress": { "host": "hello.example", "gateway": "infra/public" },
        },
        "hello": { "image": "i:1" },
    }));
    cluster.api.lack("/apis/gateway.networking.k8s.io/");
    cluster.reconcile().await;
    assert_eq!(cluster.condition("Degraded"), ("True".into(), "NoGatewayApi".into()));
    assert!(cluster.api.get(DEPLOYMENT).is_some() && cluster.api.get(SERVICE).is_some());
    // It is installed.
    cluster.api.lack("nothing");
    cluster.reconcile().await;
    assert_eq!(cluster.condition("Degraded"), ("False".into(), "AsExpected".into()));
    let mut route = cluster.api.get(ROUTE).unwrap();
    assert_eq!(route["spec"]["parentRefs"], json!([{ "namespace": "infra", "name": "public" }]));
    assert!(cluster.api.below("/apis/networking.k8s.io/").is_empty());
    // The Gateway says no.
    route["status"] = json!({ "parents": [{ "conditions": [{
        "type": "Accepted", "status": "False", "reason": "NotAllowedByListeners",
        "message": "no listener takes routes of this namespace",
    }] }] });
    cluster.api.put(ROUTE, route);
    cluster.reconcile().await;
    assert_eq!(cluster.condition("Degraded"), ("True".into(), "NoRoute".into()));
    // An Ingress instead.
    cluster.write(json!({
        "greeter": { "image": "i:1", "role": "secondary", "http": 8080, "ingress": {} },
        "hello": { "image": "i:1" },
    }));
    cluster.reconcile().await;
    assert_eq!(cluster.api.get(ROUTE), None);
    assert_eq!(cluster.api.below("/apis/networking.k8s.io/").len(), 1);
}

#[tokio::test]
async fn a_deleted_workflow_is_left_to_the_garbage_collector() {
    let cluster = Cluster::new(hello());
    let mut workflow = cluster.api.get(WORKFLOW).unwrap();
    workflow["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    cluster.api.put(WORKFLOW, workflow);
    assert_eq!(cluster.reconcile().await, [""; 0]);
}

/// A function that is started on demand has a ScaledObject where KEDA is, and else one pod and a condition that says so.
#[tokio::test]
async fn a_function_that_is_started_on_demand_needs_keda() {
    const SCALED: &str = "/apis/keda.sh/v1alpha1/namespaces/n/scaledobjects/hello-greeter";
    const HPA: &str = "/apis/autoscaling/v2/namespaces/n/horizontalpodautoscalers/hello-greeter";
    let cluster = Cluster::new(json!({
        "greeter": { "image": "i:1", "role": "secondary", "scale": { "min": 0, "max": 3 } },
        "hello": { "image": "i:1" },
    }));
    cluster.api.lack("/apis/keda.sh/");
    cluster.reconcile().await;
    assert_eq!(cluster.api.get(HPA).unwrap()["spec"]["minReplicas"], 1);
    assert_eq!(cluster.condition("ScalesToZero"), ("False".into(), "NoKeda".into()));
    // KEDA is installed.
    cluster.api.lack("nothing");
    cluster.reconcile().await;
    let scaled = cluster.api.get(SCALED).unwrap();
    assert_eq!(scaled["spec"]["triggers"][0]["metadata"]["scalerAddress"], "scaler:9091");
    assert_eq!(cluster.api.get(HPA), None);
    assert_eq!(cluster.condition("ScalesToZero"), ("True".into(), "Keda".into()));
    // KEDA refuses it, and its reason is the condition's.
    let mut refused = scaled;
    refused["status"] = json!({ "conditions": [{
        "type": "Ready", "status": "False", "reason": "ScaledObjectCheckFailed", "message": "no target",
    }] });
    cluster.api.put(SCALED, refused);
    cluster.reconcile().await;
    let reason = "ScaledObjectCheckFailed".to_owned();
    assert_eq!(cluster.condition("ScalesToZero"), ("False".into(), reason));
    // A Job may call it although it has no pod.
    assert_eq!(cluster.jobs().len(), 1);
    // With a pod at least.
    cluster.write(json!({
        "greeter": { "image": "i:1", "role": "secondary", "scale": { "max": 3 } },
        "hello": { "image": "i:1" },
    }));
    cluster.reconcile().await;
    assert!(cluster.api.get(HPA).is_some() && cluster.api.get(SCALED).is_none());
}
