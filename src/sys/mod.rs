//! The operating system's parts that the data plane needs; mechanism only, no policy.
//!
//! - [`seqpacket`]: `SOCK_SEQPACKET` sockets with descriptor passing.
//! - [`segment`]: sealed memfds.
//! - [`clock`]: `CLOCK_MONOTONIC`, comparable between processes.
//! - [`random`]: the kernel's random bytes.

pub mod clock;
pub mod random;
pub mod segment;
pub mod seqpacket;
