//! A function whose calls are all recorded, beside another tenant whose traces stay.

use std::fs;
use std::path::{Path, PathBuf};

use cwasi_testbed::scene::wait_for;

use super::neighbour::Neighbour;
use crate::scene;

/// Spans of the flood: more than its two files hold.
const CALLS: u32 = 30_000;
/// Bytes of a group's two files.
const FILES_MAX: u64 = 8 << 20;

/// Files of spans of running and ended groups.
fn files(state: &Path) -> Vec<PathBuf> {
    let entries = |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().flatten();
    let groups = entries(state.join("g")).flat_map(|group| entries(group.path()));
    let all = groups.chain(entries(state.join("traces"))).map(|entry| entry.path());
    all.filter(|path| path.extension().is_some_and(|it| it == "jsonl")).collect()
}

fn of(state: &Path, namespace: &str) -> Vec<PathBuf> {
    let field = format!("\"namespace\":\"{namespace}\"");
    let names = |path: &PathBuf| fs::read_to_string(path).is_ok_and(|it| it.contains(&field));
    files(state).into_iter().filter(names).collect()
}

#[test]
fn recorded_calls_take_their_groups_files_and_no_more() {
    let scene = scene("fair-spans");
    let state = scene.node.state();
    scene.settings("[traces]\nsample = 1.0");
    let neighbour = Neighbour::beside(&scene);
    neighbour.calls(3);
    let run = scene.guest("server", "server").annotation("cwasi.role", "secondary");
    scene.start(run.annotation("cwasi.function", "server"));
    let args = ["repeat", "server", &CALLS.to_string(), "x"];
    let outcome = scene.run(scene.guest("flood", "probe").args(args)).success();
    assert_eq!(outcome.text(), format!("ok {CALLS}\n"));
    neighbour.calls(3);
    wait_for("the neighbour's spans", || {
        (!of(&state, neighbour.namespace()).is_empty()).then_some(())
    });
    let server = scene.node.state().join("g");
    for group in fs::read_dir(server).unwrap().flatten() {
        let files = fs::read_dir(group.path()).unwrap().flatten();
        let spans = files.filter(|it| it.file_name().to_string_lossy().starts_with("spans"));
        let bytes: u64 = spans.filter_map(|it| Some(it.metadata().ok()?.len())).sum();
        assert!(bytes <= FILES_MAX, "{bytes} bytes in {}", group.path().display());
    }
    scene.remove_containers();
}
