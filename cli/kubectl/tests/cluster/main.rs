//! The command on a cluster: `cwasi VERB --kube` against an API server in memory, as a user runs it.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

mod errors;
mod logs;
mod nodes;
mod workflows;

use std::process::{Command, Output};

use cwasi_fake_api::FakeApi;
use cwasi_testbed::engines::tested_program;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Paths of the API.
const WORKFLOWS: &str = "/apis/cwasi.dev/v1alpha1/namespaces/n/workflows";
const PODS: &str = "/api/v1/namespaces/n/pods";
const NODE_PODS: &str = "/api/v1/namespaces/cwasi-system/pods";

/// A cluster with the workflow `shop`, whose functions `front` and `prices` run on two nodes.
struct Cluster {
    api: FakeApi,
    folder: TempDir,
}

impl Cluster {
    fn new() -> Self {
        let api = FakeApi::default();
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = FakeApi::kubeconfig(api.listen());
        std::fs::write(folder.path().join("kubeconfig"), kubeconfig).unwrap();
        api.put(&format!("{WORKFLOWS}/shop"), shop());
        for (pod, function, node) in [
            ("shop-front-a", "front", "node1"),
            ("shop-front-b", "front", "node2"),
            ("shop-prices-a", "prices", "node2"),
        ] {
            api.put(&format!("{PODS}/{pod}"), function_pod(pod, function, node));
        }
        for node in ["node1", "node2"] {
            let pod = format!("cwasi-install-{node}");
            api.put(&format!("{NODE_PODS}/{pod}"), node_pod(&pod, node, json!({ "running": {} })));
        }
        Self { api, folder }
    }

    fn cwasi(&self, arguments: &str) -> Command {
        let mut command = Command::new(tested_program(env!("CARGO_BIN_EXE_kubectl-cwasi")));
        // Variables of containerd are not the cluster's.
        command
            .env("CONTAINERD_NAMESPACE", "of-containerd")
            .env("KUBECONFIG", self.folder.path().join("kubeconfig"))
            .args(arguments.split_whitespace());
        command
    }

    fn run(&self, arguments: &str) -> Output {
        self.cwasi(arguments).output().unwrap()
    }

    /// Runs it to its success; its stdout.
    fn ok(&self, arguments: &str) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "cwasi {arguments}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Runs it to its end with this exit code; its stderr.
    fn fails(&self, code: i32, arguments: &str) -> String {
        let output = self.run(arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "cwasi {arguments}: {said}");
        said
    }

    fn json(&self, arguments: &str) -> Value {
        serde_json::from_str(&self.ok(arguments)).unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn shop() -> Value {
    let condition = |kind: &str, status: &str, reason: &str, message: &str| {
        json!({
            "type": kind, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": "2026-11-23T04:31:45Z",
        })
    };
    json!({
        "apiVersion": "cwasi.dev/v1alpha1", "kind": "Workflow",
        "metadata": { "name": "shop", "namespace": "n", "uid": "of-shop" },
        "spec": { "functions": { "front": { "image": "i:1" }, "prices": { "image": "i:2", "role": "secondary" } } },
        "status": {
            "observedGeneration": 1,
            "readyFunctions": "1/2",
            "functions": [
                {
                    "name": "front", "workload": "Deployment/shop-front", "image": "i:1",
                    "imageDigest": "sha256:0123456789abcdef0123", "replicas": 2, "readyReplicas": 2,
                    "endpoint": "http://shop-front:80",
                },
                {
                    "name": "prices", "workload": "Deployment/shop-prices", "image": "i:2",
                    "replicas": 1, "readyReplicas": 0,
                },
            ],
            "conditions": [
                condition("Ready", "False", "Waiting", "not ready: prices (0 of 1)"),
                condition("Degraded", "True", "CrashLoopBackOff", "prices: it ends"),
            ],
        },
    })
}

/// An installer's pod, whose container is in this state.
fn node_pod(name: &str, node: &str, state: Value) -> Value {
    json!({
        "metadata": { "name": name, "labels": { "app": "cwasi-install" } },
        "spec": { "nodeName": node, "containers": [{ "name": "node" }] },
        "status": { "phase": "Running", "containerStatuses": [{
            "name": "node", "ready": true, "restartCount": 0, "image": "i", "imageID": "", "state": state,
        }] },
    })
}

fn function_pod(name: &str, function: &str, node: &str) -> Value {
    json!({
        "metadata": {
            "name": name, "namespace": "n", "uid": format!("of-{name}"),
            "labels": { "cwasi.dev/workflow": "shop", "cwasi.dev/function": function },
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "of-shop",
            }],
        },
        "spec": { "nodeName": node, "containers": [{ "name": function }] },
        "status": { "phase": "Running", "containerStatuses": [{
            "name": function, "ready": true, "restartCount": 0, "image": "", "imageID": "",
            "containerID": format!("containerd://container-of-{name}"),
            "state": { "running": {} },
        }] },
    })
}
