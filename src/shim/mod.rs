//! Control plane: everything that runs in `containerd-shim-cwasi-v1` and `cwasi-shim`. Sole importer of `containerd_*`; never
//! loads the engine and never forks a container.
//!
//! - [`bootstrap`]: containerd's command line; [`launcher`] answers `start`, [`cleanup`] answers `delete`.
//! - [`caller`]: who asks; [`group`], [`options`], [`state`]: which daemon, with which configuration, and what is on disk.
//! - [`group_lock`]: who starts or removes it; [`rootfs`]: a container's root file system.
//! - [`daemon`]: composition of [`reaper`], [`zygote`], [`publisher`], [`broker`], [`edges`] and [`task`].
//! - [`oom`]: processes that were killed for want of memory.
//! - [`stand_in`]: what a zygote loads instead of LLVM; [`spawn`] starts it.
//! - [`compiler`]: compiles modules in processes of their own, each with its [`compile_cgroup`].
//! - [`content`]: modules from containerd's content store.

pub mod bootstrap;
pub mod broker;
pub mod caller;
pub mod cgroups;
pub mod cleanup;
pub mod compile_cgroup;
pub mod compiler;
pub mod content;
pub mod daemon;
pub mod edges;
pub mod group;
pub mod group_lock;
pub mod launcher;
pub mod network;
pub mod oom;
pub mod options;
pub mod publisher;
pub mod reaper;
pub mod rootfs;
pub mod session;
pub mod spawn;
pub mod stand_in;
pub mod state;
pub mod task;
pub mod zygote;
