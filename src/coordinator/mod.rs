//! Function coordinator (paper §4.2, Algorithm 1): from a bundle to what must be provisioned.
//!
//! Runs in the shim daemon. Never sees payload bytes.
//!
//! - [`plan`]: bundle → [`plan::Plan`], the one way in.
//! - [`module`]: what a module must be before anything loads it.
//! - [`aot`]: the cache of compiled modules.
//! - [`registry`]: which functions can be called on this host.

pub mod aot;
pub mod module;
pub mod plan;
pub mod registry;

pub use aot::{AotCache, AotError, CompileChild};
pub use plan::{Coordinator, ImageModule, ImageStore, Plan, PlanError, PlanRequest};
