//! Native code in an image, and the processes of a function.

use std::path::Path;
use std::process::Command;

use cwasi_wire::control::{Entry, Role, SandboxMessage};
use cwasi_wire::egress::Egress;
use serde_json::json;

use crate::fixture::Fixture;
use crate::function::{Function, command, launch};
use crate::guests::{compiled, guests};

/// Looks up `some.host.test`; exits with the errno.
const LOOK_UP: &str = r#"(module
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (import "wasi_snapshot_preview1" "sock_getaddrinfo"
    (func $look_up (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 100) "some.host.test")
  (data (i32.const 200) "80")
  (func (export "_start")
    ;; one result: an addrinfo at 400, its address at 500, that one's data at 600
    (i32.store (i32.const 300) (i32.const 400))
    (i32.store offset=12 (i32.const 400) (i32.const 500))
    (i32.store offset=4 (i32.const 500) (i32.const 26))
    (i32.store offset=8 (i32.const 500) (i32.const 600))
    (i32.store offset=16 (i32.const 400) (i32.const 700))
    (i32.store offset=20 (i32.const 400) (i32.const 64))
    (call $exit (call $look_up (i32.const 100) (i32.const 14) (i32.const 200) (i32.const 2)
      (i32.const 320) (i32.const 300) (i32.const 1) (i32.const 360)))))"#;

/// Leaves a mark when it is loaded.
const PLANTED: &str = r#"#include <fcntl.h>
__attribute__((constructor)) static void planted(void) { creat("/mark", 0600); }"#;

/// An image in which glibc finds `library` as the service that looks up hosts and users.
fn plant(rootfs: &Path) {
    let libraries = rootfs.join(format!("lib/{}-linux-gnu", std::env::consts::ARCH));
    std::fs::create_dir_all(&libraries).unwrap();
    std::fs::create_dir_all(rootfs.join("etc")).unwrap();
    std::fs::write(rootfs.join("etc/nsswitch.conf"), "hosts: evil\npasswd: evil\n").unwrap();
    let source = rootfs.join("planted.c");
    std::fs::write(&source, PLANTED).unwrap();
    let out = libraries.join("libnss_evil.so.2");
    let made = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&out, &source]).status();
    assert!(made.unwrap().success());
}

#[test]
fn an_image_cannot_load_code_into_a_worker() {
    let fixture = Fixture::new();
    let guest = compiled("look-up", LOOK_UP);
    let hosts = fixture.dir.path().join("hosts");
    std::fs::write(&hosts, "192.0.2.1 some.host.test\n").unwrap();
    let bundle = fixture.bundle("planted", &["/f.wasm"], |spec| {
        let mounts = spec["mounts"].as_array_mut().unwrap();
        mounts.retain(|mount| mount["destination"] != "/usr");
        mounts.push(json!({
            "destination": "/etc/hosts", "type": "bind", "source": hosts, "options": ["bind", "ro"],
        }));
    });
    let rootfs = bundle.join("rootfs");
    std::fs::remove_file(rootfs.join("lib")).unwrap();
    plant(&rootfs);
    let mut launch = launch(Role::Primary, &guest, command("_start"));
    let entries = vec!["some.host.test:80".parse().unwrap()];
    launch.egress = Some(Egress { entries, trusts_hosts: true, trusts_resolver: false });
    let function = Function::create_in(&fixture, "planted", bundle, launch).unwrap();
    function.container.start();
    assert_eq!(function.container.wait(), 0, "the name is found");
    function.container.delete();
    assert!(!rootfs.join("mark").exists(), "code of the image ran");
}

#[test]
fn sockets_need_destinations_and_the_engines_types() {
    let fixture = Fixture::new();
    let refusal = |name: &str, guest: &str, egress: Option<Egress>| {
        let mut launch = launch(Role::Primary, &compiled(name, guest), command("_start"));
        launch.egress = egress;
        Function::create(&fixture, name, launch).err().unwrap()
    };
    let refused = refusal("no-network", LOOK_UP, None);
    assert!(refused.contains("sock_getaddrinfo") && refused.contains("cwasi.network"), "{refused}");
    // The engine would take it for one with three parameters, and read one that was not passed.
    let other_type = r#"(module
      (import "wasi_snapshot_preview1" "sock_connect" (func))
      (memory (export "memory") 1) (func (export "_start")))"#;
    let all = Egress { entries: vec!["*:*".parse().unwrap()], ..Egress::default() };
    let refused = refusal("other-type", other_type, Some(all));
    assert!(refused.contains("sock_connect") && refused.contains("type"), "{refused}");
}

/// How many seccomp filters a process is under.
fn filters(pid: i32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Seccomp_filters:")).unwrap();
    line.trim().parse().unwrap()
}

#[test]
fn every_process_of_a_function_is_filtered_and_no_native_one() {
    let fixture = Fixture::new();
    let own = filters(i32::try_from(std::process::id()).unwrap());
    let launch = launch(Role::Secondary, &guests().reactor, Entry::Reactor);
    let function = Function::create(&fixture, "filtered", launch).unwrap();
    // libcontainer's work in the container is done under the filter too.
    assert_eq!(filters(function.container.pid.as_raw()), own + 1);
    function.container.start();
    assert_eq!(function.message(), SandboxMessage::Ready);
    assert_eq!(function.caller().call(b"hello"), Ok(b"hello".to_vec()));
    let workers = function.workers();
    assert!(!workers.is_empty());
    for worker in workers {
        assert_eq!(filters(worker), own + 1);
    }
    function.end();
    let native = fixture.native("native", &["/bin/sleep", "1000"]);
    native.start();
    assert_eq!(filters(native.pid.as_raw()), own);
    native.delete();
    native.wait();
}

/// Mounts of a process with and without `noexec`.
fn mounts(pid: i32) -> (Vec<String>, Vec<String>) {
    let text = std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
    let is_noexec = |line: &&str| line.split(' ').nth(5).unwrap().split(',').any(|o| o == "noexec");
    let (with, without): (Vec<_>, Vec<_>) = text.lines().partition(is_noexec);
    let owned = |lines: Vec<&str>| lines.into_iter().map(str::to_owned).collect();
    (owned(with), owned(without))
}

#[test]
fn no_mount_of_a_function_runs_native_code() {
    let fixture = Fixture::new();
    // A mount with another one below it.
    let outer = tempfile::tempdir_in(fixture.dir.path()).unwrap();
    let bundle = fixture.bundle("mounts", &["/f.wasm"], |spec| {
        for (at, source) in [("/data", outer.path()), ("/data/inner", Path::new("/usr"))] {
            spec["mounts"].as_array_mut().unwrap().push(json!({
                "destination": at, "type": "bind", "source": source, "options": ["rbind", "rw"],
            }));
        }
    });
    let launch = launch(Role::Secondary, &guests().reactor, Entry::Reactor);
    let function = Function::create_in(&fixture, "mounts", bundle, launch).unwrap();
    // Before its start.
    let (with, without) = mounts(function.container.pid.as_raw());
    assert_eq!(without, [""; 0]);
    assert!(with.len() > 5 && with.iter().any(|line| line.contains(" /data/inner ")), "{with:?}");
    function.container.start();
    assert_eq!(function.message(), SandboxMessage::Ready);
    assert!(function.workers().iter().all(|worker| mounts(*worker).1.is_empty()));
    function.end();
    let native = fixture.native("native-mounts", &["/bin/sleep", "1000"]);
    native.start();
    let (_, without) = mounts(native.pid.as_raw());
    assert!(
        without.iter().any(|line| line.contains(" / / ") || line.contains(" / rw")),
        "{without:?}"
    );
    native.delete();
    native.wait();
}

#[test]
fn a_hook_may_run_a_program_in_a_functions_container() {
    let fixture = Fixture::new();
    let bundle = fixture.bundle("start-hook", &["/f.wasm"], |spec| {
        let line = "cat >/dev/null; echo startContainer >/ran";
        let hook = json!([{ "path": "/bin/sh", "args": ["sh", "-c", line] }]);
        spec["hooks"] = json!({ "startContainer": hook });
    });
    let ran = bundle.join("rootfs/ran");
    let launch = launch(Role::Secondary, &guests().reactor, Entry::Reactor);
    let function = Function::create_in(&fixture, "start-hook", bundle, launch).unwrap();
    function.container.start();
    assert_eq!(function.message(), SandboxMessage::Ready);
    assert_eq!(std::fs::read_to_string(ran).unwrap(), "startContainer\n");
    function.end();
}

#[test]
fn hooks_run_before_the_filter_comes() {
    let fixture = Fixture::new();
    let ran = fixture.dir.path().join("ran");
    let hook = |name: &str| {
        let line = format!("cat >/dev/null; echo {name} >> {}", ran.display());
        json!([{ "path": "/bin/sh", "args": ["sh", "-c", line] }])
    };
    let own = filters(i32::try_from(std::process::id()).unwrap());
    let bundle = fixture.bundle("hooks", &["/f.wasm"], |spec| {
        spec["hooks"] = json!({
            "createRuntime": hook("createRuntime"), "createContainer": hook("createContainer"),
        });
    });
    let launch = launch(Role::Secondary, &guests().reactor, Entry::Reactor);
    let function = Function::create_in(&fixture, "hooks", bundle, launch).unwrap();
    function.container.start();
    assert_eq!(function.message(), SandboxMessage::Ready);
    let text = std::fs::read_to_string(ran).unwrap();
    assert_eq!(text, "createRuntime\ncreateContainer\n");
    assert_eq!(filters(function.container.pid.as_raw()), own + 1);
    assert!(function.workers().iter().all(|worker| filters(*worker) == own + 1));
    function.end();
}
