//! Native tools around the vehicle-paths workflow: a synthetic traffic scene with ground truth,
//! and the scorer that compares reconstructed paths with it. Nothing here runs inside a function.

pub mod boxes;
pub mod pipeline;
pub mod scene;
pub mod score;
