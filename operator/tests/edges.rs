//! From the metrics of nodes to the status of a Workflow: an API server in memory, and nodes that answer by HTTP.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

mod watching;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cwasi_operator::cache::Cache;
use cwasi_operator::context::{Context, Written};
use cwasi_operator::edges::{Edges, PUBLISH_PERIOD};
use cwasi_operator::endpoints::Metrics;
use cwasi_operator::plan::pod_security::PodSecurity;
use cwasi_operator::reconcile::reconcile;
use cwasi_operator::resource::Workflow;
use kube::runtime::events::{Recorder, Reporter};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use cwasi_fake_api::FakeApi;
use watching::watch;

const WORKFLOW: &str = "/apis/cwasi.dev/v1alpha1/namespaces/n/workflows/hello";
const PODS: &str = "/api/v1/namespaces/cwasi-system/pods";

/// A node that serves a text.
#[derive(Clone)]
struct Node {
    text: Arc<Mutex<String>>,
    port: u16,
}

impl Node {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let node = Self { text: Arc::default(), port: listener.local_addr().unwrap().port() };
        let text = Arc::clone(&node.text);
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut head = [0; 1024];
                let read = stream.read(&mut head).await.unwrap();
                assert!(head[..read].starts_with(b"GET /metrics HTTP/1.1\r\n"));
                let text = text.lock().unwrap().clone();
                let answer =
                    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{text}", text.len());
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        node
    }

    /// Serves calls and bytes of edges: caller, callee, mode, calls, bytes in each direction.
    fn count(&self, edges: &[(&str, &str, &str, u64, u64)]) {
        let mut text =
            String::from("# HELP cwasi_calls Ended calls.\n# TYPE cwasi_calls counter\n");
        for (caller, callee, mode, calls, bytes) in edges {
            let labels = format!(
                r#"{{namespace="k8s.io",pod_namespace="n",workflow="hello",caller="{caller}",callee="{callee}",mode="{mode}"}}"#
            );
            text += &format!("cwasi_calls_total{labels} {calls}\n");
            text += &format!("cwasi_sent_bytes_total{labels} {bytes}\n");
            text += &format!("cwasi_received_bytes_total{labels} {bytes}\n");
        }
        *self.text.lock().unwrap() = text + "# EOF\n";
    }

    fn pod(&self, name: &str) -> Value {
        json!({
            "metadata": { "name": format!("metrics-{name}"), "labels": { "app": "cwasi-metrics" } },
            "spec": { "nodeName": name, "containers": [{
                "name": "metrics", "ports": [{ "name": "metrics", "containerPort": self.port }],
            }] },
            "status": { "phase": "Running", "podIP": "127.0.0.1" },
        })
    }
}

struct Cluster {
    api: FakeApi,
    edges: Edges,
    start: Instant,
}

impl Cluster {
    fn new(placement: &Value) -> Self {
        let api = FakeApi::default();
        let edges = Edges::new(api.client(), "cwasi-system", Metrics::default());
        api.put(
            WORKFLOW,
            json!({
                "apiVersion": "cwasi.dev/v1alpha1",
                "kind": "Workflow",
                "metadata": { "name": "hello", "namespace": "n", "uid": "u1", "generation": 1 },
                "spec": { "placement": placement, "functions": {
                    "front": { "image": "i:1", "role": "secondary", "http": 8080 },
                    "prices": { "image": "i:1", "role": "secondary" },
                } },
            }),
        );
        Self { api, edges, start: Instant::now() }
    }

    fn add(&self, name: &str, node: &Node) {
        self.api.put(&format!("{PODS}/{name}"), node.pod(name));
    }

    async fn scrape(&mut self, seconds: u64) {
        self.edges.scrape(self.start + Duration::from_secs(seconds)).await;
    }

    /// Writes what was measured; returns the status.
    async fn publish(&self, seconds: u64) -> Value {
        let now = self.start + Duration::from_secs(seconds);
        self.edges.publish(now, &[Arc::new(self.workflow())]).await;
        self.api.get(WORKFLOW).unwrap()["status"].clone()
    }

    fn workflow(&self) -> Workflow {
        serde_json::from_value(self.api.get(WORKFLOW).unwrap()).unwrap()
    }

    async fn reconcile(&self) {
        let client = self.api.client();
        let reporter = Reporter { controller: "test".to_owned(), instance: None };
        let recorder = Recorder::new(client.clone(), reporter);
        let (metrics, written) = (Metrics::default(), Written::default());
        let cache = Arc::<Cache>::default();
        watch(&cache, &client).await;
        let pod_security = PodSecurity::default();
        let context =
            Context { client, cache, recorder, metrics, scaler: None, pod_security, written };
        reconcile(Arc::new(self.workflow()), Arc::new(context)).await.unwrap();
    }
}

/// Status, reason and message of a condition.
fn condition<'s>(status: &'s Value, kind: &str) -> Option<(&'s str, &'s str, &'s str)> {
    let found = status["conditions"].as_array()?.iter().find(|it| it["type"] == kind)?;
    let text = |field: &str| found[field].as_str().unwrap();
    Some((text("status"), text("reason"), text("message")))
}

#[tokio::test]
async fn the_status_says_how_calls_move() {
    let mut cluster = Cluster::new(&json!({}));
    let (one, two) = (Node::start().await, Node::start().await);
    cluster.add("node1", &one);
    cluster.add("node2", &two);
    one.count(&[("front", "prices", "local", 1000, 10)]);
    two.count(&[("front", "prices", "networked", 50, 1000)]);
    cluster.scrape(0).await;
    assert_eq!(cluster.publish(0).await, Value::Null, "one look says nothing about now");
    one.count(&[("front", "prices", "local", 1900, 10), ("gateway", "front", "local", 300, 10)]);
    two.count(&[
        ("front", "prices", "networked", 150, 31_000),
        ("front:utils", "none", "none", 9, 9),
    ]);
    cluster.scrape(60).await;
    let status = cluster.publish(60).await;
    assert_eq!(condition(&status, "Measured"), Some(("True", "Scraped", "")));
    assert_eq!(status["local"], "90%", "what clients ask is no call between functions");
    let edge = |caller: &str, callee: &str, calls: Value, rate: &str, bytes: u64| {
        json!({
            "caller": caller, "callee": callee, "calls": calls, "callsPerSecond": rate,
            "networkBytesPerSecond": bytes,
        })
    };
    let expected = json!([
        edge(
            "front",
            "prices",
            json!({ "embedded": 0, "local": 900, "networked": 100 }),
            "17",
            1000
        ),
        edge("gateway", "front", json!({ "embedded": 0, "local": 300, "networked": 0 }), "5", 0),
    ]);
    assert_eq!(status["edges"], expected);
    assert_eq!(condition(&status, "PlacementAdvice"), Some(("False", "CallsStayLocal", "")));
}

#[tokio::test]
async fn a_status_is_written_only_if_it_says_something_else() {
    let mut cluster = Cluster::new(&json!({}));
    let node = Node::start().await;
    cluster.add("node1", &node);
    let count = |calls: u64| node.count(&[("front", "prices", "local", calls, 10)]);
    count(0);
    cluster.scrape(0).await;
    count(600);
    cluster.scrape(60).await;
    let first = cluster.publish(60).await;
    assert_eq!(
        (&first["edges"][0]["callsPerSecond"], &first["local"]),
        (&json!("10"), &json!("100%"))
    );
    cluster.api.forget_requests();
    // 619 calls instead of 600: still about ten a second.
    count(1219);
    cluster.scrape(120).await;
    // The count of the window has doubled, which is something else.
    assert_eq!(cluster.publish(120).await["edges"][0]["calls"]["local"], 1200);
    for minute in 3..=5_u64 {
        count(619 * minute);
        cluster.scrape(60 * minute).await;
    }
    cluster.publish(300).await;
    cluster.api.forget_requests();
    for minute in 6..=8_u64 {
        count(619 * minute);
        cluster.scrape(60 * minute).await;
        cluster.publish(60 * minute).await;
    }
    let requests = cluster.api.requests();
    assert!(!requests.iter().any(|it| it.contains("/status")), "{requests:?}");
    assert_eq!(PUBLISH_PERIOD, Duration::from_secs(60));
}

#[tokio::test]
async fn reconciling_and_measuring_leave_each_others_fields_alone() {
    let mut cluster = Cluster::new(&json!({}));
    let node = Node::start().await;
    cluster.add("node1", &node);
    cluster.reconcile().await;
    let before = cluster.api.get(WORKFLOW).unwrap()["status"].clone();
    node.count(&[]);
    cluster.scrape(0).await;
    node.count(&[("front", "prices", "embedded", 10, 1)]);
    cluster.scrape(60).await;
    let measured = cluster.publish(60).await;
    for field in ["readyFunctions", "functions", "observedGeneration"] {
        assert_eq!(measured[field], before[field], "{field}");
    }
    assert!(condition(&measured, "Ready").is_some());
    // The second time it sees what it made; the third time there is nothing to write.
    cluster.reconcile().await;
    cluster.api.forget_requests();
    cluster.reconcile().await;
    let status = cluster.api.get(WORKFLOW).unwrap()["status"].clone();
    assert_eq!((&status["edges"], &status["local"]), (&measured["edges"], &json!("100%")));
    assert!(condition(&status, "Measured").is_some());
    let requests = cluster.api.requests();
    assert!(!requests.iter().any(|it| it.contains("/status")), "{requests:?}");
}

#[tokio::test]
async fn what_is_missing_for_the_numbers_is_said_with_its_remedy() {
    let mut cluster = Cluster::new(&json!({}));
    cluster.scrape(0).await;
    let status = cluster.publish(60).await;
    let (value, reason, message) = condition(&status, "Measured").unwrap();
    assert_eq!((value, reason, &status["local"]), ("False", "NoMetrics", &json!("-")));
    assert!(message.contains("kubectl apply -f metrics.yaml"), "{message}");
    assert_eq!(condition(&status, "PlacementAdvice"), None);
    cluster.api.forget_requests();
    cluster.scrape(120).await;
    cluster.publish(120).await;
    let requests = cluster.api.requests();
    assert!(!requests.iter().any(|it| it.contains("/status")), "said once: {requests:?}");

    let node = Node::start().await;
    cluster.add("node1", &node);
    for (text, part) in [
        ("cwasi_calls_total{caller=\"a\n# EOF\n", "line 1 of the answer"),
        ("cwasi_calls_total{} 1\n", "ends before its last line"),
    ] {
        text.clone_into(&mut node.text.lock().unwrap());
        cluster.scrape(180).await;
        let status = cluster.publish(180).await;
        let (_, reason, message) = condition(&status, "Measured").unwrap();
        assert_eq!(reason, "Unreachable", "{message}");
        assert!(message.contains(part) && message.contains("NetworkPolicy"), "{message}");
    }
    cluster.api.refuse(PODS, "pods is forbidden");
    cluster.scrape(240).await;
    let status = cluster.publish(240).await;
    assert_eq!(condition(&status, "Measured").unwrap().1, "Forbidden");
}

#[tokio::test]
async fn a_status_has_the_edges_with_most_calls() {
    let mut cluster = Cluster::new(&json!({}));
    let node = Node::start().await;
    cluster.add("node1", &node);
    node.count(&[]);
    cluster.scrape(0).await;
    let callees: Vec<String> = (0..70).map(|number| format!("f{number}")).collect();
    let edges = callees
        .iter()
        .zip(1..)
        .map(|(callee, calls)| ("front", callee.as_str(), "local", calls, 0));
    node.count(&edges.collect::<Vec<_>>());
    cluster.scrape(60).await;
    let status = cluster.publish(60).await;
    let shown = status["edges"].as_array().unwrap();
    assert_eq!(shown.len(), 64);
    assert!(shown.iter().all(|edge| edge["calls"]["local"].as_i64() > Some(6)), "{shown:?}");
    let (_, _, message) = condition(&status, "Measured").unwrap();
    assert!(message.contains("64 edges with most calls"), "{message}");
}

/// The advice, what it leads to when the user allows it, and what it does not do before a rollout.
#[tokio::test]
async fn an_edge_that_moves_much_is_advice_and_moves_at_a_rollout() {
    let mut cluster = Cluster::new(&json!({ "move": true }));
    cluster.reconcile().await;
    let deployments = "/apis/apps/v1/namespaces/n/deployments/";
    let [deployment, _prices] = &cluster.api.below(deployments)[..] else { panic!("no two") };
    let before = cluster.api.get(deployment).unwrap();
    let node = Node::start().await;
    cluster.add("node1", &node);
    node.count(&[]);
    cluster.scrape(0).await;
    node.count(&[("front", "prices", "networked", 120, 125_829_120)]);
    cluster.scrape(60).await;
    let status = cluster.publish(60).await;
    assert_eq!(
        (&status["local"], &status["edges"][0]["moveAdvised"]),
        (&json!("0%"), &json!(true))
    );
    let (value, reason, message) = condition(&status, "PlacementAdvice").unwrap();
    assert_eq!((value, reason), ("True", "NetworkedEdges"));
    let line = "front -> prices: 100% of 2 calls/s and 4.0 MiB/s go over the network";
    assert!(message.starts_with(line) && message.contains("kubectl rollout restart"), "{message}");
    cluster.reconcile().await;
    assert_eq!(cluster.api.get(deployment).unwrap()["spec"], before["spec"]);
    // Another image is a rollout.
    let mut workflow = cluster.api.get(WORKFLOW).unwrap();
    workflow["spec"]["functions"]["front"]["image"] = json!("i:2");
    cluster.api.put(WORKFLOW, workflow);
    cluster.reconcile().await;
    let after = cluster.api.get(deployment).unwrap();
    let affinity = &after["spec"]["template"]["spec"]["affinity"]["podAffinity"];
    let terms = &affinity["preferredDuringSchedulingIgnoredDuringExecution"];
    let selected = &terms[0]["podAffinityTerm"]["labelSelector"]["matchLabels"];
    assert_eq!(
        (&terms[0]["weight"], &selected["cwasi.dev/function"]),
        (&json!(100), &json!("prices"))
    );
    assert_eq!(after["metadata"]["annotations"]["cwasi.dev/near"], "prices");
}

#[tokio::test]
async fn advice_says_what_to_do_and_is_for_functions_that_could_share_a_node() {
    for (placement, selectors, advised) in [
        (json!({}), ["a", "a"], Some("True")),
        (json!({}), ["a", "b"], Some("False")),
        (json!({ "policy": "spread" }), ["a", "a"], None),
    ] {
        let mut cluster = Cluster::new(&placement);
        let mut workflow = cluster.api.get(WORKFLOW).unwrap();
        for (name, zone) in ["front", "prices"].into_iter().zip(selectors) {
            workflow["spec"]["functions"][name]["podTemplate"] =
                json!({ "spec": { "nodeSelector": { "zone": zone } } });
        }
        cluster.api.put(WORKFLOW, workflow);
        let node = Node::start().await;
        cluster.add("node1", &node);
        node.count(&[]);
        cluster.scrape(0).await;
        node.count(&[("front", "prices", "networked", 1200, 1)]);
        cluster.scrape(60).await;
        let status = cluster.publish(60).await;
        let found = condition(&status, "PlacementAdvice");
        assert_eq!(found.map(|it| it.0), advised, "{placement} {selectors:?}");
        if advised == Some("True") {
            let message = found.unwrap().2;
            assert!(message.contains("set `placement.move: true`"), "{message}");
        }
    }
}

/// A new leader has seen a minute of the last five, and a Workflow with faults has no plan.
#[tokio::test]
async fn what_cannot_be_known_yet_stays_as_it_was() {
    let mut cluster = Cluster::new(&json!({}));
    let node = Node::start().await;
    cluster.add("node1", &node);
    node.count(&[("front", "prices", "networked", 10, 10)]);
    cluster.scrape(0).await;
    node.count(&[("front", "prices", "networked", 1000, 200 << 20)]);
    cluster.scrape(60).await;
    let before = cluster.publish(60).await;
    assert_eq!(before["edges"][0]["moveAdvised"], true);
    let same = |status: &Value| {
        assert_eq!((&status["edges"], &status["local"]), (&before["edges"], &before["local"]));
        assert_eq!(condition(status, "PlacementAdvice").unwrap().0, "True");
    };
    cluster.edges = Edges::new(cluster.api.client(), "cwasi-system", Metrics::default());
    cluster.scrape(100).await;
    cluster.scrape(160).await;
    same(&cluster.publish(160).await);
    let mut workflow = cluster.api.get(WORKFLOW).unwrap();
    let spec = workflow["spec"].clone();
    workflow["spec"]["functions"]["prices"]["image"] = Value::Null;
    cluster.api.put(WORKFLOW, workflow.clone());
    same(&cluster.publish(170).await);
    workflow["spec"] = spec;
    workflow["status"] = before.clone();
    cluster.api.put(WORKFLOW, workflow);
    // It has seen five minutes without a call.
    cluster.scrape(400).await;
    let after = cluster.publish(400).await;
    assert_eq!((&after["edges"], &after["local"]), (&json!([]), &json!("-")));
}
