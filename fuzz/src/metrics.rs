//! Of `src/shim/metrics`: what reads reports of sandboxes.

#[path = "../../src/shim/metrics/edges.rs"]
pub mod edges;
#[path = "../../src/shim/metrics/snapshot.rs"]
pub mod snapshot;
