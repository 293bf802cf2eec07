//! Actions of OpenWhisk: JSON in and out, and the properties of an activation.
//!
//! `#[cwasi::action]`, of the feature `json`, makes a function the module's handler. It takes the parameters as any
//! type that serde deserializes, and returns a `Result` of one that serde serializes to an object. Its error is the
//! action's.
//!
//! ```
//! # #[cfg(feature = "json")]
//! # mod module {
//! use cwasi::action::{Value, json};
//!
//! #[cwasi::action]
//! fn hello(parameters: Value) -> Result<Value, String> {
//!     let name = parameters["name"].as_str().ok_or("whom?")?;
//!     Ok(json!({ "greeting": format!("Hello, {name}!"), "by": cwasi::action::name() }))
//! }
//! # }
//! # fn main() {}
//! ```

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cwasi_abi::context_key;

use crate::context::value;

#[cfg(feature = "json")]
mod json_handler;

#[cfg(feature = "json")]
pub use json_handler::run;
#[cfg(feature = "json")]
pub use serde_json::{Value, json};

/// A property of the activation, as the platform names it in its request: `activation_id` is what other runtimes have
/// in the variable `__OW_ACTIVATION_ID`. Empty if there is none.
#[must_use]
pub fn property(name: &str) -> String {
    value(&format!("{}{name}", context_key::OPENWHISK))
}

/// Id of the activation; empty if the call is none.
#[must_use]
pub fn activation_id() -> String {
    property("activation_id")
}

/// Fully qualified name of the action, such as `/guest/hello`.
#[must_use]
pub fn name() -> String {
    property("action_name")
}

/// Namespace in which the action was invoked.
#[must_use]
pub fn namespace() -> String {
    property("namespace")
}

/// Key with which the action calls the platform; empty unless its annotations ask for one.
#[must_use]
pub fn api_key() -> String {
    property("api_key")
}

/// When the platform gives the activation up; `None` if it does not say.
#[must_use]
pub fn deadline() -> Option<SystemTime> {
    let ms = property("deadline").parse().ok()?;
    UNIX_EPOCH.checked_add(Duration::from_millis(ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outside_of_a_guest_there_is_no_activation() {
        assert_eq!((activation_id(), property("version")), Default::default());
        assert_eq!(deadline(), None);
    }
}
