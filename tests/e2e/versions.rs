//! End to end on every containerd that is supported: one smoke test each for 1.6, 1.7 and 2.x, and images
//! whose layer is the module, which containerd itself takes since 1.7.7. What [`super::embedding`] tests in full on 1.6
//! is tried on the others here.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use cwasi_testbed::containerd_config::RUNTIME;
use cwasi_testbed::image::{MODULE_MEDIA_TYPES, Start, write_module_image};
use cwasi_testbed::paths::ContainerdVersion;
use cwasi_testbed::scene::{BUSYBOX, Scene, guests_dir, unique};

use crate::SHIM;

fn scene(version: ContainerdVersion, name: &str) -> Scene {
    Scene::open(version, SHIM, &unique(name))
}

fn smoke(version: ContainerdVersion) {
    let scene = scene(version, "smoke");
    let version = scene.ctr(["version"]).success().text();
    println!("{version}");
    // A function with arguments, streams and an exit code.
    let outcome = scene.run(scene.guest("both", "probe").args(["both", "out", "err"])).success();
    assert_eq!((outcome.text().as_str(), outcome.guest_stderr().as_str()), ("out\n", "err\n"));
    assert_eq!(scene.run(scene.guest("seven", "probe").args(["exit", "7"])).code, 7);
    assert_eq!(scene.run(scene.guest("trap", "probe").args(["trap"])).code, 134);
    let outcome = scene.run(scene.guest("cat", "probe").args(["cat"]).stdin(b"in".to_vec()));
    assert_eq!(outcome.success().text(), "in");
    // Two secondaries in one group, called by a primary; the first deleted first.
    for id in ["first", "second"] {
        let run = scene.guest(id, "server").annotation("cwasi.role", "secondary");
        scene.start(run.annotation("cwasi.function", id).annotation("cwasi.workflow", "w"));
    }
    let call = |id: &str, target: &str| {
        let run = scene.guest(id, "probe").annotation("cwasi.workflow", "w");
        scene.run(run.args(["call-size", target, "100000"])).success().text()
    };
    assert_eq!(call("p1", "first"), "100000 bytes came back\n");
    let metrics = scene.ctr(["task", "metrics", "first"]).success().text();
    assert!(metrics.contains("memory"), "{metrics}");
    let ps = scene.ctr(["task", "ps", "first"]).success().text();
    assert!(ps.contains(&scene.pid("first").to_string()), "{ps}");
    assert_eq!(scene.remove("first"), 137);
    assert_eq!(call("p2", "second"), "100000 bytes came back\n");
    scene.kill("second", "TERM");
    scene.wait_stopped("second");
    assert_eq!(scene.remove("second"), 143);
    // A native program.
    scene.import_busybox();
    let native = scene.image(BUSYBOX, "native").args(["sh", "-c", "echo native; exit 4"]);
    let outcome = scene.run(native);
    assert_eq!((outcome.text().as_str(), outcome.code), ("native\n", 4), "{}", outcome.stderr);
    // One more process in it.
    scene.start(scene.image(BUSYBOX, "sidecar").args(["sleep", "1000"]));
    let exec = ["task", "exec", "--exec-id", "e", "sidecar", "sh", "-c"];
    let outcome = scene.ctr(exec.into_iter().chain(["cat /proc/1/cmdline; exit 3"]));
    assert_eq!(outcome.text(), "sleep\u{0}1000\u{0}", "{}", outcome.stderr);
    assert_eq!(outcome.code, 3);
    assert_eq!(scene.remove("sidecar"), 137);
}

#[test]
fn containerd_1_6_runs_functions_and_programs() {
    smoke(ContainerdVersion::V1_6);
}

#[test]
fn containerd_1_7_runs_functions_and_programs() {
    smoke(ContainerdVersion::V1_7);
}

#[test]
fn containerd_2_runs_functions_and_programs() {
    smoke(ContainerdVersion::V2);
}

#[test]
fn containerd_2_reads_the_features_of_the_runtime() {
    let scene = scene(ContainerdVersion::V2, "features");
    let inspect = ["plugins", "inspect-runtime", "--runtime", RUNTIME];
    let text = scene.ctr(inspect).success().text();
    let info: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(info["Name"], "containerd-shim-cwasi-v1");
    let options = info["Features"]["mountOptions"].as_array().unwrap();
    assert!(options.contains(&"rro".into()), "{text}");
    assert!(info["Annotations"]["cwasi.role"].is_string(), "{text}");
}

fn module_layer(version: ContainerdVersion) {
    let scene = scene(version, "layer");
    let programs = std::path::Path::new(SHIM).parent().unwrap();
    let module = guests_dir(programs).join("probe.wasm");
    let start = Start { entrypoint: vec!["probe.wasm".into()], ..Start::default() };
    for (index, media_type) in MODULE_MEDIA_TYPES.into_iter().enumerate() {
        let reference = format!("localhost/layer{index}:test");
        let archive = scene.node.path().join(format!("layer{index}.tar"));
        write_module_image(&module, media_type, &reference, &start, &archive).unwrap();
        let archive = archive.to_str().unwrap();
        let _imported = scene.ctr(["images", "import", "--all-platforms", archive]).success();
        let run = scene.image(&reference, &format!("c{index}")).args(["probe.wasm", "args", "x"]);
        let outcome = scene.run(run.flag("--platform").flag("wasip1/wasm"));
        assert_eq!(outcome.success().text(), "probe.wasm\nargs\nx\n", "{media_type}");
        let run =
            scene.image(&reference, &format!("exit{index}")).args(["probe.wasm", "exit", "6"]);
        assert_eq!(scene.run(run).code, 6, "{media_type}");
    }
}

#[test]
fn containerd_1_7_runs_an_image_whose_layer_is_the_module() {
    module_layer(ContainerdVersion::V1_7);
}

#[test]
fn containerd_2_runs_an_image_whose_layer_is_the_module() {
    module_layer(ContainerdVersion::V2);
}

/// A library out of the image store, and a function that a deployed container vouches for.
fn embedding(version: ContainerdVersion) {
    let scene = scene(version, "embedding");
    let programs = std::path::Path::new(SHIM).parent().unwrap();
    let module =
        |name: &str| std::fs::read(guests_dir(programs).join(format!("{name}.wasm"))).unwrap();
    let letters = scene.import_module("letters", &module("letters"));
    let shout = scene.guest("shout", "shout").args(["banana"]).annotation("cwasi.workflow", "w");
    let shout = shout.annotation("cwasi.embed", &format!("letters={letters}"));
    assert_eq!(scene.run(shout).success().text(), "BANANA! (3× a)\n");
    let server = scene.import_module("server", &module("server"));
    let deployed = scene.image(&server, "svc").args(["/m.wasm"]);
    let deployed = deployed.annotation("cwasi.role", "secondary");
    scene.start(deployed.annotation("cwasi.function", "svc").annotation("cwasi.workflow", "w"));
    let caller = scene.guest("caller", "probe").args(["call", "svc", "x"]);
    let caller = caller.annotation("cwasi.workflow", "w").annotation("cwasi.embed", "svc");
    let outcome = scene.run(caller.annotation("cwasi.mode", "embedded"));
    assert_eq!(outcome.success().text(), "x");
}

#[test]
fn containerd_2_embeds_functions() {
    embedding(ContainerdVersion::V2);
}
