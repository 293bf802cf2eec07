//! The operating system's parts that the data plane needs; mechanism only, no policy.
//!
//! - [`seqpacket`]: `SOCK_SEQPACKET` sockets with descriptor passing.
//! - [`segment`]: sealed memfds.
//! - [`huge`]: huge pages for them.
//! - [`pool`]: segments that are used again.
//! - [`image`]: memory that is brought back to what it was.
//! - [`populated`]: which pages are there at all.
//! - [`mapping`]: pages in use that are backed by memfds.
//! - [`shared`]: memory of a process and its children.
//! - [`spin`]: waiting without sleeping.
//! - [`stderr_tail`]: the last bytes that a guest has written to stderr.
//! - [`wakeup`]: waking one of several processes.
//! - [`processors`]: how many there are for a process.
//! - [`watch`]: many descriptors of which few are ready.
//! - [`exec_filter`]: no native code but what is mapped already.
//! - [`noexec`]: mounts that run nothing.
//! - [`device_filter`]: which devices a cgroup v2 may use.
//! - [`process`]: forking single-threaded processes, descriptor tables, exits.
//! - [`clock`]: `CLOCK_MONOTONIC`, comparable between processes.
//! - [`random`]: the kernel's random bytes.
//! - [`readiness`]: descriptors on tokio's reactor.
//! - [`reopen`]: writing to a pipe without waiting, while others wait.
//! - [`pidfd`]: signals without a race on process numbers.

pub mod clock;
pub mod counter;
pub mod device_filter;
pub mod exec_filter;
pub mod huge;
pub mod image;
pub mod mapping;
pub mod noexec;
pub mod pidfd;
pub mod pool;
pub mod populated;
pub mod process;
pub mod processors;
pub mod random;
pub mod readiness;
pub mod reopen;
pub mod segment;
pub mod seqpacket;
pub mod shared;
pub mod spin;
pub mod stderr_tail;
pub mod wakeup;
pub mod watch;
