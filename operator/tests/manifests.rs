//! The manifests of `deploy/kubernetes` and what the chart makes of the values in `tests/chart`: objects of Kubernetes
//! without a field that it does not know. `make test-chart` tests that the chart makes them.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use k8s_openapi::api::{apps, core, networking, node, rbac};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1 as apiextensions;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

const PLAIN: [&str; 5] =
    ["node/node.yaml", "runtimeclass.yaml", "crd.yaml", "operator.yaml", "metrics.yaml"];

fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    let path = checkout().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn plain(name: &str) -> Vec<Value> {
    objects(&format!("deploy/kubernetes/{name}"))
}

/// The objects of a file.
fn objects(path: &str) -> Vec<Value> {
    let text = read(path);
    let objects: Vec<Value> =
        text.split("\n---\n").map(|text| serde_saphyr::from_str(text).unwrap()).collect();
    assert!(objects.iter().all(Value::is_object), "{path} has a part without an object");
    objects
}

/// The files that Helm makes of `tests/chart`.
fn golden() -> Vec<String> {
    let folder = fs::read_dir(checkout().join("tests/chart")).unwrap();
    let names = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let golden: Vec<_> = names.filter(|name| name.ends_with(".golden.yaml")).collect();
    assert!(golden.len() >= 2, "{golden:?}");
    golden.into_iter().map(|name| format!("tests/chart/{name}")).collect()
}

/// Fields that are lost when Kubernetes reads `given` as a `K`.
fn lost<K: DeserializeOwned + Serialize>(given: &Value) -> Vec<String> {
    fn compare(given: &Value, known: &Value, path: &str, lost: &mut Vec<String>) {
        match (given, known) {
            (Value::Object(given), Value::Object(known)) => {
                for (key, value) in given {
                    let path = format!("{path}.{key}");
                    let is_empty = value.as_object().is_some_and(serde_json::Map::is_empty)
                        || value.as_array().is_some_and(Vec::is_empty);
                    match known.get(key) {
                        Some(known) => compare(value, known, &path, lost),
                        None if is_empty => {}
                        None => lost.push(path),
                    }
                }
            }
            (Value::Array(given), Value::Array(known)) if given.len() == known.len() => {
                for (given, known) in given.iter().zip(known) {
                    compare(given, known, path, lost);
                }
            }
            (given, known) if given == known => {}
            (given, known) if given.as_f64().is_some() && given.as_f64() == known.as_f64() => {}
            _ => lost.push(format!("{path}: {given} is {known}")),
        }
    }
    let object: K =
        serde_json::from_value(given.clone()).unwrap_or_else(|error| panic!("{error} in {given}"));
    let mut lost = Vec::new();
    compare(given, &serde_json::to_value(object).unwrap(), "", &mut lost);
    lost
}

fn lost_fields(object: &Value) -> Vec<String> {
    let kind = (object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
    match kind {
        ("v1", "Namespace") => lost::<core::v1::Namespace>(object),
        ("v1", "Secret") => lost::<core::v1::Secret>(object),
        ("v1", "ServiceAccount") => lost::<core::v1::ServiceAccount>(object),
        ("v1", "Service") => lost::<core::v1::Service>(object),
        ("apps/v1", "DaemonSet") => lost::<apps::v1::DaemonSet>(object),
        ("apps/v1", "Deployment") => lost::<apps::v1::Deployment>(object),
        ("node.k8s.io/v1", "RuntimeClass") => lost::<node::v1::RuntimeClass>(object),
        ("networking.k8s.io/v1", "NetworkPolicy") => lost::<networking::v1::NetworkPolicy>(object),
        ("rbac.authorization.k8s.io/v1", "Role") => lost::<rbac::v1::Role>(object),
        ("rbac.authorization.k8s.io/v1", "RoleBinding") => lost::<rbac::v1::RoleBinding>(object),
        ("rbac.authorization.k8s.io/v1", "ClusterRole") => lost::<rbac::v1::ClusterRole>(object),
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding") => {
            lost::<rbac::v1::ClusterRoleBinding>(object)
        }
        ("apiextensions.k8s.io/v1", "CustomResourceDefinition") => {
            lost::<apiextensions::CustomResourceDefinition>(object)
        }
        kind => panic!("the test does not know {kind:?}"),
    }
}

#[test]
fn all_are_objects_of_kubernetes() {
    let files = PLAIN.map(|name| format!("deploy/kubernetes/{name}")).into_iter().chain(golden());
    for file in files {
        for object in objects(&file) {
            let lost = lost_fields(&object);
            assert!(lost.is_empty(), "{file}, {}: {lost:#?}", object["metadata"]["name"]);
        }
    }
}

#[test]
fn one_file_has_all_that_an_installation_needs() {
    let parts = ["node/node.yaml", "runtimeclass.yaml", "crd.yaml", "operator.yaml"];
    let parts: Vec<Value> = parts.into_iter().flat_map(plain).collect();
    assert_eq!(plain("install.yaml"), parts, "make manifests");
}

#[test]
fn the_chart_has_the_definition_and_the_version_of_the_programs() {
    assert_eq!(read("deploy/helm/cwasi/files/crd.yaml"), read("deploy/kubernetes/crd.yaml"));
    let chart: Value = serde_saphyr::from_str(&read("deploy/helm/cwasi/Chart.yaml")).unwrap();
    for key in ["version", "appVersion"] {
        assert_eq!(chart[key], env!("CARGO_PKG_VERSION"), "{key}");
    }
}

fn named<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects.iter().filter(|object| object["kind"] == kind).collect()
}

/// In one namespace, the operator has no rights outside of it but its Lease.
#[test]
fn an_operator_of_one_namespace_has_no_rights_on_the_cluster() {
    let objects = objects("tests/chart/namespaced.golden.yaml");
    assert!(named(&objects, "ClusterRole").is_empty());
    assert!(named(&objects, "ClusterRoleBinding").is_empty());
    let cluster = plain("operator.yaml");
    for role in named(&objects, "Role") {
        let expected = match role["metadata"]["namespace"].as_str() {
            Some("shop") => named(&cluster, "ClusterRole")[0],
            namespace => {
                assert_eq!(namespace, Some("cwasi-system"));
                named(&cluster, "Role")[0]
            }
        };
        assert_eq!(role["rules"], expected["rules"]);
    }
    let container = &named(&objects, "Deployment")[0]["spec"]["template"]["spec"]["containers"][0];
    let variable = serde_json::json!({ "name": "CWASI_NAMESPACE", "value": "shop" });
    assert!(container["env"].as_array().unwrap().contains(&variable));
}

/// Every path of keys below a value, but into those that have none of their own.
fn keys(values: &Value, path: &str, is_whole: &dyn Fn(&str) -> bool, found: &mut BTreeSet<String>) {
    for (key, value) in values.as_object().unwrap() {
        let path = format!("{path}/{key}");
        if value.is_object() && !is_whole(&path) {
            keys(value, &path, is_whole, found);
        } else {
            found.insert(path);
        }
    }
}

/// `values.schema.json` follows `values.yaml`: a value without a description in it would be refused.
#[test]
fn the_schema_has_every_value_and_no_other() {
    let schema: Value =
        serde_json::from_str(&read("deploy/helm/cwasi/values.schema.json")).unwrap();
    let values: Value = serde_saphyr::from_str(&read("deploy/helm/cwasi/values.yaml")).unwrap();
    fn properties(schema: &Value, of: &Value, path: &str, found: &mut BTreeSet<String>) {
        let of = match of["$ref"].as_str() {
            Some(name) => schema.pointer(name.trim_start_matches('#')).unwrap(),
            None => of,
        };
        match of["properties"].as_object() {
            // requests and limits are the same in every container
            Some(inside) if !path.ends_with("/resources") => {
                assert_eq!(of["additionalProperties"], false, "{path}");
                for (key, value) in inside {
                    properties(schema, value, &format!("{path}/{key}"), found);
                }
            }
            _ => {
                found.insert(path.to_owned());
            }
        }
    }
    let mut described = BTreeSet::new();
    properties(&schema, &schema, "", &mut described);
    // Helm gives it to a chart that is a part of another one.
    assert!(described.remove("/global"));
    let mut used = BTreeSet::new();
    keys(&values, "", &|path| described.contains(path), &mut used);
    assert_eq!(used, described);
}

/// What the goldens show is the whole chart: `all` changes every value.
#[test]
fn the_case_all_changes_every_value() {
    let values: Value = serde_saphyr::from_str(&read("deploy/helm/cwasi/values.yaml")).unwrap();
    let all: Value = serde_saphyr::from_str(&read("tests/chart/all.yaml")).unwrap();
    let is_whole = |path: &str| {
        ["/resources", "/nodeSelector", "/overhead", "/annotations"]
            .iter()
            .any(|end| path.ends_with(end))
    };
    let mut paths = BTreeSet::new();
    keys(&values, "", &is_whole, &mut paths);
    let same: Vec<_> = paths
        .iter()
        .filter(|path| all.pointer(path).is_none_or(|value| Some(value) == values.pointer(path)))
        .collect();
    // Of `namespaced`; the definition is crd.yaml; one parameter of the gateway excludes the other.
    let elsewhere = [
        "/crd/create",
        "/gateway/allowAnonymous",
        "/node/enabled",
        "/operator/enabled",
        "/operator/namespace",
        "/runtimeClass/create",
    ];
    assert_eq!(same, elsewhere);
}
