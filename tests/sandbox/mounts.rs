//! Mounts as runc makes them: cgroup v1 in a shared pid namespace, and propagation between host and container.

use std::path::Path;

use cwasi_wire::control::{Entry, Role};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::fixture::{Container, Fixture, eventually};
use crate::function::{Function, launch};
use crate::guests::guests;

const CGROUP: &str = "/sys/fs/cgroup";

fn add_mount(spec: &mut Value, mount: Value) {
    spec["mounts"].as_array_mut().unwrap().push(mount);
}

fn cgroup_mount(spec: &mut Value) {
    let options = ["nosuid", "noexec", "nodev", "relatime", "ro"];
    let mount =
        json!({ "destination": CGROUP, "type": "cgroup", "source": "cgroup", "options": options });
    add_mount(spec, mount);
}

/// Lets a container's pids begin above what the host has.
fn jump_pids(spec: &mut Value) {
    let caps = json!(["CAP_SYS_ADMIN"]);
    spec["process"]["capabilities"] =
        json!({ "bounding": caps, "effective": caps, "permitted": caps });
    spec["linux"]["readonlyPaths"] = json!([]);
}

#[test]
fn a_container_in_anothers_pid_namespace_has_its_own_cgroups() {
    let fixture = Fixture::new();
    let pid_max: u32 = crate::fixture::read(Path::new("/proc/sys/kernel/pid_max")).parse().unwrap();
    // Numbers that no process of the host has, with room for those of the test.
    let free = (1000..pid_max - 50).rev().step_by(50);
    let free = free
        .into_iter()
        .find(|first| (*first..first + 50).all(|pid| !Path::new(&format!("/proc/{pid}")).exists()));
    let free = free.expect("fifty free numbers in a row");
    let script =
        format!("echo {free} > /proc/sys/kernel/ns_last_pid && echo jumped && exec sleep 1000");
    let pause = fixture.native_with("pause", &["/bin/sh", "-c", &script], jump_pids).unwrap();
    pause.start();
    eventually("sleep runs", || (pause.status("Name") == "sleep").then_some(()));
    let script = format!(
        "cat {CGROUP}/memory/cgroup.procs && ls {CGROUP} && (echo x > {CGROUP}/memory/cgroup.procs) 2>&1; true"
    );
    let mut member = fixture
        .native_with("member", &["/bin/sh", "-c", &script], |spec| {
            let namespaces = spec["linux"]["namespaces"].as_array_mut().unwrap();
            namespaces[0] = json!({ "type": "pid", "path": format!("/proc/{}/ns/pid", pause.pid) });
            cgroup_mount(spec);
        })
        .unwrap();
    member.start();
    assert_eq!(member.wait(), 0, "{}", member.errors());
    let output = member.output();
    let own: Vec<u32> = output.lines().map_while(|line| line.parse().ok()).collect();
    assert!(!own.is_empty() && own.iter().all(|pid| *pid > free), "its own processes: {output}");
    for name in ["memory", "devices", "cpu", "pids"] {
        assert!(output.lines().any(|line| line == name), "{name}: {output}");
    }
    assert!(!output.contains("systemd"), "it has no directory there: {output}");
    assert!(output.contains("Read-only"), "{output}");
    pause.signal(Signal::SIGKILL);
    pause.wait();
}

/// A directory that is a shared mount, as a host's root is with systemd.
struct Shared(tempfile::TempDir);

impl Shared {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let none = None::<&str>;
        mount(Some("shared"), dir.path(), Some("tmpfs"), MsFlags::empty(), none).unwrap();
        mount(none, dir.path(), none, MsFlags::MS_SHARED, none).unwrap();
        for name in ["before", "host", "guest"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        std::fs::write(dir.path().join("file"), "a file").unwrap();
        Self(dir)
    }

    fn mount_at(&self, name: &str) {
        let place = self.0.path().join(name);
        mount(Some("inner"), &place, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
        std::fs::write(place.join("inner"), "").unwrap();
    }

    fn has(&self, name: &str) -> bool {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        mounts.contains(&self.0.path().join(name).display().to_string())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for name in ["guest", "host", "before", ""] {
            let _absent = umount2(&self.0.path().join(name), MntFlags::MNT_DETACH);
        }
    }
}

/// Mounts something at `/data/guest`, then waits.
fn container<'a>(
    fixture: &'a Fixture,
    shared: &Shared,
    id: &str,
    root: Option<&str>,
    option: Option<&str>,
) -> Container<'a> {
    let script = "mount -t tmpfs inner /data/guest && exec sleep 1000";
    let container = fixture.native_with(id, &["/bin/sh", "-c", script], |spec| {
        jump_pids(spec);
        // As in a pod, whose containers have it whatever their mounts.
        cgroup_mount(spec);
        let mut options = vec!["rbind", "rw"];
        options.extend(option);
        add_mount(
            spec,
            json!({ "destination": "/data", "type": "bind", "source": shared.0.path(), "options": options }),
        );
        let file = shared.0.path().join("file");
        let options = ["bind", "ro", "rprivate"];
        add_mount(
            spec,
            json!({ "destination": "/one", "type": "bind", "source": file, "options": options }),
        );
        if let Some(root) = root {
            spec["linux"]["rootfsPropagation"] = json!(root);
        }
    });
    let container = container.unwrap();
    container.start();
    eventually("sleep runs", || (container.status("Name") == "sleep").then_some(()));
    container
}

fn inside(container: &Container<'_>, path: &str) -> bool {
    Path::new(&format!("/proc/{}/root{path}", container.pid)).exists()
}

#[test]
fn mounts_propagate_as_specified() {
    let fixture = Fixture::new();
    // The root's propagation, the mount's, and whether the host's mounts arrive inside, and the container's outside.
    let cases = [
        ("default", None, None, true, false),
        ("private", None, Some("rprivate"), false, false),
        ("slave", Some("rslave"), Some("rslave"), true, false),
        ("shared", Some("rshared"), Some("rshared"), true, true),
        ("beside-shared", Some("rshared"), Some("rprivate"), false, false),
    ];
    for (id, root, option, arrives, leaves) in cases {
        let shared = Shared::new();
        shared.mount_at("before");
        let container = container(&fixture, &shared, id, root, option);
        assert!(inside(&container, "/data/before/inner"), "{id}: rbind");
        assert!(inside(&container, "/one"), "{id}: a file");
        shared.mount_at("host");
        assert_eq!(inside(&container, "/data/host/inner"), arrives, "{id}: from the host");
        assert_eq!(shared.has("guest"), leaves, "{id}: from the container");
        container.signal(Signal::SIGKILL);
        container.wait();
        container.delete();
        assert!(!shared.has(".mounts"), "{id}: staged in the builder's namespace only");
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&fixture.root().display().to_string()), "{mounts}");
}

#[test]
fn a_missing_source_is_named() {
    let fixture = Fixture::new();
    let made = fixture.native_with("missing", &["/bin/true"], |spec| {
        add_mount(
            spec,
            json!({ "destination": "/d", "type": "bind", "source": "/no/such/place", "options": ["rbind", "rprivate"] }),
        );
    });
    let Err(message) = made else { panic!("created") };
    assert!(message.contains("/no/such/place"), "{message}");
}

/// Where a function's init has mounts.
fn targets_of_mounts(function: &Function<'_>) -> Vec<String> {
    let mounts = std::fs::read_to_string(format!("/proc/{}/mountinfo", function.container.pid));
    let place = |line: &str| line.split(' ').nth(4).map(str::to_owned);
    mounts.unwrap().lines().filter_map(place).collect()
}

#[test]
fn a_function_has_few_of_the_kernels_files() {
    let fixture = Fixture::new();
    let reactor = launch(Role::Secondary, &guests().reactor, Entry::Reactor);
    let function = Function::start(&fixture, "few", reactor.clone());
    assert_eq!(targets_of_mounts(&function), ["/", "/proc", "/dev", "/usr"]);
    let inside = |path: &str| inside(&function.container, path);
    assert!(inside("/proc/1/pagemap") && inside("/dev/null"));
    for path in ["/proc/sys", "/proc/keys", "/proc/version", "/sys/kernel", "/dev/shm"] {
        assert!(!inside(path), "{path}");
    }
    assert_eq!(function.caller().call(b"c"), Ok(b"1".to_vec()));
    function.end();
    let bundle = fixture.bundle("hooked", &["/f.wasm"], |spec| {
        spec["hooks"] = json!({ "poststart": [{ "path": "/bin/true" }] });
    });
    let function = Function::create_in(&fixture, "hooked", bundle, reactor).unwrap();
    assert!(targets_of_mounts(&function).contains(&"/sys".to_owned()));
    function.end();
}
