//! The data plane's processes, all of them in the binary `cwasi-sandbox`, all single-threaded:
//!
//! ```text
//! zygote ──fork_sibling──> builder (one per verb) ──libcontainer──> sandbox init (pid 1) ──fork──> workers
//! ```
//!
//! - [`zygote`]: has the engine loaded and forks a builder per request of the shim.
//! - [`builder`]: does one thing with one container, answers the shim and ends.
//! - [`executor`]: what runs as the container's process, native or function.
//!
//! The shim speaks to them in `wire::control` messages only.

pub mod builder;
pub mod executor;
pub mod zygote;
