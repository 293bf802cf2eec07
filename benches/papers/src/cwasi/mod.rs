//! The paper that CWASI follows: sequences, fan-outs and fan-ins of functions that exchange data.

mod engines;
mod fan;
mod nodes;
mod prototype;
mod resources;
mod sequence;

use cwasi_bench::fixture::TOUCH_ALL;
use cwasi_bench_protocol::{Job, Made, Verb};

use crate::run::Group;

/// All measurements.
pub const GROUPS: &[Group] =
    &[sequence::GROUP, resources::SEQUENCE, fan::OUT, fan::IN, resources::FAN_OUT];

/// Bytes of a MB.
pub const MB: usize = 1_000_000;
/// Payload of a branch or part, in bytes.
const BRANCH: usize = 2 * MB;
/// Name by which the driver calls what is embedded in it.
const INSIDE: &str = "inside";
/// Function on the other node, and its guest.
const REMOTE: (&str, &str) = ("remote", TOUCH_ALL.1);
/// Workers of a callee: while one makes its next instance, another takes the next call.
const WORKERS: &str = "4";

const EMBEDDED: &str = "CWASI embedded";
const LOCAL: &str = "CWASI local";
const NATIVE: &str = "hyper in runc";
const WATCHDOG: &str = "http-watchdog in runc";
const OF_WATCHDOG: &str = "of-watchdog in runc";
const REDIS: &str = "Redis";

/// In the conditions of exhibits with [`engines`].
const ENGINES: &str = "Our sides run in wasmtime, or in the engine that their name has.";

/// `count` calls of `target`, whose payload is made in a region outside of the clock and read by the callee. Native
/// sides need no target.
fn calls(verb: Verb, target: &str, size: usize, count: usize) -> Job {
    let targets = Some(target).filter(|target| !target.is_empty());
    let targets = targets.into_iter().map(str::to_owned).collect();
    Job { verb, targets, size, made: Made::InPlace, touch: true, count, branches: 1 }
}

/// A job for [`WATCHDOG`]: its function reads all of its stdin, and answers with the length.
fn from_stdin(job: Job) -> Job {
    Job { touch: false, ..job }
}
