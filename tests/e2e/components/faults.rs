//! How calls of components end that fail, trap, take too long, or lose their worker.

use cwasi_abi::Errno;
use cwasi_testbed::processes::descendants;
use cwasi_testbed::run::Running;
use cwasi_testbed::scene::{Scene, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{SHIM, call, image, probe, secondary};

fn scene(name: &str) -> Scene {
    Scene::new(SHIM, name)
}

#[test]
fn each_end_of_a_component_reaches_a_core_module_with_its_reason() {
    let scene = scene("comp-ends");
    for name in ["server", "command", "http"] {
        scene.start(secondary(&scene, name, name).annotation("cwasi.timeout", "6s"));
    }
    for (target, order, errno, says) in [
        ("server", "!fail no wheels", Errno::Failed, "no wheels"),
        ("server", "!trap", Errno::Trapped, "unreachable"),
        ("server", "!exit", Errno::Failed, "exit(1)"),
        ("server", "!loop", Errno::Timeout, "deadline"),
        ("server", "!sleep 60000", Errno::Timeout, "deadline"),
        ("server", "!call nobody x", Errno::Failed, "NoSuchFunction"),
        ("command", "!exit 3", Errno::Failed, "exit code 1; end of its stderr: leaving"),
        ("command", "!panic", Errno::Trapped, "unreachable"),
        ("command", "!sleep 60000", Errno::Timeout, "deadline"),
    ] {
        let outcome = probe(&scene, "p", &["call", target, order]);
        assert_eq!(outcome.code, errno.code(), "{target} {order}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(says), "{target} {order}: {}", outcome.stderr);
        assert_eq!(call(&scene, "next", target, "next"), "next", "after {order}");
    }
}

#[test]
fn each_end_of_a_core_module_reaches_a_component_with_its_reason() {
    let scene = scene("comp-core-ends");
    scene.start(secondary(&scene, "server", "server"));
    let core = scene.guest("core", "server").annotation("cwasi.role", "secondary");
    scene.start(core.annotation("cwasi.function", "core").annotation("cwasi.timeout", "6s"));
    for (order, says) in [
        ("!fail no wheels", "Failed: "),
        ("!trap", "Trapped: "),
        ("!exit 3", "Failed: "),
        ("!loop", "Timeout: "),
    ] {
        let outcome = probe(&scene, "p", &["call", "server", &format!("!call core {order}")]);
        assert_eq!(outcome.code, Errno::Failed.code(), "{order}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(says), "{order}: {}", outcome.stderr);
        assert_eq!(call(&scene, "next", "server", "!call core next"), "next", "after {order}");
    }
}

/// A call that keeps the only worker of `svc` busy, once it does.
fn busy(scene: &Scene, worker: i32) -> Running {
    let run = scene.guest("busy", "probe").args(["calls", "svc", "!loop", "after"]);
    let running = run.spawn(&scene.containerd).unwrap();
    wait_for("the worker to be busy", || (processor_ticks(worker) > 5).then_some(()));
    running
}

/// Processor time of a process.
fn processor_ticks(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    // utime, the 14th field of the line.
    fields.split_whitespace().nth(11).and_then(|ticks| ticks.parse().ok()).unwrap_or_default()
}

/// The only worker of a function: the child of its sandbox's init.
fn worker(scene: &Scene, id: &str) -> i32 {
    let init = scene.pid(id);
    wait_for("one worker", || match &descendants(init)[..] {
        [worker] => Some(worker.pid),
        _ => None,
    })
}

#[test]
fn a_killed_worker_fails_its_call_only() {
    let scene = scene("comp-killed");
    let svc = secondary(&scene, "svc", "server").annotation("cwasi.isolation", "instance");
    scene.start(svc);
    assert_eq!(call(&scene, "before", "svc", "x"), "x");
    let killed = worker(&scene, "svc");
    let caller = busy(&scene, killed);
    kill(Pid::from_raw(killed), Signal::SIGKILL).unwrap();
    let text = caller.finish().unwrap().success().text();
    assert!(text.starts_with("broken: ") && text.ends_with("ok: after\n"), "{text}");
    assert_eq!(call(&scene, "next", "svc", "x"), "x");
    assert_ne!(worker(&scene, "svc"), killed);
    assert_eq!(scene.status("svc").as_deref(), Some("RUNNING"));
}

#[test]
fn a_killed_component_leaves_its_call_broken_and_its_container_stopped() {
    let scene = scene("comp-killed-init");
    scene.start(secondary(&scene, "svc", "server"));
    let caller = busy(&scene, worker(&scene, "svc"));
    kill(Pid::from_raw(scene.pid("svc")), Signal::SIGKILL).unwrap();
    let text = caller.finish().unwrap().success().text();
    assert!(text.starts_with("broken: "), "{text}");
    scene.wait_stopped("svc");
    assert_eq!(scene.remove("svc"), 137);
}

#[test]
fn memory_is_limited_by_the_annotation() {
    let scene = scene("comp-memory");
    scene.start(secondary(&scene, "svc", "server").annotation("cwasi.memory", "4MiB"));
    assert_eq!(call(&scene, "fits", "svc", "!size 1000").len(), 1000);
    let above = probe(&scene, "above", &["call", "svc", "!size 8000000"]);
    assert_eq!(above.code, Errno::Trapped.code(), "{}", above.stderr);
    assert_eq!(call(&scene, "next", "svc", "x"), "x");
}

#[test]
fn what_no_component_can_be_is_refused_in_words() {
    let scene = scene("comp-refused");
    let server = |id: &str| secondary(&scene, id, "server");
    for (id, run, says) in [
        (
            "embedded",
            server("embedded").annotation("cwasi.engine", "wasmedge"),
            "set the annotation cwasi.engine=wasmtime",
        ),
        (
            "kept",
            secondary(&scene, "kept", "command").annotation("cwasi.isolation", "instance"),
            "cwasi.isolation",
        ),
        (
            "group",
            secondary(&scene, "group", "command").annotation("cwasi.fan-in", "2"),
            "cwasi.fan-in needs a reactor",
        ),
    ] {
        let outcome = scene.run(run);
        assert_ne!(outcome.code, 0, "{id}");
        assert!(outcome.stderr.contains(says), "{id}: {}", outcome.stderr);
    }
    let serves = image(&scene, "http");
    let forced = scene.guest("forced", "probe").annotation("cwasi.workflow", "w");
    let forced = forced.annotation("cwasi.mode", "embedded");
    let forced = forced.annotation("cwasi.embed", &format!("svc={serves}"));
    let outcome = scene.run(forced.args(["call", "svc", "x"]));
    assert_ne!(outcome.code, 0);
    assert!(outcome.stderr.contains("what serves HTTP runs in a process"), "{}", outcome.stderr);
}
