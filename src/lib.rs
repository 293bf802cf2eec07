//! CWASI: a containerd runtime for WebAssembly functions that chooses for every call how its data moves.
//!
//! One package, three programs: `containerd-shim-cwasi-v1` (launcher) and `cwasi-shim` (shim daemon) are the control
//! plane, `cwasi-sandbox` is the data plane. `docs/architecture.md` has the table of module dependencies.

pub mod config;
pub mod content;
pub mod coordinator;
pub mod dispatcher;
pub mod host;
pub mod modes;
pub mod sandbox;
pub mod shim;
pub mod sys;
pub mod vm;
pub mod wire;
