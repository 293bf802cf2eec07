//! Functions that come and go, and leave what the runtime keeps of ended ones in the state directory.

use std::fs::{self, DirEntry};
use std::path::Path;

use cwasi_testbed::scene::wait_for;

use super::neighbour::Neighbour;
use crate::scene;

/// Ended groups; the runtime keeps the edges and the spans of 64.
const GROUPS: usize = 70;
const KEPT: usize = 64;
/// Bytes of the whole directory: files of few lines each.
const BYTES_MAX: u64 = 4 << 20;

/// Bytes of all files below a folder.
fn size(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let of = |entry: DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => size(&entry.path()),
        Ok(_) => entry.metadata().map_or(0, |metadata| metadata.len()),
        Err(_) => 0,
    };
    entries.map(of).sum()
}

#[test]
fn what_is_kept_of_ended_functions_is_bounded() {
    let scene = scene("fair-state");
    let state = scene.node.state();
    scene.settings("[traces]\nsample = 1.0");
    let neighbour = Neighbour::beside(&scene);
    scene.secondary("server", "server");
    for number in 0..GROUPS {
        let run = scene.guest(&format!("flood-{number}"), "probe").args(["call", "server", "x"]);
        assert_eq!(scene.run(run).success().text(), "x");
    }
    neighbour.calls(3);
    let entries = |folder: &str| fs::read_dir(state.join(folder)).into_iter().flatten().flatten();
    let counts = ["edges", "traces"].map(|folder| entries(folder).count());
    assert!(counts.iter().all(|count| (KEPT / 2..=KEPT + 1).contains(count)), "{counts:?}");
    // The neighbour's group and the server's; records, sockets and places of the others are gone.
    wait_for("the folders of groups that have ended to go", || {
        ["g", "c", "r"].iter().all(|folder| entries(folder).count() <= 4).then_some(())
    });
    let bytes = size(&state);
    assert!(bytes < BYTES_MAX, "{bytes} bytes");
    scene.remove_containers();
}
