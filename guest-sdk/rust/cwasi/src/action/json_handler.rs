//! Handlers of JSON; `#[cwasi::action]` makes one.

use std::fmt::Display;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Runs an action with a payload that is JSON; an empty one has no members.
///
/// # Errors
/// The message that the caller gets.
pub fn run<P, R, E>(action: impl Fn(P) -> Result<R, E>, payload: &[u8]) -> Result<Vec<u8>, String>
where
    P: DeserializeOwned,
    R: Serialize,
    E: Display,
{
    let payload = if payload.is_empty() { b"{}" } else { payload };
    let parameters = serde_json::from_slice(payload)
        .map_err(|error| format!("the parameters are not those of the action: {error}"))?;
    let result = action(parameters).map_err(|error| error.to_string())?;
    serde_json::to_vec(&result).map_err(|error| format!("the result is no JSON: {error}"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn json_goes_in_and_comes_out() {
        let twice = |given: Value| match given["n"].as_i64() {
            Some(n) => Ok(json!({ "n": 2 * n })),
            None => Err("no n"),
        };
        assert_eq!(run(twice, br#"{"n": 21}"#).as_deref(), Ok(&br#"{"n":42}"#[..]));
        assert_eq!(run(twice, b""), Err("no n".to_owned()));
        let malformed = run(twice, b"{").unwrap_err();
        assert!(malformed.starts_with("the parameters are not those of the action"), "{malformed}");
    }
}
