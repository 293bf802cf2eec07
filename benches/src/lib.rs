//! CWASI beside what one would otherwise use.
//!
//! A [`session`] runs groups of [`cases`]. In each case ours (functions in containers of a private containerd, [`bed`])
//! and native baselines ([`peers`]) take [`turns`]; every one of them is a [`side`] that gets the same orders. What they
//! measured becomes a [`report`]: `report.json`, `report.html`, a table in the terminal.
//!
//! Runs in the harness's own processes; never part of the product. Parts of a call are measured by the criterion
//! benches in `parts/`.

pub mod accounts;
pub mod bed;
pub mod cases;
pub mod machine;
pub mod peers;
pub mod placement;
pub mod plan;
pub mod report;
pub mod session;
pub mod side;
pub mod stats;
pub mod turns;
