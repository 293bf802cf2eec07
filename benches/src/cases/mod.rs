//! The measured cases, in groups that share their containers.

mod answers;
mod burst;
mod embedded;
mod fan;
mod gateway;
mod http;
mod http_overload;
mod idle;
mod languages;
mod load;
mod memory;
mod network;
mod processor;
mod sequential;
mod starts;

use anyhow::Result;

use crate::plan::Effort;
use crate::session::Session;

/// Cases that share their containers.
pub struct Group {
    pub name: &'static str,
    /// What it measures, in a few words.
    pub about: &'static str,
    /// Names of the entries that it makes.
    pub cases: fn(Effort) -> Vec<String>,
    /// Runs the ones of these names.
    pub run: fn(&mut Session, &[String]) -> Result<()>,
}

/// All groups, in the order in which they run.
pub const GROUPS: [Group; 15] = [
    sequential::GROUP,
    answers::GROUP,
    fan::OUT,
    fan::IN,
    embedded::GROUP,
    languages::GROUP,
    network::GROUP,
    processor::GROUP,
    starts::GROUP,
    burst::GROUP,
    memory::GROUP,
    idle::GROUP,
    load::GROUP,
    http::GROUP,
    http_overload::GROUP,
];
