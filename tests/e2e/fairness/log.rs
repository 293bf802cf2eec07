//! A function that prints without end, beside another tenant.

use std::path::Path;

use cwasi_testbed::scene::wait_for;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::neighbour::Neighbour;
use crate::scene;

/// Bounds of the flooding function's log.
const MAX: u64 = 1 << 20;
const FILES: u64 = 2;
/// A disk that it fills, in bytes.
const DISK: u64 = 256 << 10;

/// Bytes of the files in a folder.
fn size(folder: &Path) -> u64 {
    let files = std::fs::read_dir(folder).unwrap();
    files.filter_map(|file| Some(file.ok()?.metadata().ok()?.len())).sum()
}

/// A disk of its own, until it is dropped.
struct Disk<'a>(&'a Path);

impl<'a> Disk<'a> {
    fn new(folder: &'a Path) -> Self {
        let options = format!("size={DISK}");
        mount(Some("tmpfs"), folder, Some("tmpfs"), MsFlags::empty(), Some(options.as_str()))
            .unwrap();
        Self(folder)
    }
}

impl Drop for Disk<'_> {
    fn drop(&mut self) {
        let _unmounted = umount2(self.0, MntFlags::MNT_DETACH);
    }
}

#[test]
fn a_log_takes_its_bound_of_the_disk_and_no_more() {
    let scene = scene("fair-log");
    let neighbour = Neighbour::beside(&scene);
    let folder = tempfile::tempdir().unwrap();
    let uri = format!("file://{}/log?max-size={MAX}&max-files={FILES}", folder.path().display());
    let lines = ["print", "1000000000", "a line of a function that prints without end"];
    scene.start(scene.guest("flood", "probe").args(lines).flag("--log-uri").flag(&uri));
    let rotated = folder.path().join("log.1");
    wait_for("a full file", || rotated.exists().then_some(()));
    for _ in 0..3 {
        neighbour.calls(3);
        assert!(size(folder.path()) <= MAX * FILES);
    }
    scene.kill("flood", "KILL");
    scene.wait_stopped("flood");
    assert!(size(folder.path()) > MAX);
    scene.remove_containers();
}

#[test]
fn a_full_disk_delays_no_function() {
    let scene = scene("fair-log-disk");
    let neighbour = Neighbour::beside(&scene);
    let folder = tempfile::tempdir().unwrap();
    let _disk = Disk::new(folder.path());
    let uri = format!("file://{}/log?max-size={MAX}", folder.path().display());
    let lines = ["print", "100000", "a line of a function that fills the disk"];
    scene.start(scene.guest("flood", "probe").args(lines).flag("--log-uri").flag(&uri));
    neighbour.calls(3);
    // It prints all of it, and ends.
    scene.wait_stopped("flood");
    assert!(size(folder.path()) > DISK / 2);
    neighbour.calls(3);
    scene.remove_containers();
}
