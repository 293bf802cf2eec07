//! Whether an object is as it was applied. It is, if it has every value that was applied, and the annotation
//! [`names::APPLIED`] with the digest of all of them. The digest tells of fields that are no longer applied; the values
//! tell of what somebody else has changed. Fields that others have added are theirs, as with server-side apply.

use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::objects::names;

const DIGEST_BYTES: usize = 16;

/// Digest of an object as it is applied, without the annotation.
#[must_use]
pub fn digest(body: &Value) -> String {
    hex::encode(&Sha256::digest(body.to_string())[..DIGEST_BYTES])
}

/// True if `object` has all of `body`, and the `digest` of nothing else.
pub(super) fn is_as_applied(object: &DynamicObject, body: &Value, digest: &str) -> bool {
    if object.annotations().get(names::APPLIED).map(String::as_str) != Some(digest) {
        return false;
    }
    let metadata = json!(object.metadata);
    fields(body).all(|(key, value)| match key {
        "apiVersion" | "kind" => true,
        "metadata" => contains(Some(&metadata), value),
        _ => contains(object.data.get(key), value),
    })
}

fn fields(value: &Value) -> impl Iterator<Item = (&str, &Value)> {
    value.as_object().into_iter().flatten().map(|(key, value)| (key.as_str(), value))
}

/// True if `found` has all that `wanted` has. A list with further entries is another list: whether these are somebody
/// else's, only the API knows.
fn contains(found: Option<&Value>, wanted: &Value) -> bool {
    match (found, wanted) {
        // The API leaves out what is empty.
        (None | Some(Value::Null), _) => is_empty(wanted),
        (Some(found @ Value::Object(_)), Value::Object(_)) => {
            fields(wanted).all(|(key, value)| contains(found.get(key), value))
        }
        (Some(Value::Array(found)), Value::Array(wanted)) => {
            found.len() == wanted.len()
                && found.iter().zip(wanted).all(|(found, wanted)| contains(Some(found), wanted))
        }
        (Some(found), wanted) => found == wanted,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.values().all(is_empty),
        Value::Array(entries) => entries.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body() -> Value {
        json!({
            "kind": "Deployment",
            "metadata": { "name": "d", "labels": { "a": "1" } },
            "spec": { "replicas": 2, "template": { "spec": {
                "containers": [{ "name": "c", "args": ["x"], "resources": {} }],
            } } },
        })
    }

    /// What the API has of it, with the values that it adds.
    fn object(change: impl FnOnce(&mut Value)) -> DynamicObject {
        let mut object = body();
        object["metadata"]["uid"] = json!("u");
        object["metadata"]["annotations"] =
            json!({ "cwasi.dev/applied": digest(&body()), "b": "2" });
        object["spec"]["progressDeadlineSeconds"] = json!(600);
        object["spec"]["template"]["spec"]["containers"][0]["resources"] = Value::Null;
        object["status"] = json!({ "replicas": 2 });
        change(&mut object);
        serde_json::from_value(object).unwrap()
    }

    fn is_current(change: impl FnOnce(&mut Value)) -> bool {
        is_as_applied(&object(change), &body(), &digest(&body()))
    }

    #[test]
    fn what_others_add_is_no_drift() {
        assert!(is_current(|_| {}));
        assert!(is_current(|it| it["metadata"]["labels"]["theirs"] = json!("x")));
        assert!(is_current(|it| it["spec"]["paused"] = json!(true)));
    }

    #[test]
    fn what_others_change_or_remove_is_drift() {
        assert!(!is_current(|it| it["spec"]["replicas"] = json!(3)));
        assert!(!is_current(|it| it["metadata"]["labels"] = json!({})));
        let args = |args: Value| {
            move |it: &mut Value| it["spec"]["template"]["spec"]["containers"][0]["args"] = args
        };
        assert!(!is_current(args(json!(["x", "y"]))));
        assert!(!is_current(args(json!([]))));
        assert!(!is_current(args(Value::Null)));
    }

    /// A field that is no longer applied is still there.
    #[test]
    fn a_field_less_is_another_digest() {
        let mut less = body();
        less["spec"]["replicas"] = Value::Null;
        assert!(!is_as_applied(&object(|_| {}), &less, &digest(&less)));
        assert!(!is_current(|it| it["metadata"]["annotations"] = json!({})));
    }
}
