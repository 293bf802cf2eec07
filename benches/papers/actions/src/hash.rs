//! WOW's CPU-bound action: hashes a text again and again, with the parameters of WOW's own.

use serde_json::{Value, json};

/// Hashes `input` with blake3, then the hash, `iterations` times in all.
///
/// # Errors
/// When a parameter is missing.
pub fn hash(parameters: &Value) -> Result<Value, String> {
    let iterations = parameters["iterations"].as_u64().ok_or("`iterations` has to be a number")?;
    let input = parameters["input"].as_str().ok_or("`input` has to be a text")?;
    let mut digest = blake3::hash(input.as_bytes());
    for _ in 1..iterations {
        digest = blake3::hash(digest.as_bytes());
    }
    Ok(json!({ "hash": digest.to_hex().as_str() }))
}
