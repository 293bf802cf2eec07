//! Request dispatcher (paper §4.2): what happens between a guest's call and its end.
//!
//! - [`call`]: in the caller's worker; route cache, deadlines, retries that are safe, edge metrics.
//! - [`broker_client`]: in the caller's worker; asks the shim for routes.
//! - [`selection`]: in the shim; which mode, as a pure function of facts (paper Algorithm 2).
//! - [`embedded`]: in the caller's worker; calls that its own VM serves.
//! - [`edges`]: what each edge did, for metrics and the hop table.

pub mod broker_client;
pub mod call;
pub mod edges;
pub mod embedded;
pub mod selection;

pub use broker_client::BrokerClient;
pub use call::{Dispatcher, Resolve, Route, Settings};
pub use embedded::EmbeddedCalls;
