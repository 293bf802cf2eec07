//! End to end on a real containerd: functions of both engines on one node, and a node without the optional one.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::path::Path;
use std::sync::Arc;

use cwasi_config::{DEFAULT_ENGINE, Engine};
use cwasi_testbed::containerd::Containerd;
use cwasi_testbed::paths::ContainerdVersion;
use cwasi_testbed::run::Run;
use cwasi_testbed::scene::{Scene, unique};

use crate::SHIM;

fn other_engine() -> Engine {
    Engine::ALL.into_iter().find(|engine| *engine != DEFAULT_ENGINE).unwrap()
}

/// A guest in workflow `w` with this engine; its function is called `id`.
fn guest(scene: &Scene, id: &str, guest: &str, engine: Engine) -> Run {
    let run = scene.guest(id, guest).annotation("cwasi.workflow", "w");
    run.annotation("cwasi.function", id).annotation("cwasi.engine", engine.name())
}

#[test]
fn functions_of_two_engines_call_each_other() {
    let scene = Scene::new(SHIM, "engines");
    for engine in Engine::ALL {
        let server = guest(&scene, &format!("on-{engine}"), "server", engine);
        scene.start(server.annotation("cwasi.role", "secondary"));
    }
    for (caller, callee) in [(0, 1), (1, 0), (0, 0), (1, 1)] {
        let (caller, callee) = (Engine::ALL[caller], Engine::ALL[callee]);
        let run = guest(&scene, &format!("p-{caller}-{callee}"), "probe", caller);
        let run = run.args(["call", &format!("on-{callee}"), "x"]);
        assert_eq!(scene.run(run).success().text(), "x", "{caller} calls {callee}");
    }
    let processes = scene.processes();
    for engine in Engine::ALL {
        let zygote = format!("{} zygote", engine.sandbox_program());
        assert!(processes.iter().any(|process| process.command.contains(&zygote)), "{engine}");
    }
    for engine in Engine::ALL {
        let id = format!("on-{engine}");
        scene.kill(&id, "KILL");
        scene.wait_stopped(&id);
        assert_eq!(scene.remove(&id), 137);
    }
}

/// WasmEdge is optional on a node whose engine is wasmtime, and the other way around.
#[test]
fn only_functions_of_a_missing_engine_do_not_start() {
    let built = Path::new(SHIM).parent().unwrap();
    let installed = tempfile::tempdir().unwrap();
    let runtime = ["containerd-shim-cwasi-v1", "cwasi-shim", "cwasi-testbed"];
    for name in runtime.into_iter().chain(DEFAULT_ENGINE.programs()) {
        std::fs::copy(built.join(name), installed.path().join(name)).unwrap();
    }
    let containerd = Containerd::start(ContainerdVersion::V2, installed.path()).unwrap();
    let scene = Scene::on(Arc::new(containerd), built, &unique("engines-missing"));
    let other = other_engine();
    let refused = scene.run(guest(&scene, "missing", "probe", other).args(["echo", "x"]));
    assert_ne!(refused.code, 0);
    let program = other.sandbox_program();
    for part in [
        format!("the engine {other} is not installed on this node: `{program}` is neither beside"),
        "nor in PATH".to_owned(),
    ] {
        assert!(refused.stderr.contains(&part), "{part} missing in: {}", refused.stderr);
    }
    let server = guest(&scene, "there", "server", DEFAULT_ENGINE);
    scene.start(server.annotation("cwasi.role", "secondary"));
    let run = guest(&scene, "caller", "probe", DEFAULT_ENGINE).args(["call", "there", "x"]);
    assert_eq!(scene.run(run).success().text(), "x");
}
