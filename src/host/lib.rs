//! What a process of the host needs to call functions without being a shim: used by the shim daemon, the gateway and
//! commands of `cwasi`.
//!
//! - [`state`]: the files of the shims; [`group`]: which containers share a shim; [`group_lock`], [`ended_groups`].
//! - [`broker`]: routes for workers and for processes of the host.
//! - [`caller`]: calls functions from a process of the host, whose counts are in its [`host_group`].
//! - [`http`]: the same for HTTP clients.
//! - [`network`]: calls to and from other hosts, over Redis.
//! - [`metrics`]: counts of edges, functions and starts; [`spans`], [`kept_spans`], [`otlp`]: traces.
//! - [`one_line`]: log lines of these processes.
//! - [`readiness`]: descriptors on tokio's reactor.

pub mod broker;
pub mod caller;
pub mod ended_groups;
pub mod group;
pub mod group_lock;
pub mod host_group;
pub mod http;
pub mod kept_spans;
pub mod metrics;
pub mod network;
pub mod one_line;
pub mod otlp;
pub mod readiness;
pub mod spans;
pub mod state;
