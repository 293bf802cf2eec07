//! Request dispatcher (paper §4.2): from a guest's call to its end. Runs in a worker.
//!
//! - [`call`]: route cache, deadlines, safe retries, edge metrics.
//! - `fan`: started calls that the guest waits for later; `pending_calls`: their state.
//! - [`links`]: connections to instances of callees; `exchange`: sends and receives over them.
//! - [`broker_client`]: asks the shim for routes.
//! - [`embedded`]: calls in the caller's own VM.
//! - [`edges`]: metrics of each edge; [`spans`]: spans of traced calls; [`nested_spans`]: of those inside one VM.

pub mod broker_client;
pub mod call;
pub mod edges;
pub mod embedded;
mod exchange;
mod fan;
pub mod links;
pub mod nested_spans;
mod pending_calls;
pub mod spans;

pub use broker_client::BrokerClient;
pub use call::{Dispatcher, Resolve, ResolvedRoute, RouteQuery, Settings};
pub use embedded::EmbeddedCalls;
pub use fan::TooMany;
pub use links::Route;
pub use pending_calls::CallTicket;
