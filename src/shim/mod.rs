//! Control plane. Not written yet.
pub mod content;
