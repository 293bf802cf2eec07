//! Of `src/shim`: what reads files and `/proc`, images, options and reports of sandboxes.

#[path = "../../src/shim/cgroups.rs"]
pub mod cgroups;
#[path = "../../src/shim/edges.rs"]
pub mod edges;
#[path = "../../src/shim/group.rs"]
pub mod group;
#[path = "../../src/shim/content/layers.rs"]
pub mod layers;
#[path = "../../src/shim/content/manifest.rs"]
pub mod manifest;
#[path = "../../src/shim/options.rs"]
pub mod options;
#[path = "../../src/shim/session.rs"]
pub mod session;
#[path = "../../src/shim/state.rs"]
pub mod state;
