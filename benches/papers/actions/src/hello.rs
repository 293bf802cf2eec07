//! The thesis' smallest action: greets.

use serde_json::{Value, json};

/// Greets `name`.
///
/// # Errors
/// Never.
pub fn hello(parameters: &Value) -> Result<Value, String> {
    let name = parameters["name"].as_str().unwrap_or("there");
    Ok(json!({ "greeting": format!("Hello, {name}") }))
}
