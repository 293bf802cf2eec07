//! Control plane: the programs `containerd-shim-cwasi-v1` (launcher, `delete`) and `cwasi-shim` (shim daemon).
//!
//! Invariants: only this folder imports `containerd_*`. It never loads the engine and never forks a container.
//!
//! - [`bootstrap`]: containerd's command line; [`launcher`] answers `start`, [`cleanup`] answers `delete`.
//! - [`features`]: the answer to `-info`.
//! - [`arguments`]: containerd's flags; [`group`], [`options`], [`state`]: the daemon's group, configuration and files.
//! - [`group_lock`]: the group's lock; [`rootfs`]: a container's root file system.
//! - [`daemon`]: composes [`reaper`], [`zygote`], [`publisher`], [`broker`], [`metrics`], [`spans`] and [`task`].
//! - [`own_cgroup`], [`oom_score`]: the daemon's cgroup and OOM score; [`cgroups`]: its containers' cgroups.
//! - [`oom`]: processes that the OOM killer ended.
//! - [`llvm_stub`]: the zygote's stub for LLVM; [`spawn`]: child processes.
//! - [`compiler`]: compiler processes, each with its [`compile_cgroup`].
//! - [`otlp`]: exports spans.
//! - [`content`]: modules from containerd's content store, or from a folder.
//! - [`local`]: starts a daemon without containerd, and asks it.
//! - [`caller`]: calls functions from a process of the host, whose counts are in its [`host_group`]; [`http`]: for HTTP
//!   clients.

pub mod arguments;
pub mod bootstrap;
pub mod cgroups;
pub mod cleanup;
pub mod compile_cgroup;
pub mod compiler;
pub mod daemon;
mod daemon_log;
pub mod features;
pub mod launcher;
pub mod llvm_stub;
pub mod local;
pub mod oom;
pub mod oom_score;
pub mod options;
pub mod own_cgroup;
pub mod publisher;
pub mod reaper;
pub mod rootfs;
pub mod session;
pub mod spawn;
pub mod task;
pub mod zygote;
