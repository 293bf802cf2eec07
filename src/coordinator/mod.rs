//! Function coordinator (paper §4.2, Algorithm 1): from a bundle to what must be provisioned.
//!
//! Runs in the shim daemon. Never sees payload bytes.
//!
//! - [`registry`]: which functions can be called on this host.

pub mod registry;
