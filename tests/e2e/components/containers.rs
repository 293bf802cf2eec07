//! What a component has of its container: user, seccomp profile, sockets, log, and when its workers end.

use std::io::Write as _;
use std::net::TcpListener;

use cwasi_abi::Errno;
use cwasi_config::Engine;
use cwasi_testbed::netns::Netns;
use cwasi_testbed::paths::ContainerdVersion;
use cwasi_testbed::processes::descendants;
use cwasi_testbed::run::Run;
use cwasi_testbed::scene::{Scene, unique, wait_for};

use super::{LARGE, SHIM, call, comes_back, component, probe, secondary};

fn scene(name: &str) -> Scene {
    Scene::new(SHIM, name)
}

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

#[test]
fn a_worker_without_memory_in_its_cgroup_fails_its_call_only() {
    let scene = scene("comp-oom");
    let limit = (64 << 20).to_string();
    scene.start(secondary(&scene, "svc", "server").flag("--memory-limit").flag(limit));
    let killed = probe(&scene, "p", &["call", "svc", "!size 200000000"]);
    assert_eq!(killed.code, Errno::Broken.code(), "{}", killed.stderr);
    assert!(killed.stderr.contains("memory"), "{}", killed.stderr);
    assert_eq!(call(&scene, "q", "svc", "x"), "x");
}

#[test]
fn calls_wait_for_a_paused_component() {
    let scene = scene("comp-pause");
    scene.start(secondary(&scene, "svc", "server"));
    let _paused = scene.ctr(["task", "pause", "svc"]).success();
    let waiting = scene.guest("p", "probe").args(["calls", "svc", "!sleep 100", "x"]);
    let mut waiting = waiting.spawn(&scene.containerd).unwrap();
    wait_for("the caller", || scene.status("p").map(drop));
    assert!(!waiting.has_ended());
    for _ in 0..5 {
        let _resumed = scene.ctr(["task", "resume", "svc"]).success();
        let _paused = scene.ctr(["task", "pause", "svc"]).success();
    }
    let _resumed = scene.ctr(["task", "resume", "svc"]).success();
    assert_eq!(waiting.finish().unwrap().success().text(), "ok: slept\nok: x\n");
}

#[test]
fn idle_workers_end_and_come_back() {
    let scene = scene("comp-idle");
    scene.start(secondary(&scene, "svc", "server").annotation("cwasi.idle", "200ms"));
    let init = scene.pid("svc");
    for round in 0..2 {
        assert_eq!(call(&scene, &format!("p{round}"), "svc", "x"), "x");
        wait_for("the worker to end", || descendants(init).is_empty().then_some(()));
    }
}

#[test]
fn a_component_serves_as_many_requests_as_it_may() {
    let scene = scene("comp-max");
    scene.start(secondary(&scene, "svc", "server").annotation("cwasi.max-requests", "2"));
    for round in 0..2 {
        assert_eq!(call(&scene, &format!("p{round}"), "svc", "x"), "x");
    }
    scene.wait_stopped("svc");
    assert_eq!(scene.remove("svc"), 0);
}

#[test]
fn a_snapshot_is_a_new_instance_for_each_request() {
    let scene = scene("comp-snapshot");
    scene.start(secondary(&scene, "svc", "server").annotation("cwasi.isolation", "snapshot"));
    let outcome = probe(&scene, "p", &["calls", "svc", "!served", "!served"]);
    assert_eq!(outcome.success().text(), "ok: 1\nok: 1\n");
}

#[test]
fn many_callers_share_the_workers_of_a_component() {
    let scene = scene("comp-many");
    scene.start(secondary(&scene, "svc", "server").annotation("cwasi.concurrency", "2"));
    let callers: Vec<_> = (0..4)
        .map(|index| {
            let run = scene.guest(&format!("p{index}"), "probe");
            run.args(["repeat", "svc", "300", "x"]).spawn(&scene.containerd).unwrap()
        })
        .collect();
    for caller in callers {
        assert_eq!(caller.finish().unwrap().success().text(), "ok 300\n");
    }
}

#[test]
fn large_payloads_are_copied_into_handlers_that_take_bytes() {
    let scene = scene("comp-bytes");
    scene.start(secondary(&scene, "svc", "server"));
    scene.secondary("core", "server");
    comes_back(&scene, "p", "svc", LARGE);
    let response = call(&scene, "q", "svc", &format!("!send core {LARGE}"));
    assert_eq!(response, format!("{LARGE} bytes came back"));
}
