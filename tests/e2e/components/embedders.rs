//! Components with core modules and other components in their own process.

use cwasi_testbed::edges::Edge;
use cwasi_testbed::run::{Outcome, Run};
use cwasi_testbed::scene::{Scene, guests_dir};

use super::{SHIM, component, image, secondary};

/// What embeds `wish` and calls by no other mode.
fn embedding(run: Run, wish: &str) -> Run {
    run.annotation("cwasi.workflow", "w")
        .annotation("cwasi.mode", "embedded")
        .annotation("cwasi.embed", wish)
}

/// Runs the component `command` with this order.
fn command(scene: &Scene, id: &str, wish: &str, order: &str) -> Outcome {
    let run = embedding(component(scene, id, "command"), wish);
    scene.run(run.annotation("cwasi.function", id).stdin(order.as_bytes()))
}

/// An image with the core module `server`.
fn core_image(scene: &Scene) -> String {
    let programs = std::path::Path::new(SHIM).parent().unwrap();
    let module = std::fs::read(guests_dir(programs).join("server.wasm")).unwrap();
    scene.import_module("server", &module)
}

#[test]
fn a_core_module_and_a_component_run_in_a_components_process() {
    let scene = Scene::new(SHIM, "comp-embeds");
    let images = [core_image(&scene), image(&scene, "server")];
    for (kind, image) in ["core", "component"].into_iter().zip(images) {
        let wish = format!("inside={image}");
        let said = |id: &str, order: &str| {
            let id = format!("{kind}-{id}");
            command(&scene, &id, &wish, order).success().text()
        };
        assert_eq!(said("echo", "!call inside hello"), "hello");
        // The file of the workflow's last group.
        let edge = Edge::of(&scene, &format!("{kind}-echo"), "inside");
        assert_eq!((&*edge.mode, edge.calls), ("embedded", 1));
        assert!(edge.reason.contains("cwasi.embed"), "{}", edge.reason);
        assert_eq!(said("caller", "!call inside !context caller"), format!("{kind}-caller"));
        assert!(said("failed", "!call inside !fail not today").contains("Failed: not today"));
        let trapped = command(&scene, &format!("{kind}-trap"), &wish, "!call inside !trap");
        assert_eq!(trapped.code, 134, "{}", trapped.stderr);
        assert!(trapped.stderr.contains("in embedded inside: "), "{}", trapped.stderr);
        assert_eq!(Edge::of(&scene, &format!("{kind}-trap"), "inside").calls, 1);
    }
}

#[test]
fn a_component_embeds_what_the_deployment_trusts() {
    let scene = Scene::new(SHIM, "comp-embeds-trust");
    let image = core_image(&scene);
    let pinned = format!("inside={image}@sha256:{}", "0".repeat(64));
    let refused = command(&scene, "pinned", &pinned, "!call inside x").success().text();
    assert!(refused.contains("may not be embedded") && refused.contains("sha256:000"), "{refused}");
    let serves = format!("inside={}", super::image(&scene, "http"));
    let refused = command(&scene, "serves", &serves, "!call inside x").success().text();
    assert!(refused.contains("what serves HTTP runs in a process"), "{refused}");
    // Deployed, and not asked: it is embedded.
    scene.start(secondary(&scene, "inside", "server").annotation("cwasi.workflow", "w"));
    let said = command(&scene, "deployed", "inside", "!call inside !served").success().text();
    assert_eq!(said, "1");
    assert_eq!(command(&scene, "again", "inside", "!call inside !served").success().text(), "1");
}
