//! Tenants on one node: one function floods what all share, and another namespace's calls go on.
//!
//! Each file floods one resource. [`neighbour::Neighbour`] is the other tenant. Floods are bounded in bytes, count and
//! time, and lie on a tmpfs or below limits of the test's own, so that they fill nothing of the machine's.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

mod answers;
mod cache;
mod cache_of_its_own;
mod compile;
mod connections;
mod descriptors;
mod emit;
mod late_caller;
mod log;
mod neighbour;
mod spans;
mod state;

use crate::scene;

/// The neighbour's calls are answered while nobody floods: what the other tests compare with.
#[test]
fn calls_without_a_flood() {
    let scene = scene("fair-none");
    let neighbour = neighbour::Neighbour::beside(&scene);
    neighbour.calls(3);
    let background = neighbour.calls_in_background(100);
    neighbour.calls(1);
    neighbour::Neighbour::assert_answered(100, background.finish().unwrap());
}
