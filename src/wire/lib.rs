//! Messages between processes: pure data and its codecs, no I/O, no clocks, no async. Used by every process.
//!
//! - [`control`]: shim ↔ zygote ↔ sandbox, JSON, trusted peers on inherited socketpairs.
//! - [`egress`]: the rules of `cwasi.network`.
//! - [`envelope`] and [`frame`]: caller ↔ callee, one frame per `SOCK_SEQPACKET` message.
//! - [`ids`]: the names of calls, functions and instances.
//! - [`log_line`]: times of lines in log files, from sandbox and shim to `cwasi logs`.
//! - [`metadata`]: heads of requests and responses, beside a payload.
//! - [`mount_options`]: options of mounts that the builder consumes.
//! - [`network`]: node to node, through Redis.
//! - [`remaining`]: deadlines as remaining time, between processes and nodes.
//! - [`trace`]: trace contexts and spans; [`trace_headers`]: contexts as calls carry them.

pub mod control;
pub mod egress;
pub mod envelope;
pub mod frame;
mod generated;
pub mod ids;
pub mod log_line;
pub mod metadata;
pub mod mount_options;
pub mod network;
pub mod remaining;
pub mod trace;
pub mod trace_headers;
