//! Native containers: life cycle, parentage, cgroups, descriptors, errors, and that nothing is left.

use nix::sys::signal::Signal;
use serde_json::json;

use cwasi_wire::control::{Verb, Workload};

use crate::fixture::{Fixture, alive, create_spec, eventually, read};

#[test]
fn a_container_runs_and_its_exit_code_and_output_arrive() {
    let fixture = Fixture::new();
    let mut container =
        fixture.native("exit", &["/bin/sh", "-c", "echo out; echo err >&2; exit 42"]);
    assert!(alive(container.pid), "created and waiting");
    container.start();
    assert_eq!(container.wait(), 42);
    assert_eq!(container.output(), "out\n");
    assert_eq!(container.errors(), "err\n");
    container.delete();
    container.delete();
    assert!(fixture.cgroups("exit").is_empty());
    assert!(!fixture.root().join("exit").exists());
    let files = fixture.root().join(".specs");
    assert_eq!(std::fs::read_dir(files).map_or(0, Iterator::count), 0);
}

#[test]
fn what_the_shim_has_read_is_built_whatever_becomes_of_the_file() {
    let fixture = Fixture::new();
    let bundle = fixture.bundle("once", &["/bin/echo", "as it was read"], |_| {});
    let read = create_spec("once".into(), bundle.clone(), Workload::Native);
    std::fs::write(bundle.join("config.json"), "of another").unwrap();
    let mut container = fixture.create_from("once", read, &[]).unwrap();
    container.start();
    assert_eq!(container.wait(), 0);
    assert_eq!(container.output(), "as it was read\n");
    container.delete();
}

#[test]
fn init_is_the_shims_child_and_its_exit_is_seen_without_the_zygote() {
    let mut fixture = Fixture::new();
    let container = fixture.native("orphan", &["/bin/sleep", "1000"]);
    let (id, pid) = (container.id.clone(), container.pid);
    assert_eq!(container.status("PPid"), std::process::id().to_string());
    container.start();
    eventually("sleep runs", || (container.status("Name") == "sleep").then_some(()));
    // The shim forgets the zygote that it came from, not the container.
    std::mem::forget(container);
    fixture.replace_zygote();
    let container = fixture.adopt(&id, pid);
    assert!(alive(pid), "the zygote's death is nothing to the container");
    container.signal(Signal::SIGKILL);
    assert_eq!(container.wait(), 137);
    container.delete();
    assert!(fixture.cgroups("orphan").is_empty());
}

#[test]
fn cgroups_hold_the_container_and_its_limit_and_go_with_it() {
    let fixture = Fixture::new();
    let limit = 64 << 20;
    let container = fixture
        .native_with("limited", &["/bin/sleep", "1000"], |spec| {
            spec["linux"]["resources"]["memory"] = json!({ "limit": limit });
        })
        .unwrap();
    let memory = std::path::Path::new("/sys/fs/cgroup/memory")
        .join(fixture.cgroup.trim_start_matches('/'))
        .join("limited");
    assert_eq!(read(&memory.join("memory.limit_in_bytes")), limit.to_string());
    // libcontainer's intermediate process is another child of the shim, and may be about to end.
    eventually("init alone", || {
        (read(&memory.join("cgroup.procs")) == container.pid.to_string()).then_some(())
    });
    container.start();
    let smaller = json!({ "memory": { "limit": limit / 2 } }).to_string();
    container.verb(Verb::Update { resources: smaller }).unwrap();
    assert_eq!(read(&memory.join("memory.limit_in_bytes")), (limit / 2).to_string());
    container.delete();
    assert!(fixture.cgroups("limited").is_empty());
    assert_eq!(container.wait(), 137);
}

#[test]
fn containers_pause_resume_and_are_deleted_paused() {
    let fixture = Fixture::new();
    let container = fixture.native("paused", &["/bin/sleep", "1000"]);
    container.start();
    let freezer = std::path::Path::new("/sys/fs/cgroup/freezer")
        .join(fixture.cgroup.trim_start_matches('/'))
        .join("paused/freezer.state");
    container.verb(Verb::Pause).unwrap();
    assert_eq!(read(&freezer), "FROZEN");
    container.verb(Verb::Resume).unwrap();
    assert_eq!(read(&freezer), "THAWED");
    container.verb(Verb::Pause).unwrap();
    container.delete();
    assert_eq!(container.wait(), 137);
    assert!(fixture.cgroups("paused").is_empty());
}

#[test]
fn a_native_process_inherits_stdio_only() {
    let fixture = Fixture::new();
    let container = fixture.native("fds", &["/bin/sleep", "1000"]);
    container.start();
    eventually("sleep runs", || (container.status("Name") == "sleep").then_some(()));
    let numbers: Vec<i32> = container.descriptors().iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, [0, 1, 2]);
    assert_eq!(container.status("SigBlk"), "0000000000000000");
    assert_eq!(container.status("SigIgn"), "0000000000000000");
    container.delete();
    container.wait();
}

#[test]
fn a_bare_spec_gives_no_capabilities() {
    let fixture = Fixture::new();
    let script = "echo $HOME; grep -E '^Cap(Inh|Prm|Eff|Bnd|Amb)' /proc/self/status";
    let mut container = fixture
        .native_with("bare", &["/bin/sh", "-c", script], |spec| {
            spec["process"]["capabilities"] = json!({});
            spec["process"]["env"] = json!([]);
            spec["process"].as_object_mut().unwrap().remove("noNewPrivileges");
        })
        .unwrap();
    container.start();
    assert_eq!(container.wait(), 0, "{}", container.errors());
    let output = container.output();
    let mut lines = output.lines();
    assert_eq!(lines.next(), Some("/"), "no passwd, no home");
    for line in lines {
        assert!(line.ends_with("0000000000000000"), "{line}");
    }
    assert_eq!(output.lines().count(), 6);
    container.delete();
}

#[test]
fn an_image_cannot_load_code_into_the_process_that_sets_it_up() {
    let fixture = Fixture::new();
    let bundle = fixture.bundle("nss", &["/bin/true"], |_| {});
    let etc = bundle.join("rootfs/etc");
    std::fs::create_dir_all(&etc).unwrap();
    std::fs::write(etc.join("passwd"), "root:x:0:0::/home-of-root:/bin/sh\n").unwrap();
    // A service that glibc has to load from the container: without our HOME it is in the maps below.
    std::fs::write(etc.join("nsswitch.conf"), "passwd: compat\n").unwrap();
    let mut spec: serde_json::Value =
        serde_json::from_slice(&std::fs::read(bundle.join("config.json")).unwrap()).unwrap();
    spec["process"]["args"] = json!(["/bin/sh", "-c", "echo $HOME"]);
    std::fs::write(bundle.join("config.json"), spec.to_string()).unwrap();
    let mut container =
        fixture.create("nss", bundle, cwasi_wire::control::Workload::Native, &[]).unwrap();
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", container.pid)).unwrap();
    assert!(!maps.contains("libnss_compat"), "{maps}");
    container.start();
    assert_eq!(container.wait(), 0);
    assert_eq!(container.output(), "/home-of-root\n");
    container.delete();
}

#[test]
fn children_that_outlive_init_in_a_shared_pid_namespace_are_killed_by_delete() {
    let fixture = Fixture::new();
    let container = fixture
        .native_with("shared", &["/bin/sh", "-c", "sleep 1000 & exit 0"], |spec| {
            let namespaces = spec["linux"]["namespaces"].as_array_mut().unwrap();
            namespaces.retain(|namespace| namespace["type"] != "pid");
        })
        .unwrap();
    container.start();
    assert_eq!(container.wait(), 0);
    let procs = fixture.cgroups("shared").remove(0).join("cgroup.procs");
    assert!(!read(&procs).is_empty(), "sleep lives on");
    container.delete();
    assert!(fixture.cgroups("shared").is_empty());
}

#[test]
fn errors_name_the_cause_and_leave_nothing() {
    let fixture = Fixture::new();
    let missing = fixture.native_with("missing", &["/no/such/program"], |_| {}).err().unwrap();
    assert!(missing.contains("/no/such/program"), "{missing}");
    let mount = fixture
        .native_with("mount", &["/bin/true"], |spec| {
            let mounts = spec["mounts"].as_array_mut().unwrap();
            mounts.push(json!({ "destination": "/x", "type": "bind", "source": "/no/such/source", "options": ["bind"] }));
        })
        .err()
        .unwrap();
    assert!(mount.contains("/no/such/source"), "{mount}");
    let user = fixture
        .native_with("user", &["/bin/true"], |spec| {
            let namespaces = spec["linux"]["namespaces"].as_array_mut().unwrap();
            namespaces.push(json!({ "type": "user" }));
        })
        .err()
        .unwrap();
    assert!(user.contains("user namespace"), "{user}");
    for id in ["missing", "mount", "user"] {
        assert!(fixture.cgroups(id).is_empty(), "{id}");
        assert!(!fixture.root().join(id).exists(), "{id}");
    }
}
