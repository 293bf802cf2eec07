//! The algorithms of the vehicle-paths workflow, as plain functions over bytes: the four
//! functions are thin shells around [`functions`], and everything is tested natively.
//!
//! Nothing in here knows how a payload travels. Video and payloads come from outside, so no
//! malformed input may panic: every decoder returns an error that says what to do.

pub mod anonymize;
pub mod dataset;
pub mod detect;
pub mod frame;
pub mod functions;
pub mod geometry;
pub mod jpeg;
pub mod label;
pub mod payload;
pub mod picture;
pub mod track;
#[cfg(feature = "video")]
pub mod video;
