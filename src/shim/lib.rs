//! Control plane: the programs `containerd-shim-cwasi-v1` (launcher, `delete`) and `cwasi-shim` (shim daemon).
//!
//! Invariants: only this crate links `containerd_shim`. It never loads the engine and never forks a container.
//!
//! - [`bootstrap`]: containerd's command line; [`launcher`] answers `start`, [`cleanup`] answers `delete`.
//! - [`features`]: the answer to `-info`.
//! - [`arguments`]: containerd's flags; [`options`]: the daemon's configuration.
//! - [`rootfs`]: a container's root file system.
//! - [`daemon`]: composes [`reaper`], [`zygotes`], [`publisher`], [`task`] and `cwasi_host`'s broker, metrics and
//!   spans.
//! - [`own_cgroup`], [`oom_score`]: the daemon's cgroup and OOM score; [`cgroups`]: its containers' cgroups.
//! - [`oom`]: processes that the OOM killer ended.
//! - [`zygotes`]: a [`zygote`] for each engine; [`llvm_stub`]: WasmEdge's stub for LLVM; [`spawn`]: child processes.
//! - [`compiler`]: compiler processes, each with its [`compile_cgroup`].
//! - [`local`]: starts a daemon without containerd, and asks it.

pub mod arguments;
pub mod bootstrap;
pub mod cgroups;
pub mod cleanup;
pub mod compile_cgroup;
pub mod compiler;
pub mod daemon;
mod daemon_log;
mod document;
pub mod features;
pub mod launcher;
pub mod llvm_stub;
pub mod local;
pub mod oom;
pub mod oom_score;
pub mod options;
pub mod own_cgroup;
mod poststop;
pub mod publisher;
pub mod reaper;
pub mod rootfs;
pub mod session;
pub mod spawn;
pub mod task;
pub mod zygote;
pub mod zygotes;
