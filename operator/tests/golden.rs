//! What the builders make of the files in `tests/golden`: NAME.yaml becomes NAME.golden.yaml. After a change that is
//! meant, `UPDATE_GOLDEN=1 cargo test -p cwasi-operator --test golden` writes them anew.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::fs;
use std::path::{Path, PathBuf};

use cwasi_operator::objects::Facilities;
use cwasi_operator::observe::Observed;
use cwasi_operator::plan::{Plan, PlannedFunction};
use cwasi_operator::resource::{EdgeStatus, Workflow};
use cwasi_operator::{objects, placement};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn read(text: &str) -> Workflow {
    serde_saphyr::from_str(text).unwrap()
}

#[test]
fn objects_are_the_golden_files() {
    let is_updating = std::env::var_os("UPDATE_GOLDEN").is_some();
    let facilities = Facilities {
        has_keda: true,
        has_gateway_api: true,
        scaler: Some("cwasi-operator.cwasi-system.svc:9091".into()),
    };
    for name in [
        "shop",
        "pod",
        "spread",
        "placed-edges",
        "zero",
        "others",
        "gateway",
        "services",
        "services-pod",
        "host-network",
    ] {
        let text = fs::read_to_string(folder().join(format!("{name}.yaml"))).unwrap();
        let plan = Plan::read(&read(&text)).unwrap();
        let objects: Vec<String> = objects::build(&plan, &facilities)
            .iter()
            .map(|object| serde_saphyr::to_string(&object.body).unwrap())
            .collect();
        let made = objects.join("---\n");
        let golden = folder().join(format!("{name}.golden.yaml"));
        if is_updating {
            fs::write(&golden, &made).unwrap();
        }
        assert_eq!(made, fs::read_to_string(golden).unwrap(), "{name}");
    }
}

/// Both functions of an edge that follow the advice.
#[test]
fn functions_that_move_prefer_each_others_nodes() {
    let is_updating = std::env::var_os("UPDATE_GOLDEN").is_some();
    let text = fs::read_to_string(folder().join("near.yaml")).unwrap();
    let mut plan = Plan::read(&read(&text)).unwrap();
    let edge = EdgeStatus {
        caller: "front".to_owned(),
        callee: "prices".to_owned(),
        move_advised: true,
        ..EdgeStatus::default()
    };
    placement::decide(&mut plan, &Observed::default(), &[edge]);
    let made = objects::build(&plan, &Facilities::default())
        .iter()
        .map(|object| serde_saphyr::to_string(&object.body).unwrap())
        .collect::<Vec<_>>()
        .join("---\n");
    let golden = folder().join("near.golden.yaml");
    if is_updating {
        fs::write(&golden, &made).unwrap();
    }
    assert_eq!(made, fs::read_to_string(golden).unwrap());
}

fn faults(spec: &str) -> String {
    let text = format!(
        "apiVersion: cwasi.dev/v1alpha1\nkind: Workflow\nmetadata: {{name: w}}\nspec:\n{spec}"
    );
    Plan::read(&read(&text)).unwrap_err().join("\n")
}

#[test]
fn what_a_cluster_cannot_do_is_said_with_its_remedy() {
    let said = faults(
        r#"
  nodes: {far: {address: /run/far.sock}}
  functions:
    one:
      module: one.wasm
      node: far
      mounts: [{source: /data, target: /data}]
    Two.x:
      image: i:1
      role: secondary
      embed: {m: lib, other: "localhost/other:1"}
    lib: {image: "localhost/lib:1", role: library}
    three:
      image: i:1
      podTemplate: {spec: {containers: [{name: three, imagePullPolcy: Always}], restart: "no"}}
    four:
      image: i:1
      podTemplate: {spec: {containers: three}}
    a-name-that-is-rather-long-for-an-object-of-kubernetes: {image: "i:1"}
"#,
    );
    for part in [
        "spec.nodes are containerds of a machine: choose nodes by podTemplate.spec.nodeSelector",
        "spec.functions.one.module is a file of your machine: push it (`cwasi image build --push`)",
        "spec.functions.one.mounts are files of a machine: use podTemplate.spec.volumes",
        "spec.functions.one.node is a containerd of a machine",
        "spec.functions.Two.x: names of functions are lower-case letters",
        "spec.functions.Two.x.embed.m: name localhost/lib:1 with its digest",
        "spec.functions.Two.x.embed.other: name localhost/other:1 with its digest",
        "spec.functions.three.podTemplate.spec has the unknown field `restart`",
        "spec.functions.three.podTemplate.spec.containers[0] has the unknown field `imagePullPolcy`",
        "spec.functions.four.podTemplate: invalid type",
        "is longer than 52 bytes: shorten one",
    ] {
        assert!(said.contains(part), "{part} is missing in:\n{said}");
    }
}

#[test]
fn faults_of_the_file_are_those_that_lint_prints() {
    let said = faults(
        "  placement: {policy: near}\n  functions:\n    one: {image: 'i:1', concurency: 4, scale: {max: 3}}\n",
    );
    for part in [
        "spec.functions.one has the unknown field `concurency`; did you mean `concurrency`?",
        "spec.functions.one.scale needs role: secondary: a primary runs once",
        "spec.placement.policy: `near` must be auto, node, pod or spread",
    ] {
        assert!(said.contains(part), "{part} is missing in:\n{said}");
    }
    let said = faults(
        r#"
  functions:
    one: {image: "i:1", role: secondary, http: 8080, ingress: {gateway: a/b/c, class: nginx, tls: cert, host: h}}
"#,
    );
    for part in [
        "spec.functions.one.ingress.gateway and `class` exclude each other: the Gateway has its own class",
        "spec.functions.one.ingress.gateway and `tls` exclude each other",
        "spec.functions.one.ingress.gateway: `a/b/c` is not NAME or NAMESPACE/NAME of a Gateway",
    ] {
        assert!(said.contains(part), "{part} is missing in:\n{said}");
    }
    let said = faults(
        r#"
  placement: {policy: spread, move: true, edges: {"one->tree": node, "one": spread, "one->one": node, "one->three": pod}}
  functions: {one: {image: "i:1"}, three: {image: "i:1"}}
"#,
    );
    for part in [
        "spec.placement.move needs policy: auto",
        "spec.placement.edges.one->tree: there is no function `tree` in this file; did you mean `three`?",
        "spec.placement.edges.one: an edge is written as `caller->callee`",
        "spec.placement.edges.one->one: an edge has two functions",
        "spec.placement.edges.one->three: `pod` must be node or spread",
    ] {
        assert!(said.contains(part), "{part} is missing in:\n{said}");
    }
}

#[test]
fn one_pod_has_one_schedule_and_no_autoscaler() {
    let said = faults(
        r#"
  placement: {policy: pod}
  functions:
    one: {image: "i:1", schedule: "@hourly"}
    two: {image: "i:1"}
    three: {image: "i:1", role: secondary, scale: {max: 3}}
"#,
    );
    assert!(said.contains("primaries have different schedules"), "{said}");
    assert!(
        said.contains("spec.functions.three.scale: placement.policy pod has one pod"),
        "{said}"
    );
}

#[test]
fn containers_of_one_pod_share_names_and_a_network() {
    let said = faults(
        r#"
  placement: {policy: pod}
  services:
    a-3: {image: "s:1", port: 8081}
  functions:
    a: {image: "i:1", role: secondary, replicas: 3}
    a-2: {image: "i:1", role: secondary, http: 8080}
    b: {image: "i:1", role: secondary, http: 8080, replicas: 2}
    c: {image: "i:1", role: secondary, http: 8081, podTemplate: {spec: {hostNetwork: true}}, uses: [a-3]}
"#,
    );
    for part in [
        "spec.functions.a: spec.services.a-3 has a container `a-3`, too",
        "spec.functions.a-2: spec.functions.a has a container `a-2`, too",
        "spec.functions.b: spec.functions.a-2 has the port 8080, too",
        "spec.functions.c: spec.services.a-3 has the port 8081, too",
        "spec.functions.b.replicas: placement.policy pod has one network for all, and only one of 2 containers",
        "spec.functions.c.hostNetwork: placement.policy pod has one network for all, and would open the port of spec.functions.a-2",
    ] {
        assert!(said.contains(part), "{part} is missing in:\n{said}");
    }
}

/// As fields say it, or as `podTemplate` does.
#[test]
fn what_a_template_says_of_a_function_counts_without_a_pod_too() {
    let plan = |more: &str| {
        let text = format!(
            r#"
apiVersion: cwasi.dev/v1alpha1
kind: Workflow
metadata: {{name: w}}
spec:
  podTemplate: {{metadata: {{annotations: {{cwasi.http: gateway, cwasi.allow.other: "*"}}}}}}
  functions:
    one: {{image: "i:1", role: secondary, scale: {{min: 0, max: 2}}, podTemplate: {{{more}}}}}
    other: {{image: "i:1", role: secondary, scale: {{min: 0, max: 2}}}}
"#
        );
        Plan::read(&read(&text))
    };
    let read = plan(
        "spec: {hostNetwork: true}, metadata: {annotations: {cwasi.concurrency: '3', cwasi.triggers: 'redis-stream:s'}}",
    );
    let read = read.unwrap();
    let [one, other] = &read.functions[..] else { panic!("two functions") };
    let known = |it: &PlannedFunction| it.announcement.clone().unwrap();
    assert!(known(one).http && known(other).http);
    assert_eq!((known(one).allow.len(), known(other).allow.len()), (0, 1));
    assert_eq!((one.workers, one.streams.as_slice()), (3, &["s".to_owned()][..]));
    assert!(one.function.host_network && !other.function.host_network);
    let faults = plan("metadata: {annotations: {cwasi.concurrency: many}}").unwrap_err().join("\n");
    assert!(faults.contains("spec.functions.one: annotations of `podTemplate`: "), "{faults}");
}

#[test]
fn others_decide_the_number_of_pods_of_secondaries_that_have_no_number() {
    let said = |policy: &str| {
        let text = format!(
            r#"
apiVersion: cwasi.dev/v1alpha1
kind: Workflow
metadata: {{name: w, annotations: {{cwasi.dev/scaled-by-others: "one, two,three,four"}}}}
spec:
  placement: {{policy: {policy}}}
  functions:
    one: {{image: "i:1"}}
    two: {{image: "i:1", role: secondary, scale: {{max: 3}}}}
    three: {{image: "i:1", role: secondary, replicas: 2}}
"#
        );
        Plan::read(&read(&text)).unwrap_err().join("\n")
    };
    let node = said("node");
    for part in [
        "scaled-by-others names `one`, which is no secondary",
        "scaled-by-others names `four`, which is no secondary",
        "spec.functions.three.replicas: the annotation cwasi.dev/scaled-by-others leaves",
    ] {
        assert!(node.contains(part), "{part} is missing in:\n{node}");
    }
    let pod = said("pod");
    assert!(pod.contains("names `three`: placement.policy pod has one pod"), "{pod}");
}

#[test]
fn a_service_has_a_place_of_its_own() {
    let said = faults(
        r#"
  placement: {policy: pod}
  services:
    db: {image: "i:1", port: 5432, storage: {path: /data}}
    queue: {image: "i:1", port: 5432, podTemplate: {spec: {container: [x], containers: []}}}
    a-name-that-is-rather-long-for-an-object-of-kubernetes: {image: "i:1", port: 1}
    unused: {image: "i:1", port: 5432}
  functions:
    one: {image: "i:1", uses: [db, queue, a-name-that-is-rather-long-for-an-object-of-kubernetes]}
"#,
    );
    for part in [
        "spec.services.db.storage: placement.policy pod has one pod for all, which keeps nothing: use policy node",
        "spec.services.queue: spec.services.db has the port 5432, too, and placement.policy pod has one network for all",
        "spec.services.queue.podTemplate.spec has the unknown field `container`",
        "w-a-name-that-is-rather-long-for-an-object-of-kubernetes is longer than 52 bytes",
    ] {
        assert!(said.contains(part), "{part} is missing in:\n{said}");
    }
    assert!(!said.contains("unused"), "{said}");
}

/// A Job's name changes with what the user said, and with nothing else.
#[test]
fn a_job_is_named_after_its_function_as_the_user_wrote_it() {
    let text = fs::read_to_string(folder().join("shop.yaml")).unwrap();
    let job = |text: &str| {
        let plan = Plan::read(&read(text)).unwrap();
        let all = objects::build(&plan, &Facilities::default());
        all.iter().find(|it| it.resource.kind == "Job").unwrap().name.clone()
    };
    let first = job(&text);
    assert_eq!(
        job(&text.replace("LEVEL: \"2\"", "LEVEL: \"3\"")),
        first,
        "another function changed"
    );
    assert_ne!(job(&text.replace("timeout: 5m", "timeout: 6m")), first);
}
