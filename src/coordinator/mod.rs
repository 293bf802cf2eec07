//! Function coordinator (paper §4.2, Algorithm 1): from a bundle to what must be provisioned.
//!
//! Runs in the shim daemon. Never sees payload bytes.
//!
//! - [`plan`]: bundle → [`plan::Plan`], the one way in; `error`: why there is none.
//! - [`bundle`]: what its OCI configuration says; `locate`: where its module is; `compiled`: its native code.
//! - [`module`]: what a module must be before anything loads it.
//! - [`embedding`]: which other modules belong into its VM; [`trust`]: which may; `toolchain`: imports that no module provides.
//! - [`home`]: what a module needs to come back from an embedded one.
//! - [`aot`]: the cache of compiled modules; `limits`: what a module may consist of to be compiled; `compile_slots`: how many
//!   are compiled at once.
//! - [`progress`]: what the user hears meanwhile.
//! - [`registry`]: which functions can be called on this host.

pub mod aot;
pub mod bundle;
mod compile_slots;
mod compiled;
pub mod embedding;
mod error;
pub mod home;
pub mod images;
mod limits;
mod locate;
pub mod module;
pub mod plan;
pub mod progress;
pub mod registry;
mod toolchain;
pub mod trust;

pub use aot::{AotCache, AotError, CompileChild, CompileJob};
pub use error::PlanError;
pub use images::{ImageModule, ImageStore};
pub use plan::{Coordinator, Plan, PlanRequest};
pub use progress::Progress;
