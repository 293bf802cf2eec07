//! `podTemplate`: partial pods that users merge into those of a workflow, a function or a service, and what of them the
//! operator has to know.

use std::collections::BTreeMap;

use cwasi_config::annotations::CRI_CONTAINER_NAME;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde_json::Value;

/// The annotations of a function's container as its shim gets them, after those of `templates`, the later ones of which
/// override.
pub(super) fn annotations(
    own: &BTreeMap<String, String>,
    function: &str,
    templates: [&PodTemplateSpec; 2],
) -> BTreeMap<String, String> {
    let mut of_pod: BTreeMap<_, _> =
        own.iter().map(|(key, value)| (format!("{key}.{function}"), value.clone())).collect();
    for template in templates {
        let given = template.metadata.as_ref().and_then(|it| it.annotations.as_ref());
        of_pod.extend(given.into_iter().flatten().map(|(key, value)| (key.clone(), value.clone())));
    }
    of_pod.insert(CRI_CONTAINER_NAME.to_owned(), function.to_owned());
    of_pod
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
