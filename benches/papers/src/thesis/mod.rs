//! The thesis: its actions, warm latency without load, with hashing and with mixed loads; capacity. Its cold starts are
//! WOW's.

mod actions;
mod capacity;
mod load;

use crate::run::Group;

/// All measurements.
pub const GROUPS: &[Group] = &[actions::SIZES, load::GROUP, capacity::GROUP, actions::PARTS];
