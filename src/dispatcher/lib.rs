//! Request dispatcher (paper §4.2): from a guest's call to its end. Runs in a worker.
//!
//! - [`call`]: the life of a call; [`attempts`]: which ones are repeated; `pending_calls`: those in flight.
//! - `connections`: sends and receives; [`links`]: its connections; [`instances`]: the choice among them.
//! - [`resolve`]: what it asks of the shim, through [`broker_client`].
//! - [`embedded`]: calls in the caller's own VM.
//! - [`edges`]: metrics of each edge; [`trace`]: the invocation's trace; [`spans`]: spans of traced calls.
//!
//! Processes of the host that call functions use [`attempts`], [`instances`], [`edges`] and [`spans`].

pub mod attempts;
pub mod broker_client;
pub mod call;
mod connections;
pub mod edges;
pub mod embedded;
pub mod instances;
pub mod links;
mod pending_calls;
pub mod resolve;
pub mod spans;
pub mod trace;

pub use broker_client::BrokerClient;
pub use call::{Dispatcher, Settings};
pub use embedded::EmbeddedCalls;
pub use links::Route;
pub use resolve::{Resolve, ResolvedRoute, RouteQuery};
