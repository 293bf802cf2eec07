//! `podTemplate`: partial pods that users merge into those of a workflow, a function or a service, and what of them the
//! operator has to know.

use std::collections::BTreeMap;

use cwasi_config::annotations::CRI_CONTAINER_NAME;
use cwasi_config::{AnnotationError, FunctionSpec};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde_json::Value;

/// What the annotations of a function's container say when `templates`, the later ones of which override, are merged into
/// its pod.
///
/// # Errors
/// All problems, which are of the templates: the workflow file's reader has refused others.
pub(super) fn parsed(
    own: &BTreeMap<String, String>,
    function: &str,
    templates: [&PodTemplateSpec; 2],
) -> Result<FunctionSpec, AnnotationError> {
    let mut of_pod: BTreeMap<_, _> =
        own.iter().map(|(key, value)| (format!("{key}.{function}"), value.as_str())).collect();
    for template in templates {
        let given = template.metadata.as_ref().and_then(|it| it.annotations.as_ref());
        let given = given.into_iter().flatten();
        of_pod.extend(given.map(|(key, value)| (key.clone(), value.as_str())));
    }
    of_pod.insert(CRI_CONTAINER_NAME.to_owned(), function);
    FunctionSpec::parse(of_pod.iter().map(|(key, value)| (key.as_str(), *value)))
}

/// Whether a pod has the node's network, by the last of `templates` that says so, or else by its field.
pub(super) fn host_network(templates: [&PodTemplateSpec; 2], field: bool) -> bool {
    let said = templates.iter().rev().find_map(|it| it.spec.as_ref()?.host_network);
    said.unwrap_or(field)
}

/// A partial PodTemplateSpec. Fields that it does not have are faults: they would be lost silently.
pub(super) fn read(raw: Option<&Value>, path: &str, faults: &mut Vec<String>) -> PodTemplateSpec {
    let Some(raw) = raw else { return PodTemplateSpec::default() };
    match serde_json::from_value::<PodTemplateSpec>(raw.clone()) {
        Ok(template) => {
            if let Ok(known) = serde_json::to_value(&template) {
                lost(raw, &known, path, faults);
            }
            template
        }
        Err(error) => {
            faults.push(format!("{path}: {error}"));
            PodTemplateSpec::default()
        }
    }
}

fn lost(given: &Value, known: &Value, path: &str, faults: &mut Vec<String>) {
    match (given, known) {
        (Value::Object(given), Value::Object(known)) => {
            for (key, value) in given.iter().filter(|(_, value)| !is_empty(value)) {
                match known.get(key) {
                    Some(known) => lost(value, known, &format!("{path}.{key}"), faults),
                    None => faults.push(format!("{path} has the unknown field `{key}`")),
                }
            }
        }
        (Value::Array(given), Value::Array(known)) => {
            for (index, (given, known)) in given.iter().zip(known).enumerate() {
                lost(given, known, &format!("{path}[{index}]"), faults);
            }
        }
        _ => {}
    }
}

/// What a serializer leaves out.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}
