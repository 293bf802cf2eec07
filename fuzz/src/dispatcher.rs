//! Of `src/dispatcher`: what the shim's table of edges imports.

#[path = "../../src/dispatcher/edges.rs"]
pub mod edges;
