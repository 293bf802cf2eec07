//! WOW's I/O-bound action: waits as long as an HTTP request would.

use std::time::Duration;

use serde_json::{Value, json};

/// Milliseconds of WOW's action.
const REQUEST_MS: u64 = 300;

/// Waits for 300 ms, or for `milliseconds`.
///
/// # Errors
/// Never.
pub fn net(parameters: &Value) -> Result<Value, String> {
    let waits = parameters["milliseconds"].as_u64().unwrap_or(REQUEST_MS);
    std::thread::sleep(Duration::from_millis(waits));
    Ok(json!({ "request_time": waits }))
}
