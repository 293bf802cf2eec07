//! What turns a function of a query into a component of `wasi:http` and into a native server. Both answer 200 with the
//! function's text, or 500 with its error, as those of the operator paper do.

mod query;

#[cfg(not(target_os = "wasi"))]
mod native;
#[cfg(target_os = "wasi")]
mod wasi;

use std::fmt::Display;
use std::time::Duration;

pub use query::Query;

#[cfg(not(target_os = "wasi"))]
pub use native::serve;
#[cfg(target_os = "wasi")]
pub use wasi::{answer, wasip2};

/// Longest wait for the answer to a request of a function's own.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A function: the text for a query, or why there is none.
pub type Function = fn(&Query) -> Result<String, String>;

/// Exports a [`Function`] as `wasi:http/incoming-handler`.
#[cfg(target_os = "wasi")]
#[macro_export]
macro_rules! export {
    ($function:path) => {
        struct Exported;

        impl $crate::wasip2::exports::http::incoming_handler::Guest for Exported {
            fn handle(
                request: $crate::wasip2::http::types::IncomingRequest,
                out: $crate::wasip2::http::types::ResponseOutparam,
            ) {
                $crate::answer($function, &request, out);
            }
        }

        $crate::wasip2::http::proxy::export!(Exported with_types_in $crate::wasip2);
    };
}

/// A native program needs no exports: [`serve`].
#[cfg(not(target_os = "wasi"))]
#[macro_export]
macro_rules! export {
    ($function:path) => {};
}

/// The value of an environment variable that the function cannot do without.
///
/// # Errors
/// A sentence when it is not set.
pub fn variable(name: &str) -> Result<String, String> {
    std::env::var(name).map_err(|_unset| format!("the environment variable {name} is not set"))
}

/// Sends HTTP requests over std's sockets: the same code for Wasm and native.
#[must_use]
pub fn client() -> ureq::Agent {
    // A limit of the whole request would look up names in a thread of its own.
    ureq::Agent::config_builder().timeout_recv_response(Some(TIMEOUT)).build().into()
}

/// An error with what was tried.
pub fn failed<E: Display>(what: &str) -> impl FnOnce(E) -> String {
    move |error| format!("{what}: {error}")
}
