//! `invoke`, `explain` and `trace`, which the command on a node does: the words that the node gets, and what comes back.

use std::io::Write as _;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use cwasi_fake_api::{Executed, Ran};
use cwasi_testbed::span_line::SPAN_LINE;
use http::StatusCode;
use serde_json::{Value, json};

use super::{Cluster, NODE_PODS, PODS, WORKFLOWS, node_pod, text};

/// What nodes were asked.
type Asked = Arc<Mutex<Vec<Executed>>>;

/// Nodes that answer alike; what they were asked.
fn answering(cluster: &Cluster, ran: Ran) -> Asked {
    let asked = Asked::default();
    let all = Arc::clone(&asked);
    cluster.api.on_exec(move |executed| {
        if executed.stdin.len() >= ran.needs {
            all.lock().unwrap().push(executed);
        }
        ran.clone()
    });
    asked
}

/// The length of the payload, and the command's words.
fn words(executed: &Executed) -> Vec<&str> {
    assert_eq!(executed.container, "node");
    assert_eq!(executed.command[..2], ["/bin/sh", "-c"]);
    executed.command[4..].iter().map(String::as_str).collect()
}

#[test]
fn invoke_calls_from_a_node_that_runs_the_function() {
    let cluster = Cluster::new();
    let payload = [0, 255, b'\n', 7].repeat(40_000);
    let ran = Ran {
        stdout: payload.clone(),
        stderr: b"cwasi: local (callee on this host)\n".to_vec(),
        needs: payload.len(),
        ..Ran::default()
    };
    let asked = answering(&cluster, ran);
    let mut child = cluster
        .cwasi("invoke --kube prices --data - --timeout 5 -v --as ops")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&payload).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(output.stdout == payload, "{} bytes came back", output.stdout.len());
    assert_eq!(text(&output.stderr), "cwasi: local (callee on this host)\n");
    let asked = asked.lock().unwrap();
    assert_eq!(asked[0].pod, format!("{NODE_PODS}/cwasi-install-node2"));
    assert!(asked[0].stdin == payload);
    let length = payload.len().to_string();
    assert_eq!(
        words(&asked[0]),
        [
            length.as_str(),
            "invoke",
            "prices",
            "--timeout=5s",
            "--as=ops",
            "--pod-namespace=n",
            "--data=-",
            "--verbose",
            "--namespace=k8s.io",
        ]
    );
}

/// Such as one that does not know an option.
#[test]
fn a_command_that_does_not_read_its_payload_ends() {
    let cluster = Cluster::new();
    let stderr = b"cwasi: unexpected argument\n".to_vec();
    answering(&cluster, Ran { stderr, code: 2, ..Ran::default() });
    let payload = tempfile::NamedTempFile::new().unwrap();
    payload.as_file().set_len(8 << 20).unwrap();
    let path = payload.path().display();
    let said = cluster.fails(2, &format!("invoke --kube prices --data @{path}"));
    assert!(said.starts_with("cwasi: unexpected argument\n"), "{said}");
}

#[test]
fn a_connection_that_breaks_is_an_error() {
    let cluster = Cluster::new();
    answering(&cluster, Ran { stdout: b"half".to_vec(), breaks: true, ..Ran::default() });
    let output = cluster.run("invoke --kube prices");
    assert!(!output.status.success());
    assert_eq!(text(&output.stdout), "half");
    assert!(text(&output.stderr).contains("the connection broke"), "{}", text(&output.stderr));
}

#[test]
fn the_exit_code_and_the_address_are_passed_on() {
    let cluster = Cluster::new();
    let stderr = b"cwasi: no route to function `front`\n".to_vec();
    let asked = answering(&cluster, Ran { stderr, code: 66, ..Ran::default() });
    let said =
        cluster.fails(66, "invoke --kube n/front --json -a /run/k3s/containerd/containerd.sock");
    assert_eq!(said, "cwasi: no route to function `front`\n");
    let asked = asked.lock().unwrap();
    assert_eq!(
        words(&asked[0])[6..],
        ["--namespace=k8s.io", "--address=/run/k3s/containerd/containerd.sock", "--json"]
    );
}

#[test]
fn explain_asks_the_caller_s_node_about_its_container() {
    let cluster = Cluster::new();
    let asked = answering(
        &cluster,
        Ran { stdout: b"prices -> front: local\n".to_vec(), code: 1, ..Ran::default() },
    );
    let output = cluster.run("explain --kube prices front");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stdout), "prices -> front: local\n");
    cluster.run("explain --kube gateway prices");
    let asked = asked.lock().unwrap();
    assert_eq!(
        words(&asked[0]),
        ["0", "explain", "container-of-shop-prices-a", "front", "--namespace=k8s.io"]
    );
    assert_eq!(
        words(&asked[1]),
        ["0", "explain", "gateway", "prices", "--host", "--pod-namespace=n", "--namespace=k8s.io"]
    );
    let said = cluster.fails(2, "explain --kube --file w.yaml a b");
    assert!(said.contains("cannot be used with"), "{said}");
}

/// A Workflow whose `front` runs at three, and whose `prices` has no pod while nothing calls it.
fn with_activation(cluster: &Cluster) {
    let functions = json!({
        "front": { "image": "i:1", "schedule": "0 3 * * *" },
        "prices": {
            "image": "i:2", "role": "secondary", "scale": { "min": 0, "max": 10, "calls": 8, "cooldown": "5m" },
            "triggers": [{ "redis": { "stream": "n:orders" } }],
        },
    });
    let (mut shop, path) = (super::shop(), format!("{WORKFLOWS}/shop"));
    shop["spec"]["functions"] = functions;
    cluster.api.put(&path, shop);
}

#[test]
fn explain_says_what_workflows_say_of_the_two_functions() {
    let cluster = Cluster::new();
    with_activation(&cluster);
    let node = "front -> prices: no route\n  trigger of prices: redis-stream:n:orders\n";
    answering(&cluster, Ran { stdout: node.into(), code: 1, ..Ran::default() });
    let output = cluster.run("explain --kube front prices");
    assert_eq!(output.status.code(), Some(1));
    let scale =
        "0 to 10 pods on a cluster, by calls, 8 in a pod, the last one until 300 s without a call";
    assert_eq!(
        text(&output.stdout),
        format!("{node}  schedule of front: 0 3 * * *\n  scale of prices: {scale}\n")
    );
    let output = cluster.run("explain --kube gateway n/prices");
    assert_eq!(text(&output.stdout), format!("{node}  scale of prices: {scale}\n"));
}

#[test]
fn explain_fills_the_document_of_a_node() {
    let cluster = Cluster::new();
    with_activation(&cluster);
    // A node knows the triggers of its own instances, and one of an older version nothing of all this.
    let of_node = json!({ "triggers": ["redis-channel:n:news"], "schedule": null, "scale": null });
    for (said, triggers) in [
        (json!({ "activation": { "caller": of_node, "callee": of_node } }), "redis-channel:n:news"),
        (json!({ "mode": "local" }), "redis-stream:n:orders"),
    ] {
        answering(&cluster, Ran { stdout: said.to_string().into(), ..Ran::default() });
        let found = cluster.json("explain --kube front prices --json")["activation"].take();
        assert_eq!(found["caller"]["schedule"], "0 3 * * *");
        let callee = &found["callee"];
        assert_eq!((&callee["schedule"], &callee["scale"]["min"]), (&Value::Null, &json!(0)));
        assert_eq!(callee["triggers"], json!([triggers]));
    }
    for odd in [json!({ "activation": 1 }), json!({ "activation": { "caller": 1, "callee": [] } })]
    {
        answering(&cluster, Ran { stdout: odd.to_string().into(), ..Ran::default() });
        assert!(cluster.run("explain --kube front prices --json").status.success(), "{odd}");
    }
}

#[test]
fn explain_needs_no_workflow() {
    let cluster = Cluster::new();
    answering(&cluster, Ran { stdout: b"front -> prices: local\n".to_vec(), ..Ran::default() });
    let refusals = [
        (StatusCode::NOT_FOUND, ""),
        (StatusCode::FORBIDDEN, "the cluster does not let you `list workflows.cwasi.dev`"),
    ];
    for (status, note) in refusals {
        cluster.api.deny(WORKFLOWS, status, "no");
        let output = cluster.run("explain --kube front prices");
        assert_eq!(text(&output.stdout), "front -> prices: local\n");
        let said = text(&output.stderr);
        assert!(said.contains(note) && said.is_empty() == note.is_empty(), "{said}");
    }
}

/// A span of a trace, as a node has it.
fn span(
    id: &str,
    parent: Option<&str>,
    kind: &str,
    service: &str,
    node: &str,
    start: u64,
) -> Value {
    let mut span: Value = serde_json::from_str(SPAN_LINE).unwrap();
    (span["service"], span["node"]) = (json!(service), json!(node));
    let inner = &mut span["span"];
    inner["trace"] = json!("07".repeat(16));
    (inner["id"], inner["kind"]) = (json!(id.repeat(8)), json!(kind));
    inner["parent"] = json!(parent.map(|parent| parent.repeat(8)));
    (inner["start_ns"], inner["end_ns"]) = (json!(start), json!(start + 1_000_000));
    inner["phases"] = json!([]);
    span
}

/// Two nodes, each with the spans of its own function.
fn traced() -> Cluster {
    let cluster = Cluster::new();
    cluster.api.on_exec(|executed| {
        let words = words(&executed);
        let is_first = executed.pod.ends_with("node1");
        let start = 1_700_000_000_000_000_000 + if is_first { 0 } else { 500 };
        let (node, title) = if is_first { ("node1", "front calls prices") } else { ("node2", "prices") };
        let answer = match words[2] {
            "--limit" => json!([{
                "trace": "07".repeat(16), "start_ns": start, "duration_ns": 1_000_000, "spans": 1,
                "errors": 0, "title": title,
            }]),
            "07070707" | "07070707070707070707070707070707" if is_first => {
                json!({ "id": "07".repeat(16), "spans": [span("01", None, "client", "front", node, start)] })
            }
            "07070707" | "07070707070707070707070707070707" => {
                json!({ "id": "07".repeat(16), "spans": [span("02", Some("01"), "server", "prices", node, start)] })
            }
            _ => {
                let stderr = b"cwasi: no trace on this node".to_vec();
                return Ran { code: 66, stderr, ..Ran::default() };
            }
        };
        Ran { stdout: answer.to_string().into_bytes(), ..Ran::default() }
    });
    cluster
}

#[test]
fn the_spans_of_all_nodes_are_one_trace() {
    let cluster = traced();
    let list = cluster.json("trace --kube --json");
    assert_eq!(list.as_array().unwrap().len(), 1);
    assert_eq!((&list[0]["spans"], &list[0]["title"]), (&json!(2), &json!("front calls prices")));
    assert_eq!(list[0]["duration_ns"], 1_000_500);
    for id in ["last", "07070707"] {
        let trace = cluster.json(&format!("trace --kube {id} --json"));
        let shape = |at: usize, key: &str| trace["spans"][at][key].clone();
        assert_eq!((shape(0, "service"), shape(1, "service")), (json!("front"), json!("prices")));
        assert_eq!((shape(0, "depth"), shape(1, "depth")), (json!(0), json!(1)));
    }
    let waterfall = cluster.ok("trace --kube last");
    assert!(waterfall.contains("2 spans") && waterfall.contains("front calls"), "{waterfall}");
    let said = cluster.fails(66, "trace --kube ffffffff");
    assert!(said.contains("no trace ffffffff on a node of this cluster"), "{said}");
}

/// Its first call starts a pod, wherever that call begins.
#[test]
fn a_function_that_is_started_on_demand_is_called_from_any_node() {
    let cluster = Cluster::new();
    with_activation(&cluster);
    let asked = answering(&cluster, Ran { stdout: b"12".to_vec(), ..Ran::default() });
    cluster.api.remove(&format!("{PODS}/shop-prices-a"));
    assert_eq!(cluster.ok("invoke --kube prices"), "12");
    assert_eq!(asked.lock().unwrap()[0].pod, format!("{NODE_PODS}/cwasi-install-node1"));
    cluster.run("explain --kube gateway prices");
    assert_eq!(words(&asked.lock().unwrap()[1])[1..3], ["explain", "gateway"]);
    // An installer that crashes is in the phase Running.
    let crashes = json!({ "waiting": { "reason": "CrashLoopBackOff" } });
    let first = "cwasi-install-node1";
    cluster.api.put(&format!("{NODE_PODS}/{first}"), node_pod(first, "node1", crashes));
    cluster.ok("invoke --kube prices");
    assert_eq!(asked.lock().unwrap()[2].pod, format!("{NODE_PODS}/cwasi-install-node2"));
    // `front` is no such function.
    for pod in ["shop-front-a", "shop-front-b"] {
        cluster.api.remove(&format!("{PODS}/{pod}"));
    }
    let said = cluster.fails(66, "invoke --kube front");
    assert!(said.contains("front"), "{said}");
    // Who may not read Workflows learns both.
    cluster.api.deny(WORKFLOWS, StatusCode::FORBIDDEN, "workflows is forbidden");
    let said = cluster.fails(66, "invoke --kube prices");
    assert!(said.contains("whether prices starts on demand is not known"), "{said}");
    assert!(said.contains("no running pod of namespace n has a function prices"), "{said}");
    cluster.api.deny(WORKFLOWS, StatusCode::INTERNAL_SERVER_ERROR, "no time");
    let said = cluster.fails(70, "invoke --kube prices");
    assert!(said.contains("no time"), "{said}");
}

/// Such as a prefix that several traces of one node have: no part of one of them is printed.
#[test]
fn words_that_are_wrong_on_one_node_are_an_error() {
    let cluster = Cluster::new();
    cluster.api.on_exec(|executed| {
        if executed.pod.ends_with("node1") {
            let stderr = b"cwasi: 2 traces begin with 1234: use more digits".to_vec();
            return Ran { code: 2, stderr, ..Ran::default() };
        }
        Ran { stdout: b"{\"spans\": []}".to_vec(), ..Ran::default() }
    });
    let said = cluster.fails(2, "trace --kube 1234");
    assert!(said.contains("2 traces begin with 1234"), "{said}");
}

/// A node whose command fails is named and left out.
#[test]
fn a_node_that_fails_is_left_out() {
    let cluster = Cluster::new();
    cluster.api.on_exec(|executed| {
        if executed.pod.ends_with("node1") {
            let stderr =
                b"cwasi: configuration file /etc/cwasi/config.toml cannot be read".to_vec();
            return Ran { code: 65, stderr, ..Ran::default() };
        }
        Ran { stdout: b"[]".to_vec(), ..Ran::default() }
    });
    let output = cluster.run("trace --kube");
    assert!(output.status.success());
    assert!(
        text(&output.stderr).contains(
            "node node1 is left out: configuration file /etc/cwasi/config.toml cannot be read"
        ),
        "{}",
        text(&output.stderr)
    );
}
