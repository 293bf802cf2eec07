//! Actions of WOW and of the thesis: a JSON object in, a JSON object out. Guests (`benches/guests/actions`) and native
//! programs (`src/bin`) share this source, one file for each action.

mod hash;
mod hello;
mod net;
mod prime;
mod sleep;

use std::process::ExitCode;

use serde_json::{Value, json};

pub use hash::hash;
pub use hello::hello;
pub use net::net;
pub use prime::prime;
pub use sleep::sleep;

/// What an action does with its parameters.
pub type Action = fn(&Value) -> Result<Value, String>;

/// All actions by their names.
pub const ACTIONS: [(&str, Action); 5] =
    [("hello", hello), ("hash", hash), ("prime", prime), ("net", net), ("sleep", sleep)];

/// The action of this name.
#[must_use]
pub fn named(name: &str) -> Option<Action> {
    ACTIONS.iter().find(|(known, _)| *known == name).map(|(_, action)| *action)
}

/// Runs an action as a native program of OpenWhisk: the first argument has the parameters, the last line of stdout the
/// result.
#[must_use]
pub fn run_native(action: Action) -> ExitCode {
    let parameters = std::env::args().nth(1).unwrap_or_else(|| "{}".to_owned());
    let parameters = serde_json::from_str(&parameters).map_err(|error| error.to_string());
    let result = parameters.and_then(|parameters| action(&parameters));
    println!("{}", result.unwrap_or_else(|error| json!({ "error": error })));
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_action_answers_and_refuses_other_parameters() {
        assert_eq!(hello(&json!({ "name": "Ada" })), Ok(json!({ "greeting": "Hello, Ada" })));
        let twice = blake3::hash(blake3::hash(b"x").as_bytes());
        let hashed = hash(&json!({ "iterations": 2, "input": "x" }));
        assert_eq!(hashed, Ok(json!({ "hash": twice.to_hex().as_str() })));
        assert_eq!(prime(&json!({ "nth": 5000 })), Ok(json!({ "prime": 48_611 })));
        let slept = sleep(&json!({ "milliseconds": 1 }));
        assert_eq!(slept, Ok(json!({ "slept": 1 })));
        for action in [hash, prime, sleep] {
            assert!(action(&json!({})).is_err());
        }
    }

    #[test]
    fn an_action_is_found_by_its_name() {
        for (name, _) in ACTIONS {
            assert!(named(name).is_some(), "{name}");
        }
        assert!(named("jump").is_none());
    }
}
