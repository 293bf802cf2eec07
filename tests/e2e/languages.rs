//! The functions in C, Go, AssemblyScript and Zig that the documentation shows, compiled from its very text and run on a
//! real containerd: a call onwards, an error from it, small and large payloads, in fresh instances and in one
//! that is kept.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::path::Path;

use cwasi_testbed::languages::Example;
use cwasi_testbed::run::{Outcome, Run};
use cwasi_testbed::scene::Scene;

const SHIM: &str = env!("CARGO_BIN_EXE_containerd-shim-cwasi-v1");
/// Sizes of payloads: none, within a frame, in shared memory, in huge pages.
const SIZES: [usize; 4] = [0, 5, 100_000, 3 << 20];

fn build(example: Example) -> Vec<u8> {
    let (_, name) = example.source();
    let dir = Path::new(SHIM).ancestors().nth(2).unwrap().join("languages").join(name);
    std::fs::read(example.build(&dir).unwrap_or_else(|error| panic!("{error:#}"))).unwrap()
}

fn secondary(run: Run, name: &str) -> Run {
    run.annotation("cwasi.role", "secondary").annotation("cwasi.function", name)
}

fn call(scene: &Scene, id: &str, target: &str, size: usize, expect: &str) -> Outcome {
    let rounds = if size > 65536 { "10" } else { "60" };
    let size = size.to_string();
    scene.run(scene.guest(id, "caller").args([target, rounds, &size, expect]))
}

/// Calls the function whose module this is, in fresh instances and in one that is kept.
fn calls_onwards(scene_name: &str, example: Example) {
    let scene = Scene::new(SHIM, scene_name);
    let image = scene.import_module("next", &build(example));
    for (name, isolation) in [("fresh", "request"), ("kept", "instance")] {
        let run = secondary(scene.image(&image, name), name);
        scene.start(run.annotation("cwasi.isolation", isolation));
    }
    // Nobody to call.
    let refused = call(&scene, "nobody", "fresh", 5, "reverse");
    assert_eq!(refused.code, 8, "{}", refused.stderr);
    assert!(refused.stderr.contains("reverse ended with errno 3: "), "{}", refused.stderr);
    // A callee that answers, and one that does not.
    scene.start(secondary(scene.guest("reverse", "actor").args(["reverse"]), "reverse"));
    for name in ["fresh", "kept"] {
        for (index, size) in SIZES.into_iter().enumerate() {
            let outcome = call(&scene, &format!("{name}-{index}"), name, size, "reverse");
            let outcome = outcome.success();
            assert!(outcome.text().contains(&format!("{size} bytes: as expected")), "{name}");
        }
    }
    scene.remove("reverse");
    let fails = scene.guest("reverse", "actor").args(["fail", "not today"]);
    scene.start(secondary(fails, "reverse"));
    for name in ["fresh", "kept"] {
        let failed = call(&scene, &format!("{name}-failed"), name, 5, "reverse");
        assert_eq!(failed.code, 8, "{}", failed.stderr);
        let says = "reverse ended with errno 8: refused: not today";
        assert!(failed.stderr.contains(says), "{}", failed.stderr);
    }
}

#[test]
fn the_function_in_c_runs() {
    calls_onwards("lang-c", Example::C);
}

#[test]
fn the_function_in_go_runs() {
    calls_onwards("lang-go", Example::Go);
}

#[test]
fn the_function_in_assemblyscript_runs() {
    calls_onwards("lang-as", Example::AssemblyScript);
}

#[test]
fn the_function_in_zig_runs() {
    calls_onwards("lang-zig", Example::Zig);
}

#[test]
fn the_function_without_a_c_library_runs() {
    let scene = Scene::new(SHIM, "lang-bracket");
    let image = scene.import_module("bracket", &build(Example::FreestandingC));
    scene.start(secondary(scene.image(&image, "bracket"), "bracket"));
    scene.start(secondary(scene.guest("reverse", "actor").args(["reverse"]), "reverse"));
    let outcome = scene.run(scene.guest("p", "probe").args(["call", "bracket", "stressed"]));
    assert_eq!(outcome.success().text(), "[desserts]");
    scene.remove("reverse");
    let outcome = scene.run(scene.guest("q", "probe").args(["call", "bracket", "stressed"]));
    assert_eq!(outcome.code, 8, "{}", outcome.stderr);
}
