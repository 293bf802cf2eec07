//! Server-side apply: several managers write parts of one object, and each may leave out what it wrote before.
//! As in Kubernetes, but that lists are one value, and that every apply is one by force.
//! <https://kubernetes.io/docs/reference/using-api/server-side-apply/>

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// What each manager applied last to one object. Of that it owns the values which the object still has.
#[derive(Clone, Debug, Default)]
pub struct Applied(BTreeMap<String, Value>);

impl Applied {
    /// Changes `object` to what it is when `manager` applies `body`.
    pub fn apply(&mut self, object: &mut Value, manager: &str, body: Value) {
        let before = self.0.insert(manager.to_owned(), body.clone()).unwrap_or_default();
        let others: Vec<_> = self.0.values().cloned().collect();
        for path in leaves(&before) {
            let value = at(&before, &path);
            let is_left = others.iter().all(|other| at(other, &path) != value);
            if is_left && at(object, &path) == value {
                remove(object, &path);
            }
        }
        set(object, body);
        if object["kind"] == "Deployment" && object["spec"]["replicas"].is_null() {
            object["spec"]["replicas"] = json!(1);
        }
        object["metadata"]["managedFields"] = self.managed_fields(object);
    }

    fn managed_fields(&self, object: &Value) -> Value {
        let entries = self.0.iter().map(|(manager, body)| {
            let mut fields = json!({});
            for path in leaves(body).into_iter().filter(|path| at(body, path) == at(object, path)) {
                let keys = path.iter().map(|key| format!("f:{key}"));
                *keys.fold(&mut fields, |fields, key| &mut fields[key]) = json!({});
            }
            let kind = "FieldsV1";
            json!({ "manager": manager, "operation": "Apply", "fieldsType": kind, "fieldsV1": fields })
        });
        entries.collect()
    }
}

/// Paths of all values that are no objects.
fn leaves(value: &Value) -> Vec<Vec<String>> {
    let Value::Object(fields) = value else { return vec![Vec::new()] };
    let below = fields.iter().flat_map(|(key, value)| {
        leaves(value).into_iter().map(move |rest| [vec![key.clone()], rest].concat())
    });
    below.collect()
}

fn at<'v>(value: &'v Value, path: &[String]) -> Option<&'v Value> {
    path.iter().try_fold(value, |value, key| value.get(key))
}

fn remove(object: &mut Value, path: &[String]) {
    let Some((last, parents)) = path.split_last() else { return };
    let parent = parents.iter().try_fold(object, |object, key| object.get_mut(key));
    if let Some(Value::Object(fields)) = parent {
        fields.remove(last);
    }
}

fn set(object: &mut Value, body: Value) {
    let Value::Object(fields) = body else {
        *object = body;
        return;
    };
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    for (key, value) in fields {
        set(&mut object[key], value);
    }
}
