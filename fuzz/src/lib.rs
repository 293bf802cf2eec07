//! The decoders under test, and what all targets share.
//!
//! The runtime's own files are compiled into this package: those that read what others wrote, and what these import. The
//! runtime as a whole links the engine, containerd's client and libcontainer, which take most of the time of a build with
//! coverage, and none of them is looked at here. Items that are private to the runtime's crate can be reached, too.
//!
//! A target asserts something that a wrong decoder breaks: it never panics, it takes memory in proportion to its
//! input ([`memory`]), what it accepts keeps its bounds and survives being written and read again, what it makes is valid.

#![allow(dead_code, reason = "parts of the runtime that no target calls")]

#[path = "../../src/config/mod.rs"]
pub mod config;
#[path = "../../src/coordinator/mod.rs"]
pub mod coordinator;
pub mod dispatcher;
pub mod memory;
pub mod metrics;
pub mod modes;
pub mod private;
pub mod shim;
#[path = "../../src/sys/mod.rs"]
pub mod sys;
pub mod vm;
#[path = "../../src/wire/mod.rs"]
pub mod wire;
