//! The whole configuration, parsed once: annotations of a container ([`annotations`]) and the node's settings
//! ([`node`], [`compile`], [`cgroup`], [`http`], [`logs`], [`messages`], [`traces`]), and what both name
//! ([`engine`]); what follows from both ([`workers`]); files that users name ([`regular_file`]). Runs in processes of
//! the host.
//!
//! Invariant: no other folder below `src` parses `cwasi.*` or the node's file.

pub mod annotations;
pub mod cgroup;
pub mod compile;
mod embed;
pub mod engine;
pub mod http;
pub mod link;
pub mod logs;
pub mod messages;
pub mod mount_target;
pub mod node;
pub mod regular_file;
pub mod traces;
pub mod triggers;
mod values;
pub mod workers;

pub use annotations::{AnnotationError, FunctionSpec};
pub use cgroup::{CgroupDriver, RuncOptions};
pub use compile::{CompileConfig, CompilerLimits};
pub use engine::{DEFAULT_ENGINE, Engine};
pub use http::HttpConfig;
pub use logs::LogsConfig;
pub use node::{NodeConfig, NodeConfigError};
pub use values::{duration, name as function_name, size};
pub use workers::Workers;
