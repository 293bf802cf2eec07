//! What is generated from the table of fields: the JSON Schema `docs/workflow.schema.json`, and the table in
//! `docs/workflow.md`. `cwasi schema` prints them; tests compare them with the files.

use serde_json::{Map, Value, json};

use crate::fields::services::SERVICE;
use crate::fields::{self, API_VERSION, FUNCTION, Field, FieldType, KIND, NODE, SPEC, Target};

/// Syntax of names, as `cwasi_config::function_name` checks it.
const NAME: &str = "^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$";

/// Syntax of services' names, which are those of Kubernetes' Services.
const SERVICE_NAME: &str = "^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$";

/// Paths at which a function cannot have a mount, as `cwasi_config::mount_target` checks them.
const NO_TARGET: &str = r"(^|/)\.\.(/|$)|^[/.]*$|^(/+\.)*/+(dev|proc|sys)(/|$)";

/// Paths that no folder can have, as `cwasi_config::mount_target::plain_path` checks them.
const NO_PATH: &str = r"(^|/)\.\.(/|$)";

/// The JSON Schema of a workflow file.
#[must_use]
pub fn json_schema() -> Value {
    let mut spec = object(SPEC);
    let functions = &mut spec["properties"]["functions"];
    functions["minProperties"] = json!(1);
    functions["propertyNames"] = json!({ "pattern": NAME });
    functions["additionalProperties"]["oneOf"] =
        json!([{ "required": ["module"] }, { "required": ["image"] }]);
    let triggers = &mut functions["additionalProperties"]["properties"]["triggers"];
    triggers["items"]["properties"]["redis"]["oneOf"] =
        json!([{ "required": ["stream"] }, { "required": ["channel"] }]);
    let services = &mut spec["properties"]["services"];
    services["propertyNames"] = json!({ "pattern": SERVICE_NAME });
    services["additionalProperties"]["properties"]["health"]["not"] =
        json!({ "required": ["command", "http"] });
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "CWASI workflow",
        "type": "object",
        "additionalProperties": false,
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "properties": {
            "apiVersion": { "const": API_VERSION },
            "kind": { "const": KIND },
            "metadata": {
                "type": "object",
                "additionalProperties": false,
                "required": ["name"],
                "properties": {
                    "name": { "type": "string", "pattern": NAME, "description": "becomes cwasi.workflow" },
                    "labels": { "type": "object" },
                    "annotations": { "type": "object" },
                },
            },
            "spec": spec,
        },
    })
}

fn object(fields: &[Field]) -> Value {
    let properties: Map<String, Value> =
        fields.iter().map(|field| (field.name.to_owned(), property(field))).collect();
    let required: Vec<_> =
        fields.iter().filter(|field| field.required).map(|field| field.name).collect();
    let mut schema =
        json!({ "type": "object", "additionalProperties": false, "properties": properties });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

fn property(field: &Field) -> Value {
    let text = json!(["string", "number", "boolean"]);
    let mut schema = match field.kind {
        FieldType::Text => json!({ "type": text }),
        FieldType::Number(min, u64::MAX) => json!({ "type": "integer", "minimum": min }),
        FieldType::Number(min, max) => json!({ "type": "integer", "minimum": min, "maximum": max }),
        FieldType::MountTarget => {
            json!({ "type": "string", "pattern": "^/", "not": { "pattern": NO_TARGET } })
        }
        FieldType::Folder => {
            json!({ "type": "string", "pattern": "^/", "not": { "pattern": NO_PATH } })
        }
        FieldType::Duration => json!({ "type": "string", "pattern": "^[0-9]" }),
        FieldType::Size => json!({ "type": ["string", "integer"], "pattern": "^[0-9]" }),
        // YAML's readers make booleans of `true` and `false`.
        FieldType::Choice(["true", "false"]) => json!({ "type": "boolean" }),
        FieldType::Choice(choices) => json!({ "enum": choices }),
        FieldType::Texts => json!({ "type": ["array", "string"], "items": { "type": text } }),
        FieldType::List => json!({ "type": "array", "items": { "type": text } }),
        FieldType::Map => json!({ "type": "object", "additionalProperties": { "type": text } }),
        FieldType::Object(inner) => object(inner),
        FieldType::Objects(inner) => json!({ "type": "array", "items": object(inner) }),
        FieldType::Named(inner) => {
            json!({ "type": "object", "additionalProperties": object(inner) })
        }
        FieldType::Raw => json!({ "type": "object" }),
    };
    schema["description"] = json!(described(field));
    schema
}

fn described(field: &Field) -> String {
    match field.target {
        Target::Annotation(key) => format!("{} (becomes {key})", field.about),
        Target::Oci(path) => format!("{} (becomes {path})", field.about),
        Target::Deployment(_) | Target::Kubernetes(_) | Target::Inside => field.about.to_owned(),
    }
}

/// The fields of the file, as tables of Markdown.
#[must_use]
pub fn markdown() -> String {
    let mut text = String::new();
    let tables = [
        ("`spec`", SPEC),
        ("`spec.functions.NAME`", FUNCTION),
        ("`spec.services.NAME`", SERVICE),
        ("`spec.nodes.NAME`", NODE),
    ];
    for (heading, fields) in tables {
        text += &format!("| field of {heading} | meaning; default | becomes |\n|---|---|---|\n");
        for (path, field) in fields::all(fields) {
            let target = match field.target {
                Target::Annotation(key) => format!("`{key}`"),
                Target::Oci(path) => format!("OCI `{path}`"),
                Target::Deployment(what) => what.to_owned(),
                Target::Kubernetes(what) => format!("Kubernetes: {what}"),
                Target::Inside => String::new(),
            };
            text += &format!("| `{path}` | {} | {target} |\n", field.about);
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn docs(name: &str) -> String {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
        fs::read_to_string(path).unwrap()
    }

    #[test]
    fn the_published_schema_is_the_tables() {
        let published: Value = serde_json::from_str(&docs("workflow.schema.json")).unwrap();
        assert_eq!(published, json_schema(), "cwasi schema > docs/workflow.schema.json");
    }

    #[test]
    fn the_documentation_has_the_table() {
        for line in markdown().lines() {
            let docs = docs("workflow.md");
            assert!(docs.contains(line), "missing (cwasi schema --markdown): {line}");
        }
    }
}
