//! WOW: compiling, cold starts, throughput, an Azure-like mix and memory, at OpenWhisk's protocol.

mod azure;
mod cold_starts;
mod compiling;
mod hello;
mod memory;
mod node;
mod throughput;

use crate::run::Group;

/// All measurements; the cold starts are the thesis', too.
pub const GROUPS: &[Group] = &[
    cold_starts::GROUP,
    compiling::GROUP,
    throughput::MIXED,
    throughput::IO,
    throughput::CPU,
    node::GROUP,
    azure::GROUP,
    memory::GROUP,
];
