//! Operating-system mechanisms of the data plane, without policy. Nearly all unsafe code is here.
//!
//! - [`seqpacket`]: `SOCK_SEQPACKET` sockets with descriptor passing.
//! - [`segment`]: memfds that carry payloads, sealed or lent.
//! - [`arenas`]: how many arenas the allocator has, and their free pages.
//! - [`counter`]: a counter that several processes share.
//! - [`huge`]: huge pages for them.
//! - [`populated`]: the kernel's page map.
//! - [`loopback`]: the loopback device of a network namespace.
//! - [`mapping`]: pages at fixed addresses that memfds back.
//! - [`page_buffer`]: message buffers whose pages exist once they are written.
//! - [`shared`]: memory that a process shares with its children.
//! - [`wakeup`]: waking one of several processes (eventfd).
//! - [`processors`]: the number of usable processors.
//! - [`process_usage`]: what another process uses.
//! - [`watch`]: watching many descriptors (epoll).
//! - [`resolved_path`]: paths that are resolved once, and sources of mounts.
//! - [`owned_path`]: paths that only this user can change.
//! - [`file_access`]: access to named directories only (Landlock).
//! - [`mount_flags`]: mounts without programs and libraries, or read-only.
//! - [`terminal_size`]: the size of a terminal.
//! - [`device_filter`]: access to devices in a cgroup v2 (eBPF).
//! - [`process`]: forking single-threaded processes, descriptor tables, exits.
//! - [`clock`]: `CLOCK_MONOTONIC`, comparable between processes.
//! - [`random`]: the kernel's random bytes.
//! - [`reopen`]: non-blocking writes to a pipe that others write to blocking.
//! - [`pidfd`]: signals without races on process numbers.
//! - [`children`]: ends, stops and continuations of this process' children.

pub mod arenas;
pub mod children;
pub mod clock;
pub mod counter;
pub mod device_filter;
pub mod file_access;
pub mod huge;
pub mod loopback;
pub mod mapping;
pub mod mount_flags;
pub mod owned_path;
pub mod page_buffer;
pub mod pidfd;
pub mod populated;
pub mod process;
pub mod process_usage;
pub mod processors;
pub mod random;
pub mod reopen;
pub mod resolved_path;
pub mod segment;
pub mod seqpacket;
pub mod shared;
pub mod swap;
pub mod terminal_size;
pub mod wakeup;
pub mod watch;
