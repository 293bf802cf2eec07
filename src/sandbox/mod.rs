//! The data plane's processes, all of them in the binary `cwasi-sandbox`, all single-threaded:
//!
//! ```text
//! zygote ──fork_sibling──> builder (one per verb) ──libcontainer──> sandbox init (pid 1) ──fork──> workers
//! ```
//!
//! - [`zygote`]: has the engine loaded and forks a builder per request of the shim.
//! - [`builder`]: does one thing with one container, answers the shim and ends.
//! - [`executor`]: what runs as the container's process, native or function.
//! - [`init`]: pid 1 of a function's container; forks and watches its workers.
//! - [`worker`]: runs guest code, one invocation at a time.
//!
//! The shim speaks to them in `wire::control` messages only.

pub mod builder;
pub mod executor;
pub mod init;
mod messages;
pub mod worker;
pub mod zygote;
