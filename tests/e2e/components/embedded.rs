//! Core modules with components in their own process.

use cwasi_abi::Errno;
use cwasi_testbed::run::{Outcome, Run};
use cwasi_testbed::scene::Scene;

use super::{SHIM, SIZES, image};

/// A core module that embeds `inside`, an image's component or a deployed one.
fn embedding(scene: &Scene, id: &str, wish: &str) -> Run {
    let run = scene.guest(id, "probe").annotation("cwasi.workflow", "w");
    run.annotation("cwasi.mode", "embedded").annotation("cwasi.embed", wish)
}

fn calls(scene: &Scene, id: &str, wish: &str, args: [&str; 2]) -> Outcome {
    let [verb, argument] = args;
    scene.run(embedding(scene, id, wish).args([verb, "inside", argument]))
}

#[test]
fn a_component_of_an_image_runs_in_its_callers_process() {
    let scene = Scene::new(SHIM, "comp-embedded");
    let wish = format!("inside={}", image(&scene, "server"));
    for size in SIZES {
        let outcome = calls(&scene, "sized", &wish, ["call-size", &size.to_string()]);
        assert_eq!(outcome.success().text(), format!("{size} bytes came back\n"));
    }
    let said = |id: &str, order: &str| calls(&scene, id, &wish, ["call", order]);
    assert_eq!(said("caller", "!context caller").success().text(), "probe");
    let failed = said("failed", "!fail not today");
    assert_eq!(failed.code, Errno::Failed.code(), "{}", failed.stderr);
    let trapped = said("trapped", "!trap");
    assert_eq!(trapped.code, 134, "{}", trapped.stderr);
    assert!(trapped.stderr.contains("in embedded inside: "), "{}", trapped.stderr);
}
