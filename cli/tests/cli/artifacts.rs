//! Images that others' tools make of a module.

use std::path::Path;

use cwasi_testbed::image::{Rootfs, Start, write_spin_application, write_wasm_artifact};
use cwasi_testbed::image_index::join;
use cwasi_testbed::paths::component_guest;
use cwasi_testbed::scene::wait_for;
use oci_spec::image::Arch;

use super::scene::{Stage, guest};

/// Imports an archive of an artifact, as every containerd can.
fn import(stage: &Stage, write: impl FnOnce(&Path)) {
    let archive = stage.folder.path().join("artifact.tar");
    write(&archive);
    let import = ["images", "import", "--all-platforms", "--no-unpack"];
    let archive = archive.to_str().unwrap();
    let _imported = stage.scene.ctr(import.into_iter().chain([archive])).success();
}

/// Components as `wkg`, `wash` and `spin` push them, on a containerd that unpacks none of them.
#[test]
fn artifacts_of_components_run_and_become_images_that_every_containerd_runs() {
    let stage = Stage::new("cli-components");
    let (server, http) = (component_guest("server"), component_guest("http"));
    let (wkg, spin) = ("localhost/team/server:wkg", "localhost/team/web:spin");
    import(&stage, |out| write_wasm_artifact(&server, wkg, out).unwrap());
    import(&stage, |out| write_spin_application(&[&http], spin, out).unwrap());
    let functions = format!(
        "    one: {{image: '{wkg}', role: secondary}}\n    two: {{image: '{spin}', role: secondary}}\n"
    );
    stage.ok(&["deploy", &stage.workflow("w", &functions)]);
    assert_eq!(stage.ok(&["invoke", "one", "--data", "Ada"]), "Ada");
    assert_eq!(stage.ok(&["invoke", "two", "--data", "Ada"]), "POST / Ada");
    assert_eq!(stage.ok(&["invoke", "one", "--data", "!log so it is"]), "logged");
    wait_for("the log", || stage.ok(&["logs", "one"]).contains("WARN one: so it is").then_some(()));
    stage.ok(&["rm", "--workflow", "w"]);
    for (artifact, file, response) in [(wkg, "server", "x"), (spin, "web", "POST / x")] {
        let tag = format!("localhost/{file}:plain");
        let said = stage.ok(&["image", "build", "--from-artifact", artifact, "--tag", &tag]);
        assert!(said.starts_with(&format!("{tag} sha256:")), "{said}");
        let run = stage.scene.image(&tag, file).annotation("cwasi.role", "secondary");
        stage.scene.start(run);
        let probe = stage.scene.guest("p", "probe").args(["call", file, "x"]);
        assert_eq!(stage.scene.run(probe).success().text(), response);
    }
    import(&stage, |out| {
        write_spin_application(&[&http, &server], "localhost/two:spin", out).unwrap();
    });
    for (image, says) in [
        ("localhost/two:spin", "has 2 Wasm layers"),
        ("localhost/server:plain", "none of its layers has a WebAssembly media type"),
    ] {
        let arguments = ["image", "build", "--from-artifact", image, "--tag", "localhost/x:1"];
        let said = stage.fails(65, &arguments);
        assert!(said.contains(says), "{said}");
    }
    let arguments = ["image", "build", "--from-artifact", "localhost/none:1", "--tag", "x"];
    assert!(stage.fails(66, &arguments).contains("localhost/none:1"));
}

/// As in an image that `docker buildx` makes: the one for this machine counts, wherever it is in the list.
#[test]
fn of_an_index_the_image_for_this_machine_is_taken() {
    let stage = Stage::new("cli-index");
    let own = Arch::default();
    let foreign = if own == Arch::Amd64 { Arch::ARM64 } else { Arch::Amd64 };
    let start = Start { entrypoint: vec!["/m.wasm".into()], ..Start::default() };
    let archives = [(foreign, "hello-caller"), (own, "greeter")].map(|(architecture, name)| {
        let out = stage.folder.path().join(format!("{name}.tar"));
        let mut rootfs = Rootfs::default();
        rootfs.file(guest(name).as_ref(), "/m.wasm").unwrap();
        rootfs.write_for(architecture, "localhost/both:1", &start, &out).unwrap();
        out
    });
    import(&stage, |out| join(&archives, "localhost/both:1", out).unwrap());
    let inspected = |target: &str| stage.ok(&["inspect", "--json", target]);
    assert_eq!(inspected("localhost/both:1"), inspected(&guest("greeter")));
    let run = stage.scene.guest("alone", "hello-caller").args(["Grace"]);
    let run = run.annotation("cwasi.workflow", "w");
    let run = run.annotation("cwasi.embed", "greeter=localhost/both:1");
    assert_eq!(stage.scene.run(run).success().text(), "Hello, Grace!\n");
}
