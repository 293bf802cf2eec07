//! What a component has of its container: user, seccomp profile, sockets, log, and when its workers end.

use std::io::Write as _;
use std::net::TcpListener;

use cwasi_config::Engine;
use cwasi_testbed::netns::Netns;
use cwasi_testbed::paths::ContainerdVersion;
use cwasi_testbed::run::Run;
use cwasi_testbed::scene::{Scene, unique};

use super::{SHIM, call, comes_back, component, secondary};
use crate::scene;

#[test]
fn a_component_runs_as_any_user_and_under_the_default_seccomp_profile() {
    // `ctr run` of containerd 1.6 sets no user.
    let namespace = unique("comp-user");
    let scene = Scene::open(ContainerdVersion::V2, SHIM, &namespace);
    for (id, flags) in [
        ("user", &["--user", "1000:1001"][..]),
        ("seccomp", &["--seccomp"]),
        ("both", &["--user", "1000:1001", "--seccomp", "--read-only"]),
    ] {
        let with = |run| flags.iter().fold(run, |run: Run, flag| run.flag(*flag));
        scene.start(with(secondary(&scene, id, "server")));
        assert_eq!(call(&scene, "p", id, "hello"), "hello", "{id}");
        comes_back(&scene, "q", id, 3 << 20);
        assert_eq!(call(&scene, "r", id, "!sleep 1"), "slept", "{id}");
        let run = with(component(&scene, "primary", "command")).stdin(b"!args".to_vec());
        assert_eq!(scene.run(run).success().text(), "/m.wasm", "{id}");
    }
}

#[test]
fn sockets_reach_allowed_destinations_only() {
    reaches_allowed_destinations_only(&scene("comp-sockets"), "command");
}

#[test]
fn sockets_of_wasi_0_3_reach_allowed_destinations_only() {
    reaches_allowed_destinations_only(&scene("comp-sockets-3"), "async_command");
}

fn reaches_allowed_destinations_only(scene: &Scene, guest: &str) {
    let network = Netns::new(&["10.77.0.1/24"]);
    let listener = network.run(|| TcpListener::bind("10.77.0.1:7000").unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            // A guest that is gone is the test's own business.
            let _gone = stream.write_all(b"hi");
        }
    });
    let hosts = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(hosts.path(), "10.77.0.1 peer\n10.77.0.1 other\n").unwrap();
    let connect = |id: &str, allowed: Option<&str>, to: &str| {
        let run = component(scene, id, guest).stdin(format!("!connect {to}"));
        let run = run.flag("--with-ns").flag(format!("network:{}", network.path().display()));
        let run = run.mount(hosts.path(), "/etc/hosts", "ro");
        let run = match allowed {
            Some(allowed) => run.annotation("cwasi.network", allowed),
            None => run,
        };
        scene.run(run).success().text()
    };
    assert_eq!(connect("address", Some("10.77.0.1:7000"), "10.77.0.1:7000"), "hi");
    assert_eq!(connect("name", Some("peer:7000"), "peer:7000"), "hi");
    for (id, allowed, to) in [
        ("none", None, "10.77.0.1:7000"),
        ("no-name", None, "peer:7000"),
        ("port", Some("10.77.0.1:7001"), "10.77.0.1:7000"),
        ("unasked", Some("peer:7000"), "10.77.0.1:7000"),
        ("other", Some("peer:7000"), "other:7000"),
    ] {
        let said = connect(id, allowed, to);
        assert!(said.starts_with("error: "), "{id}: {said}");
    }
}

#[test]
fn a_component_needs_no_annotation_on_a_node_of_another_engine() {
    let scene = scene("comp-engine");
    let file = scene.node.config();
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("\"wasmtime\"", "\"wasmedge\"")).unwrap();
    scene.start(secondary(&scene, "svc", "server"));
    scene.secondary("core", "server");
    assert_eq!(call(&scene, "p", "svc", "!call core hello"), "hello");
    let processes = scene.processes();
    for engine in Engine::ALL {
        let zygote = format!("{} zygote", engine.sandbox_program());
        assert!(processes.iter().any(|process| process.command.contains(&zygote)), "{engine}");
    }
}
