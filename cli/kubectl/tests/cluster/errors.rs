//! What the command says when a cluster is away, refuses, or has no Workflows.

use http::StatusCode;

use super::{Cluster, PODS, WORKFLOWS};

const VERBS: [&str; 5] = [
    "ps --kube",
    "logs --kube shop",
    "rm --kube shop",
    "invoke --kube front",
    "explain --kube front prices",
];

#[test]
fn without_a_cluster_every_verb_says_which_one_it_asked() {
    let cluster = Cluster::new();
    let kubeconfig = cluster.folder.path().join("kubeconfig");
    let localhost = std::net::Ipv4Addr::LOCALHOST.into();
    let free = std::net::SocketAddr::new(localhost, cwasi_testbed::port::free_port(localhost));
    std::fs::write(&kubeconfig, cwasi_fake_api::FakeApi::kubeconfig(free)).unwrap();
    for verb in VERBS.iter().chain(&["trace --kube"]) {
        let said = cluster.fails(69, verb);
        assert!(
            said.contains(&format!(
                "no Kubernetes API answers at http://{free}/: Connection refused"
            )),
            "{said}"
        );
    }
    let said = cluster.fails(66, "ps --kube --context fke");
    assert!(said.contains("has no context fke; did you mean fake?"), "{said}");
    std::fs::write(&kubeconfig, "{").unwrap();
    assert!(cluster.fails(65, "ps --kube").contains("kubectl's configuration cannot be used"));
    std::fs::remove_file(&kubeconfig).unwrap();
    assert!(cluster.fails(66, "ps --kube").contains("no cluster is configured"));
}

#[test]
fn a_cluster_that_refuses_says_what() {
    let cluster = Cluster::new();
    cluster.api.deny(
        WORKFLOWS,
        StatusCode::FORBIDDEN,
        "workflows.cwasi.dev is forbidden: User \"u\"",
    );
    let said = cluster.fails(77, "ps --kube");
    let expected = "the cluster does not let you `list workflows.cwasi.dev` in namespace n: workflows.cwasi.dev is \
                    forbidden: User \"u\". docs/kubernetes.md#the-command-on-a-cluster has the rights";
    assert!(said.contains(expected), "{said}");
    cluster.api.deny(WORKFLOWS, StatusCode::NOT_FOUND, "404 page not found");
    let said = cluster.fails(66, "rm --kube shop");
    assert!(said.contains("has no kind Workflow: apply deploy/kubernetes/crd.yaml"), "{said}");
    cluster.api.deny(PODS, StatusCode::UNAUTHORIZED, "Unauthorized");
    let said = cluster.fails(77, "invoke --kube front");
    assert!(said.contains("does not know the user of this context"), "{said}");
}

#[test]
fn functions_without_pods_and_nodes_without_the_runtime_are_named() {
    let cluster = Cluster::new();
    let said = cluster.fails(66, "invoke --kube frnt");
    assert!(
        said.contains("no running pod of namespace n has a function frnt; did you mean front?"),
        "{said}"
    );
    let said = cluster.fails(66, "explain --kube gateway other/front");
    assert!(said.contains("no running pod of namespace other has a function front"), "{said}");
    for verb in ["invoke --kube front", "trace --kube"] {
        let said = cluster.fails(69, &format!("{verb} --system-namespace elsewhere"));
        assert!(
            said.contains("namespace elsewhere has no running pod of the DaemonSet cwasi-install"),
            "{said}"
        );
    }
    for pod in ["shop-front-a", "shop-front-b", "shop-prices-a"] {
        cluster
            .api
            .put(&format!("{PODS}/{pod}"), serde_json::json!({ "metadata": { "name": pod } }));
    }
    let said = cluster.fails(66, "logs --kube shop");
    assert!(said.contains("shop has no pods in namespace n: prices: it ends"), "{said}");
}
