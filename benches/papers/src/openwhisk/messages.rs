//! Bodies of OpenWhisk's requests.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

/// Time that an activation has: longer than all measurements of one action.
const DEADLINE: Duration = Duration::from_secs(3600);

/// Body of an `/init` that delivers this code to an action.
#[must_use]
pub fn init(name: &str, code: &[u8]) -> Arc<str> {
    let code = BASE64_STANDARD.encode(code);
    let value = json!({
        "name": name, "main": "main", "code": code, "binary": true, "env": {}, "annotations": {}
    });
    json!({ "value": value }).to_string().into()
}

/// Body of a `/run`. WOW's executor takes the deadline as a text only.
#[must_use]
pub fn activation(name: &str, parameters: &Value) -> Arc<str> {
    let ends = SystemTime::now() + DEADLINE;
    let deadline = ends.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let body = json!({
        "value": parameters, "namespace": "guest", "action_name": name, "activation_id": "papers",
        "transaction_id": "papers", "deadline": deadline.to_string()
    });
    body.to_string().into()
}
