//! The thesis' action of the capacity test: sleeps.

use std::time::Duration;

use serde_json::{Value, json};

/// Sleeps for `milliseconds`.
///
/// # Errors
/// When the parameter is missing.
pub fn sleep(parameters: &Value) -> Result<Value, String> {
    let time = parameters["milliseconds"].as_u64().ok_or("`milliseconds` has to be a number")?;
    std::thread::sleep(Duration::from_millis(time));
    Ok(json!({ "slept": time }))
}
