//! `logs` of a Workflow's pods.

use super::{Cluster, PODS, text};

fn cluster() -> Cluster {
    let cluster = Cluster::new();
    cluster.api.put_log(&format!("{PODS}/shop-front-a"), "front", "one\ntwo\x1b[2J\n");
    cluster.api.put_log(
        &format!("{PODS}/shop-front-b"),
        "front",
        "three\nINFO front: hi  invocation=1a\n",
    );
    cluster
}

#[test]
fn lines_of_several_pods_begin_with_pod_and_function() {
    let cluster = cluster();
    let expected = "shop-front-a/front | one\n\
                    shop-front-a/front | two\\x1b[2J\n\
                    shop-front-b/front | three\n\
                    shop-front-b/front | INFO front: hi  invocation=1a\n";
    assert_eq!(cluster.ok("logs --kube shop/front"), expected);
    // The container of prices has not started: its log is missing, and the others are printed.
    let output = cluster.run("logs --kube shop");
    assert_eq!(text(&output.stdout), expected);
    assert!(text(&output.stderr).contains("is waiting to start"), "{}", text(&output.stderr));
    assert!(output.status.success());
    let mut followed: Vec<_> =
        cluster.ok("logs -f --kube shop/front").lines().map(str::to_owned).collect();
    followed.sort();
    let mut lines: Vec<_> = expected.lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(followed, lines);
}

#[test]
fn lines_have_the_api_s_times_when_these_are_wanted() {
    let cluster = cluster();
    let last = cluster.ok("logs --kube shop/front --tail 1 --timestamps");
    let time = "2026-11-23T04:31:45.123456Z";
    let expected = format!(
        "shop-front-a/front | {time} two\\x1b[2J\nshop-front-b/front | {time} INFO front: hi  invocation=1a\n"
    );
    assert_eq!(last, expected);
    let lines = cluster.ok("logs --kube shop/front --json --tail 1");
    let line: serde_json::Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    assert_eq!((&line["time"], &line["level"]), (&time.into(), &"INFO".into()));
    assert_eq!((&line["text"], &line["invocation"]), (&"hi".into(), &"1a".into()));
    assert_eq!(
        (&line["container"], &line["function"]),
        (&"shop-front-b/front".into(), &"front".into())
    );
}

#[test]
fn names_that_are_not_there_have_a_nearest_one() {
    let cluster = cluster();
    let said = cluster.fails(66, "logs --kube shop/frnt");
    assert!(said.contains("workflow shop has no function frnt; did you mean front?"), "{said}");
    let said = cluster.fails(66, "logs --kube --workflow shp");
    assert!(said.contains("has no workflow shp; did you mean shop?"), "{said}");
    // A function whose container has not started.
    let said = cluster.fails(70, "logs --kube shop/prices");
    assert!(said.contains("is waiting to start"), "{said}");
}
