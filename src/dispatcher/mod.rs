//! Request dispatcher (paper §4.2): what happens between a guest's call and its end.
//!
//! - [`call`]: in the caller's worker; route cache, deadlines, retries that are safe, edge metrics.
//! - `fan`: calls that are started, and waited for later; `flights` are these calls.
//! - [`links`]: connections to instances of callees, and which of them a call takes; `exchange` sends and receives
//!   over them.
//! - [`broker_client`]: in the caller's worker; asks the shim for routes.
//! - [`selection`]: in the shim; which mode, as a pure function of facts (paper Algorithm 2).
//! - [`embedded`]: in the caller's worker; calls that its own VM serves.
//! - [`edges`]: what each edge did, for metrics and the hop table.

pub mod broker_client;
pub mod call;
pub mod edges;
pub mod embedded;
mod exchange;
mod fan;
mod flights;
pub mod links;
pub mod selection;

pub use broker_client::BrokerClient;
pub use call::{Dispatcher, Question, Resolve, Resolved, Settings};
pub use embedded::EmbeddedCalls;
pub use fan::TooMany;
pub use flights::Ticket;
pub use links::Route;
