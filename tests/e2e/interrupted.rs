//! End to end on real containerds: the shim, or the client, is killed in the middle of a start, and nothing is left of
//! the container once it is removed. `CWASI_KILLS` says how many kills each test tries.

use cwasi_testbed::kills::{Victim, interrupt_starts};
use cwasi_testbed::paths::ContainerdVersion;
use cwasi_testbed::scene::{Scene, unique};

use crate::SHIM;

/// Kills that a test tries when nobody asks for more.
const KILLS: u32 = 2;

fn interrupt(version: ContainerdVersion, victim: Victim) {
    let shim = SHIM;
    let scene = Scene::open(version, shim, &unique("kills"));
    let asked = std::env::var("CWASI_KILLS").ok().map(|text| text.parse().expect("a number"));
    interrupt_starts(&scene, victim, asked.unwrap_or(KILLS));
}

#[test]
fn a_shim_that_is_killed_in_a_start_leaves_nothing_on_1_6() {
    interrupt(ContainerdVersion::V1_6, Victim::Shim);
}

#[test]
fn a_shim_that_is_killed_in_a_start_leaves_nothing_on_2() {
    interrupt(ContainerdVersion::V2, Victim::Shim);
}

#[test]
fn a_client_that_is_killed_in_a_start_leaves_nothing_on_1_6() {
    interrupt(ContainerdVersion::V1_6, Victim::Client);
}

#[test]
fn a_client_that_is_killed_in_a_start_leaves_nothing_on_2() {
    interrupt(ContainerdVersion::V2, Victim::Client);
}
