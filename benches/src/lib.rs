//! Compares CWASI with its alternatives.
//!
//! A [`session`] runs groups of [`cases`]. In each case our functions (in containers of a private containerd,
//! [`fixture`]) and native baselines ([`peers`]) take [`turns`]. Each of them is a [`side`] with the same jobs. The
//! results become a [`report`]: `report.json`, `report.html`, a table in the terminal. [`revisions`] compares reports.
//! [`scale`] shows how costs grow.
//!
//! Runs in the harness's own processes; never part of the product. The criterion benches in `parts/` measure parts of
//! a call.

pub mod accounts;
pub mod cases;
pub mod fixture;
pub mod machine;
pub mod peers;
pub mod placement;
pub mod plan;
pub mod report;
pub mod revisions;
pub mod scale;
pub mod session;
pub mod side;
pub mod stats;
pub mod turns;
