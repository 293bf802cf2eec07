//! The CustomResourceDefinition `workflows.cwasi.dev`: `cwasi-operator crd` prints it, and `deploy/kubernetes/crd.yaml`
//! is that. The fields are those of the workflow file (`cwasi_workflow::fields`).
//!
//! A structural schema has one type for each value. Where a file may have a text or a number, the type is
//! `x-kubernetes-int-or-string`; where it may be anything (`trace: 0.1`), the operator's reader checks it. What a schema
//! cannot say are rules in CEL.

use cwasi_workflow::fields::{Field, FieldType, SPEC, Target};
use serde_json::{Map, Value, json};

/// Most functions of a workflow, which bounds what CEL's rules cost.
const FUNCTIONS_MAX: u32 = 256;
/// Most services of a workflow.
const SERVICES_MAX: u32 = 64;
/// Longest text in bytes; longest mapping and list.
const TEXT_MAX: u32 = 4096;
const ENTRIES_MAX: u32 = 256;

/// The definition, as the API wants it.
#[must_use]
pub fn definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": "workflows.cwasi.dev" },
        "spec": {
            "group": "cwasi.dev",
            "scope": "Namespaced",
            "names": {
                "kind": "Workflow",
                "listKind": "WorkflowList",
                "plural": "workflows",
                "singular": "workflow",
                "shortNames": ["cwf"],
                "categories": ["cwasi"],
            },
            "versions": [{
                "name": "v1alpha1",
                "served": true,
                "storage": true,
                "subresources": { "status": {} },
                "additionalPrinterColumns": [
                    column("Ready", "string", ".status.conditions[?(@.type==\"Ready\")].status"),
                    column("Functions", "string", ".status.readyFunctions"),
                    column("Local", "string", ".status.local"),
                    column("Reason", "string", ".status.conditions[?(@.type==\"Ready\")].reason"),
                    column("Age", "date", ".metadata.creationTimestamp"),
                ],
                "schema": { "openAPIV3Schema": schema() },
            }],
        },
    })
}

fn column(name: &str, kind: &str, path: &str) -> Value {
    json!({ "name": name, "type": kind, "jsonPath": path })
}

fn schema() -> Value {
    let mut spec = object(SPEC);
    spec["x-kubernetes-validations"] = json!([rule(
        "!has(self.nodes)",
        "nodes are containerds of a machine: a cluster chooses nodes by podTemplate.spec.nodeSelector",
    )]);
    spec["properties"]["placement"]["x-kubernetes-validations"] = json!([rule(
        "!has(self.move) || !self.move || !has(self.policy) || self.policy == 'auto'",
        "`move` needs policy: auto: the other policies say where functions are",
    )]);
    let functions = &mut spec["properties"]["functions"];
    functions["minProperties"] = json!(1);
    functions["maxProperties"] = json!(FUNCTIONS_MAX);
    functions["x-kubernetes-validations"] = json!([rule(
        "self.all(name, name.matches('^[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?$'))",
        "names of functions are lower-case letters, digits and `-`, at most 42",
    )]);
    functions["additionalProperties"]["x-kubernetes-validations"] = function_rules();
    let services = &mut spec["properties"]["services"];
    services["maxProperties"] = json!(SERVICES_MAX);
    services["x-kubernetes-validations"] = json!([rule(
        "self.all(name, name.matches('^[a-z]([-a-z0-9]{0,40}[a-z0-9])?$'))",
        "names of services are lower-case letters, digits and `-`, first a letter, at most 42",
    )]);
    services["additionalProperties"]["properties"]["health"]["x-kubernetes-validations"] = json!([
        rule("!(has(self.command) && has(self.http))", "keep one of `command` and `http`",)
    ]);
    json!({
        "type": "object",
        "description": "Functions of WebAssembly that call each other: docs/workflow.md",
        "required": ["spec"],
        "properties": { "spec": spec, "status": status() },
    })
}

/// What the reader checks between fields, as far as CEL can say it.
fn function_rules() -> Value {
    let is_secondary = "has(self.role) && self.role == 'secondary'";
    let is_primary = "!has(self.role) || self.role == 'primary'";
    let mut rules = vec![
        rule("has(self.module) != has(self.image)", "a function has either `image` or `module`"),
        rule("!(has(self.replicas) && has(self.scale))", "keep one of `replicas` and `scale`"),
        rule(
            "!has(self.node)",
            "`node` is a containerd of a machine: a cluster chooses nodes by podTemplate.spec.nodeSelector",
        ),
    ];
    for field in ["scale", "replicas", "concurrency", "queue", "triggers", "fanIn", "idle"] {
        rules.push(rule(
            &format!("!has(self.{field}) || ({is_secondary})"),
            &format!("`{field}` needs role: secondary"),
        ));
    }
    rules.push(rule(
        &format!("!has(self.schedule) || {is_primary}"),
        "`schedule` needs role: primary",
    ));
    for field in ["service", "ingress"] {
        rules.push(rule(
            &format!("!has(self.{field}) || has(self.http)"),
            &format!("`{field}` needs a port, such as `http: 8080`"),
        ));
    }
    rules.push(rule(
        "!has(self.ingress) || !has(self.ingress.gateway) || !(has(self.ingress.class) || has(self.ingress.tls))",
        "`ingress.gateway` excludes `class` and `tls`: the Gateway has its own",
    ));
    json!(rules)
}

fn rule(rule: &str, message: &str) -> Value {
    json!({ "rule": rule, "message": message })
}

fn object(fields: &[Field]) -> Value {
    let properties: Map<String, Value> =
        fields.iter().map(|field| (field.name.to_owned(), property(field))).collect();
    let mut schema = json!({ "type": "object", "properties": properties });
    let required: Vec<_> =
        fields.iter().filter(|field| field.required).map(|field| field.name).collect();
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

fn property(field: &Field) -> Value {
    let text = json!({ "type": "string", "maxLength": TEXT_MAX });
    let scalar = json!({ "x-kubernetes-int-or-string": true });
    let anything = json!({ "x-kubernetes-preserve-unknown-fields": true });
    let mut schema = match field.kind {
        FieldType::Text if matches!(field.name, "trace") => anything,
        FieldType::Text if matches!(field.name, "http" | "parts" | "user") => scalar,
        FieldType::Size => scalar,
        FieldType::Text | FieldType::Duration | FieldType::MountTarget | FieldType::Folder => text,
        FieldType::Number(min, max) => {
            let max = max.min(i64::MAX.unsigned_abs());
            json!({ "type": "integer", "format": "int64", "minimum": min, "maximum": max })
        }
        FieldType::Choice(["true", "false"]) => json!({ "type": "boolean" }),
        FieldType::Choice(choices) => json!({ "type": "string", "enum": choices }),
        // A list, or one text.
        FieldType::Texts => anything,
        FieldType::List => {
            json!({ "type": "array", "maxItems": ENTRIES_MAX, "items": scalar })
        }
        FieldType::Map => {
            json!({ "type": "object", "maxProperties": ENTRIES_MAX, "additionalProperties": scalar })
        }
        FieldType::Object(inner) => object(inner),
        FieldType::Objects(inner) => {
            json!({ "type": "array", "maxItems": ENTRIES_MAX, "items": object(inner) })
        }
        FieldType::Named(inner) => {
            json!({ "type": "object", "maxProperties": ENTRIES_MAX, "additionalProperties": object(inner) })
        }
        FieldType::Raw => {
            json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
        }
    };
    schema["description"] = json!(described(field));
    schema
}

fn described(field: &Field) -> String {
    match field.target {
        Target::Annotation(key) => format!("{} (becomes {key})", field.about),
        Target::Kubernetes(what) => format!("{} (becomes: {what})", field.about),
        Target::Oci(_) | Target::Deployment(_) | Target::Inside => field.about.to_owned(),
    }
}

fn status() -> Value {
    let text = json!({ "type": "string" });
    json!({
        "type": "object",
        "properties": {
            "observedGeneration": { "type": "integer", "format": "int64" },
            "readyFunctions": text,
            "functions": workload_statuses(),
            "services": workload_statuses(),
            "local": text,
            "edges": {
                "type": "array",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["caller", "callee"],
                "items": edge_status(),
            },
            "conditions": {
                "type": "array",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
                "items": {
                    "type": "object",
                    "required": ["type", "status", "reason", "message", "lastTransitionTime"],
                    "properties": {
                        "type": text,
                        "status": { "type": "string", "enum": ["True", "False", "Unknown"] },
                        "observedGeneration": { "type": "integer", "format": "int64" },
                        "lastTransitionTime": { "type": "string", "format": "date-time" },
                        "reason": text,
                        "message": text,
                    },
                },
            },
        },
    })
}

/// Objects of functions or services.
fn workload_statuses() -> Value {
    let text = json!({ "type": "string" });
    let count = json!({ "type": "integer", "format": "int32" });
    json!({
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
        "items": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": text,
                "workload": text,
                "image": text,
                "imageDigest": text,
                "replicas": count,
                "readyReplicas": count,
                "endpoint": text,
            },
        },
    })
}

fn edge_status() -> Value {
    let text = json!({ "type": "string" });
    let count = json!({ "type": "integer", "format": "int64" });
    json!({
        "type": "object",
        "required": ["caller", "callee"],
        "properties": {
            "caller": text,
            "callee": text,
            "calls": {
                "type": "object",
                "description": "calls of the last five minutes, by mode",
                "properties": { "embedded": count, "local": count, "networked": count },
            },
            "callsPerSecond": text,
            "networkBytesPerSecond": count,
            "moveAdvised": { "type": "boolean" },
        },
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn the_published_definition_is_the_tables() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/kubernetes/crd.yaml");
        let published: Value = serde_saphyr::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        assert_eq!(published, definition(), "cwasi-operator crd > deploy/kubernetes/crd.yaml");
    }
}
