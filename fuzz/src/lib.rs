//! The decoders under test, and what all targets share.
//!
//! Targets depend on the crates that read what others wrote, and never on the engine or libcontainer.
//!
//! A target asserts something that a wrong decoder breaks: it never panics, it takes memory in proportion to its
//! input ([`memory`]), what it accepts keeps its bounds and survives being written and read again, what it makes is valid.

pub mod memory;
pub mod private;
