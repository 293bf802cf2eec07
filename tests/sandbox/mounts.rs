//! Mounts as runc makes them: cgroup v1 in a shared pid namespace, and propagation between host and container. And
//! sources that change while a container is built.

use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use cwasi_wire::control::{Entry, Role};
use cwasi_wire::mount_options::{IDENTITY, NO_LINKS};
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
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

/// Swaps a folder and a link to a secret one all the time, as a function with a writable mount around both could.
struct Swapped {
    dir: tempfile::TempDir,
    end: AtomicBool,
}

impl Swapped {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for (folder, file) in [("shared/data", "own"), ("secret", "secret")] {
            std::fs::create_dir_all(dir.path().join(folder)).unwrap();
            std::fs::write(dir.path().join(folder).join(file), "").unwrap();
        }
        symlink("../secret", dir.path().join("shared/link")).unwrap();
        Self { dir, end: AtomicBool::new(false) }
    }

    fn source(&self) -> PathBuf {
        self.dir.path().join("shared/data")
    }

    fn swap(&self) {
        let (data, link) = (self.source(), self.dir.path().join("shared/link"));
        renameat2(AT_FDCWD, &data, AT_FDCWD, &link, RenameFlags::RENAME_EXCHANGE).unwrap();
    }

    /// A container with `/data` from this source, whose links are refused.
    fn mount_in(&self, fixture: &Fixture, id: &str) -> Result<(), String> {
        let container = fixture.native_with(id, &["/bin/true"], |spec| {
            let options = ["rbind", "rw", NO_LINKS];
            let mount = json!({
                "destination": "/data", "type": "bind", "source": self.source(), "options": options
            });
            add_mount(spec, mount);
        })?;
        assert!(inside(&container, "/data/own"), "{id}");
        assert!(!inside(&container, "/data/secret"), "{id}");
        Ok(())
    }
}

#[test]
fn a_mount_whose_source_is_swapped_for_a_link_never_shows_what_the_link_names() {
    let (fixture, swapped) = (Fixture::new(), Swapped::new());
    assert_eq!(swapped.mount_in(&fixture, "before"), Ok(()));
    swapped.swap();
    let refused = swapped.mount_in(&fixture, "linked").unwrap_err();
    assert!(refused.contains("is a symbolic link to ../secret"), "{refused}");
    let build = |builder: &str| {
        for number in 0..20 {
            // Whether it is a link at that moment is the clock's to decide.
            let _refused = swapped.mount_in(&fixture, &format!("{builder}{number}"));
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !swapped.end.load(Ordering::Relaxed) {
                swapped.swap();
            }
        });
        let builders = ["a", "b"].map(|builder| scope.spawn(move || build(builder)));
        let ended = builders.map(|builder| builder.join());
        swapped.end.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|ended| ended.unwrap());
    });
}

#[test]
fn a_mount_without_the_option_follows_links_as_runc_does() {
    let (fixture, swapped) = (Fixture::new(), Swapped::new());
    let container = fixture.native_with("followed", &["/bin/true"], |spec| {
        let source = swapped.dir.path().join("shared/link");
        let options = ["rbind", "rw"];
        let mount = json!({
            "destination": "/data", "type": "bind", "source": source, "options": options
        });
        add_mount(spec, mount);
    });
    assert!(inside(&container.unwrap(), "/data/secret"));
}

#[test]
fn a_mount_of_a_named_file_takes_no_other() {
    let (fixture, swapped) = (Fixture::new(), Swapped::new());
    let named = std::fs::metadata(swapped.source()).unwrap();
    let identity = format!("{IDENTITY}{}:{}", named.dev(), named.ino());
    let create = |id: &str| {
        fixture.native_with(id, &["/bin/true"], |spec| {
            let options = ["rbind", "rw", identity.as_str()];
            let mount = json!({
                "destination": "/data", "type": "bind", "source": swapped.source(), "options": options
            });
            add_mount(spec, mount);
        })
    };
    assert!(inside(&create("named").unwrap(), "/data/own"));
    swapped.swap();
    let Err(refused) = create("other") else { panic!("created") };
    assert!(refused.contains("somebody has replaced it"), "{refused}");
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
