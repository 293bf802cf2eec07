//! What processes say to each other: pure data and its codecs, no I/O, no clocks, no async.
//!
//! - [`control`]: shim ↔ zygote ↔ sandbox, JSON, trusted peers on inherited socketpairs.
//! - [`egress`]: which destinations on the network a function may reach.
//! - [`envelope`] and [`frame`]: caller ↔ callee, one frame per `SOCK_SEQPACKET` message.
//! - [`ids`]: the names of calls, functions and instances.
//! - [`network`]: node to node, through Redis.
//! - [`remaining`]: what is left of a deadline, between processes and nodes.

pub mod control;
pub mod egress;
pub mod envelope;
pub mod frame;
mod generated;
pub mod ids;
pub mod network;
pub mod remaining;
