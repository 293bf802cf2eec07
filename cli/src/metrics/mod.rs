//! Metrics of the node for Prometheus, from the files that its shims write (`cwasi_host::metrics`).
//!
//! - [`families`]: names, types and meanings; documentation, dashboard and output use this one table.
//! - `exposition`: the text. `endpoint`: serves it to a scraper.
//!
//! Invariant: the number of series is bounded (`cwasi_host::metrics::node`), and names of functions are escaped: guests
//! choose the names that they call.

mod endpoint;
mod exposition;
pub mod families;

pub use endpoint::{Listen, serve};
pub use exposition::text;
