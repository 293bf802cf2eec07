//! Of `src/shim`: what reads files and `/proc`, images and options.

#[path = "../../src/shim/cgroups.rs"]
pub mod cgroups;
#[path = "../../src/shim/group.rs"]
pub mod group;
#[path = "../../src/shim/content/layers/mod.rs"]
pub mod layers;
#[path = "../../src/shim/content/manifest.rs"]
pub mod manifest;
#[path = "../../src/shim/options.rs"]
pub mod options;
#[path = "../../src/shim/session.rs"]
pub mod session;
#[path = "../../src/shim/state.rs"]
pub mod state;
