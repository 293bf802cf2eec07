//! Images that others' tools make of a module.

use cwasi_testbed::image::write_wasm_artifact;

use super::scene::{Stage, guest};

/// The CNCF's Wasm artifact (`application/vnd.wasm.config.v0+json`), as `wkg oci push` and others write it.
#[test]
fn a_wasm_artifact_of_the_cncf_runs_and_is_embedded() {
    let stage = Stage::new("cli-artifact");
    let mut images = Vec::new();
    for name in ["greeter", "hello-caller"] {
        let archive = stage.folder.path().join(format!("{name}.tar"));
        let image = format!("localhost/{name}:artifact");
        write_wasm_artifact(guest(name).as_ref(), &image, &archive).unwrap();
        let import = ["images", "import", "--all-platforms", "--no-unpack"];
        let archive = archive.to_str().unwrap();
        let _imported = stage.scene.ctr(import.into_iter().chain([archive])).success();
        images.push(image);
    }
    let file = stage.workflow(
        "w",
        &format!(
            "    greeter: {{image: \"{}\", role: secondary}}\n    hello: {{image: \"{}\", args: [Ada]}}\n",
            images[0], images[1]
        ),
    );
    let said = stage.ok(&["run", &file]);
    assert!(said.starts_with("Hello, Ada!\n"), "{said}");
    let run = stage.scene.guest("alone", "hello-caller").args(["Grace"]);
    let run = run.annotation("cwasi.workflow", "w");
    let run = run.annotation("cwasi.embed", &format!("greeter={}", images[0]));
    assert_eq!(stage.scene.run(run).success().text(), "Hello, Grace!\n");
}
