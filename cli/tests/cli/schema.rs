//! The published JSON Schema, by a validator that is not ours, beside the reader of workflow files.

use std::path::Path;

use boon::{Compiler, SchemaIndex, Schemas};
use cwasi_workflow::{Additions, Workflow};
use serde_json::{Value, json};

const SCHEMA: &str = "workflow.schema.json";

/// A file with a field of each kind. JSON is YAML, too.
fn good() -> Value {
    json!({
        "apiVersion": "cwasi.dev/v1alpha1",
        "kind": "Workflow",
        "metadata": { "name": "street", "labels": { "team": "video" } },
        "spec": {
            "nodes": { "cloud": { "address": "/run/cloud.sock" } },
            "functions": {
                "frames": {
                    "module": "frames.wasm",
                    "args": ["/in/video.mp4", 3],
                    "env": { "LEVEL": "2" },
                    "workingDir": "/in",
                    "mounts": [{ "source": "in", "target": "/in", "readOnly": true }],
                },
                "detect": {
                    "image": "localhost/detect:1",
                    "role": "secondary",
                    "node": "cloud",
                    "replicas": 2,
                    "hostNetwork": true,
                    "timeout": "30s",
                    "memory": "64MiB",
                    "allow": ["frames", "other/*"],
                    "fanIn": { "parts": "caller", "timeout": "5s" },
                    "embed": { "inner": "utils" },
                },
                "orders": {
                    "image": "localhost/orders:1",
                    "role": "secondary",
                    "triggers": [{ "redis": { "stream": "orders" } }, { "redis": { "channel": "a" } }],
                },
                "utils": { "role": "library", "module": "utils.wasm" },
            },
        },
    })
}

/// A value at a path, and a part of the reader's error.
type Fault = (&'static str, Value, &'static str);

/// Faults that the schema describes; `null` removes the field.
fn described() -> Vec<Fault> {
    vec![
        ("/kind", json!("Workflows"), "1:"),
        ("/apiVersion", json!("cwasi.dev/v1"), "apiVersion must be cwasi.dev/v1alpha1"),
        ("/metadata", Value::Null, "has no `metadata`"),
        ("/metadata/name", Value::Null, "metadata has no `name`"),
        ("/metadata/name", json!("a b"), "metadata.name: `a b`"),
        ("/spec/more", json!(1), "spec has the unknown field `more`"),
        ("/spec/functions", json!({}), "spec.functions must have 1 to"),
        ("/spec/functions/frames/modul", json!("x"), "did you mean `module`?"),
        ("/spec/functions/frames/module", Value::Null, "neither `module` nor `image`"),
        ("/spec/functions/frames/image", json!("i:1"), "both `module` and `image`"),
        ("/spec/functions/frames/args", json!("a b"), "args must be a list such as [Ada, Grace]"),
        ("/spec/functions/frames/env", json!(["A=1"]), "env must be a mapping, not a list"),
        ("/spec/functions/frames/mounts/0/target", Value::Null, "has no `target`"),
        ("/spec/functions/detect/role", json!("second"), "must be primary, secondary or library"),
        ("/spec/functions/detect/replicas", json!("many"), "many is not a whole number"),
        ("/spec/functions/detect/replicas", json!(65), "is not a whole number from 1 to 64"),
        ("/spec/functions/detect/replicas", json!(0), "is not a whole number from 1 to 64"),
        ("/spec/functions/detect/concurrency", json!(257), "from 1 to 256"),
        ("/spec/functions/detect/queue", json!(65537), "from 0 to 65536"),
        ("/spec/functions/detect/maxRequests", json!(0), "is not a whole number from 1"),
        ("/spec/functions/frames/mounts/0/target", json!("/"), "is the whole container"),
        ("/spec/functions/frames/mounts/0/target", json!("//dev"), "device files"),
        ("/spec/functions/frames/mounts/0/target", json!("/proc/x"), "in a folder of the kernel"),
        ("/spec/functions/frames/mounts/0/target", json!("in"), "must be an absolute path"),
        ("/spec/functions/frames/mounts/0/target", json!("/a/../b"), "must be an absolute path"),
        ("/spec/functions/frames/workingDir", json!("in"), "workingDir: in must be an absolute"),
        ("/spec/functions/frames/workingDir", json!("/a/../b"), "must be an absolute path"),
        ("/spec/functions/detect/hostNetwork", json!("maybe"), "must be true or false"),
        ("/spec/functions/orders/triggers", json!("orders"), "triggers must be a list"),
        ("/spec/functions/orders/triggers/0/redis", json!({}), "one of `stream` and `channel`"),
        ("/spec/functions/orders/triggers/0/redis/channel", json!("a"), "one of `stream` and"),
        ("/spec/functions/orders/triggers/0/kafka", json!({}), "has the unknown field `kafka`"),
        ("/spec/functions/detect/timeout", json!("soon"), "timeout"),
        ("/spec/functions/detect/memory", json!("much"), "memory"),
        ("/spec/functions/detect/fanIn/part", json!(2), "did you mean `parts`?"),
        ("/spec/nodes/cloud/address", Value::Null, "has no `address`"),
    ]
}

/// Faults that only the reader finds: they concern more than one field, or a range.
fn only_read() -> Vec<Fault> {
    vec![
        ("/spec/functions/frames/replicas", json!(2), "a primary runs once"),
        ("/spec/functions/detect/node", json!("clout"), "did you mean `cloud`?"),
        ("/spec/functions/utils/args", json!(["x"]), "a library has no container"),
        ("/spec/functions/detect/embed/inner", json!("util"), "did you mean `utils`?"),
    ]
}

/// The good file with one fault.
fn with((path, value, _): &Fault) -> Value {
    let mut file = good();
    let (parent, key) = path.rsplit_once('/').unwrap();
    let parent = file.pointer_mut(parent).unwrap().as_object_mut().unwrap();
    match value {
        Value::Null => parent.remove(key),
        value => parent.insert(key.to_owned(), value.clone()),
    };
    file
}

struct Validator(Schemas, SchemaIndex);

impl Validator {
    fn new() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(SCHEMA);
        let text = std::fs::read_to_string(path).unwrap();
        let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
        compiler.add_resource(SCHEMA, serde_json::from_str(&text).unwrap()).unwrap();
        let index = compiler.compile(SCHEMA, &mut schemas).unwrap();
        Self(schemas, index)
    }

    fn accepts(&self, file: &Value) -> bool {
        self.0.validate(file, self.1).is_ok()
    }
}

/// All faults that the reader finds, a line each.
fn read(file: &Value) -> Result<(), String> {
    let text = serde_json::to_string_pretty(file).unwrap();
    let problems = Workflow::parse(&text, Path::new("/w"), &Additions::default()).err();
    let lines = problems.into_iter().flatten().map(|it| format!("{}: {}\n", it.location, it.text));
    let lines: String = lines.collect();
    if lines.is_empty() { Ok(()) } else { Err(lines) }
}

#[test]
fn good_files_are_accepted_by_both() {
    let validator = Validator::new();
    assert_eq!((validator.accepts(&good()), read(&good())), (true, Ok(())));
}

#[test]
fn bad_files_are_refused_by_both_where_a_schema_can_see_the_fault() {
    let validator = Validator::new();
    for (faults, is_described) in [(described(), true), (only_read(), false)] {
        for fault in &faults {
            let (file, (path, value, part)) = (with(fault), fault);
            assert_eq!(validator.accepts(&file), !is_described, "{path} = {value}");
            let said = read(&file).expect_err(path);
            assert!(said.contains(part), "{path} = {value}: {part} is missing in {said}");
        }
    }
}

#[test]
fn all_faults_are_told_at_once_with_their_places() {
    let mut file = good();
    let faults = ["/kind", "/spec/functions/frames/modul", "/spec/functions/detect/role"];
    for path in faults {
        let (parent, key) = path.rsplit_once('/').unwrap();
        let parent = file.pointer_mut(parent).unwrap().as_object_mut().unwrap();
        parent.insert(key.to_owned(), json!("wrong"));
    }
    let text = serde_json::to_string_pretty(&file).unwrap();
    let problems = Workflow::parse(&text, Path::new("/w"), &Additions::default()).unwrap_err();
    let locations: Vec<_> = problems.iter().map(|problem| problem.location.to_string()).collect();
    let place = |part: &str, after: usize| {
        let (line, text) = text.lines().enumerate().find(|(_, line)| line.contains(part)).unwrap();
        format!("{}:{}", line + 1, text.find(part).unwrap() + after + 1)
    };
    let expected = [
        place("\"kind\"", "\"kind\": ".len()),
        place("\"role\": \"wrong\"", "\"role\": ".len()),
        place("\"modul\"", 0),
    ];
    assert_eq!(locations, expected, "{problems:?}");
}
