//! End to end on a real containerd, on this host: which cgroups containers and shims get. The systemd driver itself is
//! tested in a machine of its own (`make test-vm TEST=systemd`), because it needs systemd and cgroup v2.

#![expect(clippy::unwrap_used, reason = "a test fails where it panics")]

use std::fs;
use std::path::{Path, PathBuf};

use cwasi_config::DEFAULT_ENGINE;
use cwasi_testbed::scene::{BUSYBOX, unique};

use crate::scene;

/// Directories of this name at the root of each hierarchy.
fn at_roots(name: &str) -> Vec<PathBuf> {
    let root = PathBuf::from("/sys/fs/cgroup");
    let below = fs::read_dir(&root).unwrap().flatten().map(|entry| entry.path());
    let all = below.chain([root.clone()]).map(|hierarchy| hierarchy.join(name));
    all.filter(|path| path.exists()).collect()
}

#[test]
fn a_path_of_the_other_driver_is_refused() {
    let scene = scene("cgroup-driver");
    let slice = "kubepods-podx.slice:cri-containerd:c";
    let run = || scene.guest("c", "probe").args(["exit", "0"]).flag("--cgroup").flag(slice);
    let outcome = scene.run(run());
    assert_ne!(outcome.code, 0);
    let says = ["SystemdCgroup = true", "cgroup_driver = \"systemd\"", slice];
    assert!(says.iter().all(|part| outcome.stderr.contains(part)), "{}", outcome.stderr);
    assert!(at_roots(slice).is_empty(), "{:?}", at_roots(slice));
    scene.settings("cgroup_driver = \"systemd\"");
    let outcome = scene.run(scene.guest("c", "probe").args(["exit", "0"]));
    assert_ne!(outcome.code, 0);
    assert!(outcome.stderr.contains("SystemdCgroup = false"), "{}", outcome.stderr);
    if !Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        let outcome = scene.run(run());
        assert_ne!(outcome.code, 0);
        assert!(outcome.stderr.contains("needs cgroup v2"), "{}", outcome.stderr);
    }
}

#[test]
fn shim_and_zygote_are_in_the_named_cgroup() {
    let scene = scene("shim-cgroup");
    let name = unique("cwasi-test-shim");
    let setting = format!("shim_cgroup = \"/{name}\"");
    scene.settings(&setting);
    scene.secondary("callee", "probe");
    let membership = |pid: i32| fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let memory = |pid: i32| {
        let text = membership(pid);
        let line = text.lines().find(|line| line.contains(":memory:") || line.starts_with("0::/"));
        line.and_then(|line| line.rsplit_once(':')).map(|(_, path)| path.to_owned()).unwrap()
    };
    let own = scene.processes();
    for program in ["cwasi-shim", DEFAULT_ENGINE.sandbox_program()] {
        // A sandbox is a later fork of its zygote and has the same command line.
        let found = own.iter().filter(|process| process.command.contains(program));
        let found = found.min_by_key(|process| process.started).unwrap();
        assert_eq!(memory(found.pid), format!("/{name}"), "{program}");
    }
    assert_eq!(memory(scene.pid("callee")), format!("/{}/callee", scene.namespace));
    scene.remove("callee");
    // It stays: an operator's limits would be in it.
    let made = at_roots(&name);
    assert!(!made.is_empty());
    for directory in made {
        cwasi_testbed::scene::wait_for("the shim to end", || fs::remove_dir(&directory).ok());
    }
}

#[test]
fn a_cgroup_that_cannot_be_entered_is_named() {
    let scene = scene("shim-cgroup-wrong");
    scene.settings("shim_cgroup = \"/a/../b\"");
    let outcome = scene.run(scene.guest("c", "probe").args(["exit", "0"]));
    assert_ne!(outcome.code, 0);
    assert!(outcome.stderr.contains("ShimCgroup (shim_cgroup)"), "{}", outcome.stderr);
}

#[test]
fn a_containers_end_is_nobody_elses_in_its_cgroup() {
    let scene = scene("cgroup-shared");
    scene.import_busybox();
    let name = format!("/{}", unique("cwasi-shared"));
    let sleeper =
        |id: &str| scene.image(BUSYBOX, id).args(["sleep", "1000"]).flag("--cgroup").flag(&name);
    scene.start(sleeper("first"));
    scene.start(sleeper("second"));
    scene.kill("second", "KILL");
    scene.wait_stopped("second");
    assert_eq!(scene.delete_task("second"), 137);
    let _runs = scene.ctr(["task", "exec", "--exec-id", "e", "first", "true"]).success();
}

#[test]
fn a_shim_dies_before_its_containerd_when_the_node_has_no_memory() {
    let scene = scene("oom-score");
    scene.secondary("greeter", "greeter");
    let score = |pid: i32| {
        let text = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
        text.trim().parse::<i32>().unwrap()
    };
    let containerd = score(scene.containerd.ready().containerd_pid());
    let all = scene.processes();
    let shim = all.iter().find(|process| process.command.contains("cwasi-shim")).unwrap();
    assert_eq!(score(shim.pid), (containerd + 1).min(1000));
}
