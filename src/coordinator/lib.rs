//! Function coordinator (CWASI, SEC '23, §4.2, Algorithm 1): plans what to provision for a bundle. Runs in processes of
//! the host.
//!
//! Invariant: no payload bytes come here.
//!
//! - [`plan`]: bundle → [`plan::Plan`], the entry point; `error`: its errors.
//! - [`bundle`]: the OCI configuration; `locate`: where the module is; `mount_points`: where its mounts
//!   lead; `compiled`: its native code.
//! - [`module`]: checks of untrusted modules; [`component`]: of components.
//! - [`delivered`]: code that comes after a container's start.
//! - [`embedding`]: modules for the function's VM; [`trust`]: which of them are trusted; `toolchain`: imports that no
//!   module provides.
//! - [`home`]: the function that leads the engine back into a caller.
//! - [`aot`]: the cache of compiled modules; `limits`: static limits of a module; `compile_slots`: number of
//!   compilers; `compile_queue`: who is next.
//! - [`progress`]: messages to the user meanwhile.
//! - [`registry`]: callable functions of this host.
//! - [`triggers`]: which streams and channels run a function.
//! - [`selection`]: chooses the mode of an edge, a pure function of facts (paper Algorithm 2).
//! - [`fingerprint`]: inputs of native code besides the module; [`processor`]: processors that code is compiled for.
//! - [`precompiled`]: code that was compiled elsewhere and signed; `offers`: where it may be.

pub mod aot;
pub mod bundle;
mod checked_module;
mod compile_queue;
mod compile_slots;
mod compiled;
pub mod component;
pub mod delivered;
pub mod embedding;
mod error;
pub mod fingerprint;
pub mod home;
pub mod images;
pub mod limits;
mod locate;
pub mod module;
mod mount_points;
mod offers;
pub mod plan;
pub mod precompiled;
pub mod processor;
pub mod progress;
pub mod registry;
pub mod selection;
mod toolchain;
pub mod triggers;
pub mod trust;

pub use aot::{AotCache, AotError, CompileChild, CompileJob};
pub use error::PlanError;
pub use images::{ImageModule, ImageOf, ImageStore};
pub use plan::{Coordinator, Plan, PlanRequest};
pub use progress::Progress;
