//! The operating system's parts that the data plane needs; mechanism only, no policy.
//!
//! - [`seqpacket`]: `SOCK_SEQPACKET` sockets with descriptor passing.
//! - [`segment`]: sealed memfds.
//! - [`process`]: forking single-threaded processes, descriptor tables, exits.
//! - [`clock`]: `CLOCK_MONOTONIC`, comparable between processes.
//! - [`random`]: the kernel's random bytes.

pub mod clock;
pub mod process;
pub mod random;
pub mod segment;
pub mod seqpacket;
