//! `ps` and `rm` of Workflows.

use serde_json::json;

use super::{Cluster, PODS, WORKFLOWS, function_pod, text};

#[test]
fn ps_lists_functions_with_their_nodes_and_what_needs_a_person() {
    let cluster = Cluster::new();
    let table = "WORKFLOW  FUNCTION  WORKLOAD                READY  NODES        IMAGE DIGEST         URL\n\
                 shop      front     Deployment/shop-front   2/2    node1,node2  sha256:0123456789ab  http://shop-front:80\n\
                 shop      prices    Deployment/shop-prices  0/1    node2        -                    -\n\
                 \nshop: CrashLoopBackOff: prices: it ends\n";
    assert_eq!(cluster.ok("ps --kube"), table);
    assert_eq!(cluster.ok("ps --kube shop"), table);
    assert_eq!(cluster.ok("ps --kube --workflow shop --context fake"), table);
    let shop = &cluster.json("ps --kube --json")[0];
    assert_eq!(shop["needs"][0]["reason"], "CrashLoopBackOff");
    assert_eq!(shop["functions"][0]["nodes"], json!(["node1", "node2"]));
    assert_eq!(shop["functions"][0]["image_digest"], "sha256:0123456789abcdef0123");
    assert_eq!(
        (&shop["functions"][1]["ready"], &shop["functions"][1]["replicas"]),
        (&json!(0), &json!(1))
    );
}

/// An evicted pod stays as an object.
#[test]
fn ps_leaves_out_pods_that_have_ended() {
    let cluster = Cluster::new();
    let path = format!("{PODS}/shop-front-a");
    let mut pod = cluster.api.get(&path).unwrap();
    pod["status"]["phase"] = json!("Failed");
    cluster.api.put(&path, pod);
    assert_eq!(cluster.json("ps --kube --json")[0]["functions"][0]["nodes"], json!(["node2"]));
}

#[test]
fn namespaces_are_the_context_s_or_those_of_the_command_line() {
    let cluster = Cluster::new();
    let output = cluster.run("ps --kube -n empty");
    assert!(output.status.success());
    assert!(text(&output.stderr).contains("namespace empty has no workflows"));
    assert_eq!(text(&output.stdout).lines().count(), 1);
    let before = cluster.cwasi("-n empty ps --kube --json").output().unwrap();
    assert_eq!(text(&before.stdout), "[]\n");
}

#[test]
fn rm_deletes_a_workflow_and_waits_for_its_pods() {
    let cluster = Cluster::new();
    let output = cluster.run("rm --kube shop");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "shop\n");
    assert_eq!(
        text(&output.stderr),
        "cwasi: deleting workflow shop of namespace n, with Deployment/shop-front, Deployment/shop-prices\n"
    );
    assert!(cluster.api.get(&format!("{WORKFLOWS}/shop")).is_none());
    assert_eq!(cluster.api.below(PODS), [""; 0]);
}

#[test]
fn rm_names_the_pods_that_remain() {
    let cluster = Cluster::new();
    let mut pod = function_pod("shop-front-slow", "front", "node1");
    pod["metadata"]["ownerReferences"] = json!([]);
    cluster.api.put(&format!("{PODS}/shop-front-slow"), pod);
    let said = cluster.fails(75, "rm --kube shop --timeout 0.1s");
    assert!(said.contains("pods remain after 100ms: shop-front-slow. Their grace"), "{said}");
    assert!(cluster.api.get(&format!("{WORKFLOWS}/shop")).is_none());
}

/// A wrong name among several deletes nothing.
#[test]
fn rm_finds_all_before_it_deletes_the_first() {
    let cluster = Cluster::new();
    let said = cluster.fails(66, "rm --kube shop shoq");
    assert!(said.contains("namespace n has no workflow shoq; did you mean shop?"), "{said}");
    assert!(cluster.api.get(&format!("{WORKFLOWS}/shop")).is_some());
    let removed = cluster.json("rm --kube shop --json");
    assert_eq!(
        removed,
        json!([{
            "workflow": "shop", "state": "removed",
            "workloads": ["Deployment/shop-front", "Deployment/shop-prices"],
        }])
    );
}
