//! The functions in C, Go, AssemblyScript and Zig that the documentation shows, compiled from its very text and run on a
//! real containerd: a call onwards, an error from it, small and large payloads, in fresh instances and in one
//! that is kept.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::path::{Path, PathBuf};

use cwasi_testbed::languages::Example;
use cwasi_testbed::run::{Outcome, Run};
use cwasi_testbed::scene::Scene;

use crate::SHIM;
use crate::exceptions::{SECRET, fails_in_one_shape, with_port};

/// Sizes of payloads: none, within a frame, in shared memory, in huge pages.
const SIZES: [usize; 4] = [0, 5, 100_000, 3 << 20];
const ISOLATIONS: [(&str, &str); 2] = [("fresh", "request"), ("kept", "instance")];

/// The bytes of its module or component, compiled now.
pub fn build(example: Example) -> Vec<u8> {
    let built = example.build(&folder(example));
    std::fs::read(built.unwrap_or_else(|error| panic!("{error:#}"))).unwrap()
}

fn folder(example: Example) -> PathBuf {
    Path::new(SHIM).ancestors().nth(2).unwrap().join("languages").join(format!("{example:?}"))
}

/// A payload of eight bytes, which no other one has.
const THROW: &str = "throw it";

/// Lets an example throw an exception with [`SECRET`] that it does not catch, when its payload is [`THROW`].
pub struct Throws {
    /// A piece of the page's source, and what comes before it.
    pub before: &'static str,
    pub inserted: &'static str,
    /// Part of what the function's log says.
    pub said: &'static str,
}

impl Throws {
    fn build(&self, example: Example) -> Vec<u8> {
        let new = self.inserted.replace("SECRET", SECRET) + self.before;
        let built = example.build_with(&folder(example), (self.before, &new));
        std::fs::read(built.unwrap_or_else(|error| panic!("{error:#}"))).unwrap()
    }
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

pub fn calls_onwards(scene_name: &str, example: Example, onwards: &Onwards, throws: &Throws) {
    let scene = Scene::new(SHIM, scene_name);
    let image = scene.import_module("next", &throws.build(example));
    for (name, isolation) in ISOLATIONS {
        let run = secondary(scene.image(&image, name), name);
        let run = run.annotation("cwasi.isolation", isolation);
        scene.start(with_port(&scene, name, run));
        fails_in_one_shape(&scene, name, ("/", THROW), throws.said);
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
    let throws = Throws {
        before: "    struct cwasi_outcome end = {0};\n",
        inserted: "    if (payload_len == 8) __builtin_trap();\n",
        said: "trap in",
    };
    calls_onwards("lang-c", Example::C, &REVERSE, &throws);
}

#[test]
fn the_function_in_go_runs() {
    let throws = Throws {
        before: "\tstatus := int32(0)\n",
        inserted: "\tif payloadLen == 8 {\n\t\tpanic(\"SECRET\")\n\t}\n",
        said: "trap in",
    };
    calls_onwards("lang-go", Example::Go, &REVERSE, &throws);
}

#[test]
fn the_function_in_assemblyscript_runs() {
    let throws = Throws {
        before: "  const target = text(\"reverse\");\n",
        inserted: "  if (payloadLen == 8) throw new Error(\"SECRET\");\n",
        said: "trap in",
    };
    calls_onwards("lang-as", Example::AssemblyScript, &REVERSE, &throws);
}

#[test]
fn the_function_in_zig_runs() {
    let throws = Throws {
        before: "    var failed = false;\n",
        inserted: "    if (payload_len == 8) @panic(\"SECRET\");\n",
        said: "trap in",
    };
    calls_onwards("lang-zig", Example::Zig, &REVERSE, &throws);
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
