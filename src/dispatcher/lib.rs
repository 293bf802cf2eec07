//! Request dispatcher (CWASI, SEC '23, §4.2): from a guest's call to its end. Runs in a worker.
//!
//! - [`call`]: what a guest does with calls; [`settings`]: their limits; `pacing`: when answers are received.
//! - `exchange`: the life of the calls in flight, which `pending_calls` keeps; [`attempts`]: which ones are repeated.
//! - `connections`: sends and receives; [`links`]: its connections; [`instances`]: the choice among them.
//! - [`resolve`]: what it asks of the shim, through [`broker_client`].
//! - [`embedded`]: calls in the caller's own VM.
//! - `telemetry`: what a worker reports; [`edges`]: metrics of each edge; [`trace`]: the invocation's trace; [`spans`]:
//!   spans of traced calls.
//!
//! Processes of the host that call functions use [`attempts`], [`instances`], [`edges`] and [`spans`].

pub mod attempts;
pub mod broker_client;
pub mod call;
mod connections;
pub mod edges;
pub mod embedded;
mod exchange;
pub mod instances;
pub mod links;
mod pacing;
mod pending_calls;
pub mod resolve;
pub mod settings;
pub mod spans;
mod telemetry;
pub mod trace;

pub use broker_client::BrokerClient;
pub use call::Dispatcher;
pub use embedded::EmbeddedCalls;
pub use links::Route;
pub use resolve::{Resolve, ResolvedRoute, RouteQuery};
pub use settings::Settings;
