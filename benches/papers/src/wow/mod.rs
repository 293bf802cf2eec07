//! WOW: cold starts, throughput, an Azure-like mix and memory, for each engine of ours and for a native container.

mod azure;
mod cold_starts;
mod memory;
mod throughput;

use crate::run::Group;

/// All measurements; the cold starts are the thesis', too.
pub const GROUPS: &[Group] = &[
    cold_starts::GROUP,
    throughput::MIXED,
    throughput::IO,
    throughput::CPU,
    azure::GROUP,
    memory::GROUP,
];
