//! End to end on every containerd that is supported: containerd is killed and comes back, everything is killed at once,
//! and the runtime is upgraded.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::path::Path;
use std::sync::Arc;

use cwasi_config::DEFAULT_ENGINE;
use cwasi_testbed::containerd::Containerd;
use cwasi_testbed::paths::ContainerdVersion;
use cwasi_testbed::processes::{descendants, read};
use cwasi_testbed::run::Run;
use cwasi_testbed::scene::{Scene, unique, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::SHIM;

fn scene(version: ContainerdVersion, name: &str) -> Scene {
    Scene::alone(version, SHIM, name)
}

/// A secondary that is its own function.
fn server(scene: &Scene, id: &str) -> Run {
    let run = scene.guest(id, "server").annotation("cwasi.role", "secondary");
    run.annotation("cwasi.function", id)
}

/// A signal for all processes of a task with this init.
fn signal(init: i32, signal: Signal) {
    for pid in descendants(init).iter().map(|process| process.pid).chain([init]) {
        kill(Pid::from_raw(pid), signal).unwrap();
    }
}

/// containerd is killed while a caller waits for the first of its calls, and is away until the caller has ended.
fn containerd_is_away(version: ContainerdVersion) {
    const CALLS: usize = 20;
    let scene = scene(version, "away");
    let log = scene.node.path().join("away.log");
    let uri = format!("file://{}", log.display());
    let lines = || std::fs::read_to_string(&log).unwrap_or_default().lines().count();
    for id in ["naps", "ends", "stays"] {
        scene.start(server(&scene, id));
    }
    // No call ends before containerd is away.
    let naps = scene.pid("naps");
    signal(naps, Signal::SIGSTOP);
    let payloads = ["!sleep 10"; CALLS].into_iter();
    let caller = scene.guest("caller", "probe").flag("--log-uri").flag(uri);
    scene.start(caller.args(["calls", "naps"].into_iter().chain(payloads)));
    let [caller, ends] = ["caller", "ends"].map(|id| scene.pid(id));
    let has_ended = |pid| read(pid).is_none().then_some(());
    let meanwhile = || {
        assert_eq!(lines(), 0, "all calls are left");
        signal(naps, Signal::SIGCONT);
        kill(Pid::from_raw(ends), Signal::SIGKILL).unwrap();
        wait_for("the other calls", || (lines() == CALLS).then_some(()));
        wait_for("the caller to end", || has_ended(caller));
        wait_for("the killed function to end", || has_ended(ends));
    };
    scene.containerd.absence(meanwhile).unwrap();
    for (id, status) in
        [("caller", "STOPPED"), ("ends", "STOPPED"), ("naps", "RUNNING"), ("stays", "RUNNING")]
    {
        assert_eq!(scene.status(id).as_deref(), Some(status), "{id}");
    }
    assert_eq!((scene.delete_task("caller"), scene.delete_task("ends")), (0, 137));
    let call = scene.guest("after", "probe").args(["call", "stays", "x"]);
    assert_eq!(scene.run(call).success().text(), "x");
    assert_eq!(scene.remove("stays"), 137);
}

#[test]
fn functions_outlive_containerd_1_6() {
    containerd_is_away(ContainerdVersion::V1_6);
}

#[test]
fn functions_outlive_containerd_2() {
    containerd_is_away(ContainerdVersion::V2);
}

/// What a power cut leaves on disk, and more: mounts, cgroups and the state directory are still there.
fn everything_is_killed(version: ContainerdVersion) {
    let scene = scene(version, "cut");
    for id in ["one", "two"] {
        scene.start(server(&scene, id).annotation("cwasi.workflow", "w"));
    }
    scene.start(server(&scene, "alone"));
    let guard = scene.containerd.guard_pid();
    let kill_all = || {
        wait_for("everything to end", || {
            let left = descendants(guard);
            for process in &left {
                // It may have ended with another one.
                let _gone = kill(Pid::from_raw(process.pid), Signal::SIGKILL);
            }
            left.is_empty().then_some(())
        });
    };
    scene.containerd.absence(kill_all).unwrap();
    for id in ["one", "two", "alone"] {
        assert_ne!(scene.status(id).as_deref(), Some("RUNNING"), "{id}");
        scene.remove(id);
    }
    // Those of `ctr run --detach`: `ctr` removes them with the task, which is gone.
    scene.node.remove_fifos();
    for id in ["one", "alone"] {
        scene.start(server(&scene, id).annotation("cwasi.workflow", "w"));
        let call = scene.guest("caller", "probe").args(["call", id, "x"]);
        assert_eq!(scene.run(call).success().text(), "x");
    }
}

#[test]
fn functions_start_again_after_everything_was_killed_on_1_6() {
    everything_is_killed(ContainerdVersion::V1_6);
}

#[test]
fn functions_start_again_after_everything_was_killed_on_2() {
    everything_is_killed(ContainerdVersion::V2);
}

/// Installs a program over another one, as `scripts/install.sh` does.
fn install(program: &Path, folder: &Path, name: &str) {
    let new = folder.join(format!(".{name}.new"));
    std::fs::copy(program, &new).unwrap();
    std::fs::rename(new, folder.join(name)).unwrap();
}

/// A group goes on with the programs that its daemon was started with, also when it needs another zygote.
#[test]
fn functions_outlive_an_upgrade() {
    let sandbox = DEFAULT_ENGINE.sandbox_program();
    let mut programs = vec!["containerd-shim-cwasi-v1", "cwasi-shim", "cwasi-testbed"];
    programs.extend(DEFAULT_ENGINE.programs());
    let built = Path::new(SHIM).parent().unwrap();
    let installed = tempfile::tempdir().unwrap();
    let install_all = || {
        for name in &programs {
            install(&built.join(name), installed.path(), name);
        }
    };
    install_all();
    let containerd = Containerd::start(ContainerdVersion::V2, installed.path()).unwrap();
    let scene = Scene::on(Arc::new(containerd), built, &unique("upgrade"));
    let start =
        |id: &str, workflow: &str| server(&scene, id).annotation("cwasi.workflow", workflow);
    let call = |id: &str, workflow: &str, target: &str| {
        let run = scene.guest(id, "probe").annotation("cwasi.workflow", workflow);
        scene.run(run.args(["call", target, "x"])).success().text()
    };
    scene.start(start("old", "before"));
    // Half of an upgrade: only the old group's daemon is there, without a zygote.
    install(Path::new("/bin/false"), installed.path(), sandbox);
    let init = scene.pid("old");
    let inside: Vec<i32> = descendants(init).iter().map(|process| process.pid).collect();
    for process in scene.processes() {
        let is_sandbox = process.command.contains(&format!("{sandbox} zygote"));
        if is_sandbox && process.pid != init && !inside.contains(&process.pid) {
            kill(Pid::from_raw(process.pid), Signal::SIGKILL).unwrap();
        }
    }
    scene.start(start("late", "before"));
    assert_eq!(call("p1", "before", "late"), "x");
    let refused = scene.run(start("new", "after"));
    assert_ne!(refused.code, 0, "it has no program");
    let _removed = scene.ctr(["container", "rm", "new"]);
    // The other half.
    install_all();
    scene.start(start("new", "after"));
    assert_eq!(call("p2", "before", "new"), "x");
    assert_eq!(call("p3", "after", "old"), "x");
}
