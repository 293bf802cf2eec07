//! End to end on a real containerd: components as functions, in ordinary images and in others' artifacts, beside core
//! modules. Guests: `tests/guests/components`.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

mod artifacts;
mod calls;
mod containers;
mod embedded;
mod embedders;
mod faults;
mod http;
mod nodes;
mod wasi_3;

use cwasi_testbed::paths::component_guest;
use cwasi_testbed::run::{Outcome, Run};
use cwasi_testbed::scene::Scene;

use crate::SHIM;

/// Sizes of payloads: none, within a frame, in shared memory, in huge pages.
const SIZES: [usize; 4] = [0, 5, 100_000, 3 << 20];
/// Bytes that a component passes on with less memory than that.
const LARGE: usize = 100 << 20;

/// An image with this component as `/m.wasm`.
fn image(scene: &Scene, name: &str) -> String {
    let bytes = std::fs::read(component_guest(name)).unwrap();
    scene.import_module(&format!("component-{name}"), &bytes)
}

/// Container `id` of a component, as a primary.
fn component(scene: &Scene, id: &str, name: &str) -> Run {
    scene.image(&image(scene, name), id).args(["/m.wasm"])
}

/// Container `id` of a component, as the secondary `id`.
fn secondary(scene: &Scene, id: &str, name: &str) -> Run {
    serving(component(scene, id, name), id)
}

fn serving(run: Run, function: &str) -> Run {
    run.annotation("cwasi.role", "secondary").annotation("cwasi.function", function)
}

/// Runs the core module `probe` with these arguments.
fn probe(scene: &Scene, id: &str, args: &[&str]) -> Outcome {
    scene.run(scene.guest(id, "probe").args(args.iter().copied()))
}

/// What a core module gets from `target`.
fn call(scene: &Scene, id: &str, target: &str, payload: &str) -> String {
    probe(scene, id, &["call", target, payload]).success().text()
}

/// A core module sends `size` bytes, which have to come back.
fn comes_back(scene: &Scene, id: &str, target: &str, size: usize) {
    let outcome = probe(scene, id, &["call-size", target, &size.to_string()]);
    assert_eq!(outcome.success().text(), format!("{size} bytes came back\n"), "{target}");
}
