//! The functions in C, Go, AssemblyScript and Zig that the documentation shows, compiled from its very text and run on a
//! real containerd: a call onwards, an error from it, small and large payloads, in fresh instances and in one
//! that is kept.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::path::Path;

use cwasi_testbed::languages::Example;
use cwasi_testbed::run::{Outcome, Run};
use cwasi_testbed::scene::Scene;

use crate::SHIM;

/// Sizes of payloads: none, within a frame, in shared memory, in huge pages.
const SIZES: [usize; 4] = [0, 5, 100_000, 3 << 20];
const ISOLATIONS: [(&str, &str); 2] = [("fresh", "request"), ("kept", "instance")];

/// The bytes of its module or component, compiled now.
pub fn build(example: Example) -> Vec<u8> {
    let name = format!("{example:?}");
    let dir = Path::new(SHIM).ancestors().nth(2).unwrap().join("languages").join(name);
    std::fs::read(example.build(&dir).unwrap_or_else(|error| panic!("{error:#}"))).unwrap()
}

pub fn secondary(run: Run, name: &str) -> Run {
    run.annotation("cwasi.role", "secondary").annotation("cwasi.function", name)
}

/// What an example calls, and what its error says when that is not there, and when it fails with "not today".
pub struct Onwards {
    pub callee: &'static str,
    pub is_missing: &'static str,
    pub fails: &'static str,
}

const REVERSE: Onwards = Onwards {
    callee: "reverse",
    is_missing: "reverse ended with errno 3: ",
    fails: "reverse ended with errno 8: refused: not today",
};

fn call(scene: &Scene, id: &str, target: &str, size: usize) -> Outcome {
    let rounds = if size > 65536 { "10" } else { "60" };
    let size = size.to_string();
    scene.run(scene.guest(id, "caller").args([target, rounds, &size, "reverse"]))
}

fn fails_with(scene: &Scene, id: &str, target: &str, says: &str) {
    let failed = call(scene, id, target, 5);
    assert_eq!(failed.code, 8, "{}", failed.stderr);
    assert!(failed.stderr.contains(says), "{says} missing in: {}", failed.stderr);
}

/// The function that examples call.
pub fn start_callee(scene: &Scene, name: &str, args: &[&str]) {
    scene.start(secondary(scene.guest(name, "actor").args(args.iter().copied()), name));
}

pub fn calls_onwards(scene_name: &str, example: Example, onwards: &Onwards) {
    let scene = Scene::new(SHIM, scene_name);
    let image = scene.import_module("next", &build(example));
    for (name, isolation) in ISOLATIONS {
        let run = secondary(scene.image(&image, name), name);
        scene.start(run.annotation("cwasi.isolation", isolation));
    }
    fails_with(&scene, "nobody", "fresh", onwards.is_missing);
    start_callee(&scene, onwards.callee, &["reverse"]);
    for (name, _) in ISOLATIONS {
        for size in SIZES {
            let outcome = call(&scene, &format!("{name}-{size}"), name, size).success();
            let expected = format!("{size} bytes: as expected");
            assert!(outcome.text().contains(&expected), "{name}: {}", outcome.text());
        }
    }
    scene.remove(onwards.callee);
    start_callee(&scene, onwards.callee, &["fail", "not today"]);
    for (name, _) in ISOLATIONS {
        fails_with(&scene, &format!("{name}-failed"), name, onwards.fails);
    }
}

#[test]
fn the_function_in_c_runs() {
    calls_onwards("lang-c", Example::C, &REVERSE);
}

#[test]
fn the_function_in_go_runs() {
    calls_onwards("lang-go", Example::Go, &REVERSE);
}

#[test]
fn the_function_in_assemblyscript_runs() {
    calls_onwards("lang-as", Example::AssemblyScript, &REVERSE);
}

#[test]
fn the_function_in_zig_runs() {
    calls_onwards("lang-zig", Example::Zig, &REVERSE);
}

#[test]
fn the_function_without_a_c_library_runs() {
    let scene = Scene::new(SHIM, "lang-bracket");
    let image = scene.import_module("bracket", &build(Example::FreestandingC));
    scene.start(secondary(scene.image(&image, "bracket"), "bracket"));
    start_callee(&scene, "reverse", &["reverse"]);
    let outcome = scene.run(scene.guest("p", "probe").args(["call", "bracket", "stressed"]));
    assert_eq!(outcome.success().text(), "[desserts]");
    scene.remove("reverse");
    let outcome = scene.run(scene.guest("q", "probe").args(["call", "bracket", "stressed"]));
    assert_eq!(outcome.code, 8, "{}", outcome.stderr);
}
