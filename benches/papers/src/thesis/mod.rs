//! The thesis: warm latency without load, with hashing and with mixed loads; capacity. Its cold starts are WOW's.

mod capacity;
mod load;

use crate::run::Group;

/// All measurements.
pub const GROUPS: &[Group] = &[load::GROUP, capacity::GROUP];
