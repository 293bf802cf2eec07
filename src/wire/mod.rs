//! What processes say to each other: pure data and its codecs, no I/O, no clocks, no async.
//!
//! - [`control`]: shim ↔ zygote ↔ sandbox, JSON, trusted peers on inherited socketpairs.
//! - [`envelope`] and [`frame`]: caller ↔ callee, one frame per `SOCK_SEQPACKET` message.
//! - [`ids`]: the names of calls, functions and instances.

pub mod control;
pub mod envelope;
pub mod frame;
pub mod ids;
