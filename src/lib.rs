//! CWASI: a containerd runtime for WebAssembly functions that picks, for every call between two
//! functions, how the data moves.
//!
//! One package, three binaries: `containerd-shim-cwasi-v1` (launcher) and `cwasi-shim` (its daemon) are the control plane,
//! `cwasi-sandbox` is the data plane.
//! Which module may import which is a table in `docs/architecture.md`.

pub mod config;
pub mod coordinator;
pub mod dispatcher;
pub mod modes;
pub mod sandbox;
pub mod shim;
pub mod sys;
pub mod vm;
pub mod wire;
