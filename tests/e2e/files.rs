//! End to end on a real containerd: which files a guest sees. The image's are there to be read, mounts (of single files too)
//! as they are mounted, and nothing leads to `/proc`, whatever links an image has.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::path::Path;

use cwasi_testbed::image::{Rootfs, Start};
use cwasi_testbed::run::{Outcome, Run};
use cwasi_testbed::scene::{Scene, guests_dir, wait_for};

use crate::SHIM;

const IMAGE: &str = "localhost/files:test";

/// A scene with an image that has files, and links that lead out of it.
fn scene(name: &str) -> Scene {
    let scene = Scene::new(SHIM, name);
    let programs = Path::new(SHIM).parent().unwrap();
    let mut rootfs = Rootfs::default();
    rootfs.file(&guests_dir(programs).join("probe.wasm"), "/probe.wasm").unwrap();
    rootfs.file(&guests_dir(programs).join("server.wasm"), "/server.wasm").unwrap();
    for (path, text) in [
        ("/top.txt", "at the top"),
        ("/etc/greeting", "hello from the image"),
        ("/etc/replaced", "the image's"),
        ("/app/data.txt", "beside the program"),
        ("/app/deep/data.txt", "below it"),
    ] {
        rootfs.bytes(text.as_bytes(), path).unwrap();
    }
    for (target, link) in [
        ("/proc/self", "/leads-to-proc"),
        ("../../../../proc/self", "/app/leads-up-to-proc"),
        ("/proc/self/status", "/status"),
        ("../../proc/self/status", "/app/status"),
        ("../proc/self/status", "/app/deep/status"),
        ("/app/../proc/self/status", "/over-app"),
        ("/status", "/link-to-status"),
        ("etc/greeting", "/link-to-greeting"),
    ] {
        rootfs.link(target, link).unwrap();
    }
    let archive = scene.node.path().join(format!("{name}.tar"));
    rootfs.write(IMAGE, &Start::default(), &archive).unwrap();
    scene.import(&archive);
    scene
}

fn probe(scene: &Scene, args: &[&str], more: impl FnOnce(Run) -> Run) -> Outcome {
    let run = scene.image(IMAGE, "probe").args(["/probe.wasm"]).args(args.iter().copied());
    scene.run(more(run))
}

fn reads(scene: &Scene, path: &str, more: impl FnOnce(Run) -> Run) -> String {
    probe(scene, &["read", path], more).success().text()
}

#[test]
fn the_images_files_can_be_read_and_not_written() {
    let scene = scene("files-image");
    for (path, text) in [
        ("/etc/greeting", "hello from the image"),
        ("etc/greeting", "hello from the image"),
        ("/top.txt", "at the top"),
        ("/link-to-greeting", "hello from the image"),
        ("/app/../top.txt", "at the top"),
    ] {
        assert_eq!(reads(&scene, path, |run| run), text, "{path}");
    }
    let listed = probe(&scene, &["ls", "/app"], |run| run).success().text();
    assert_eq!(listed, "data.txt\ndeep\nleads-up-to-proc\nstatus\n");
    for path in ["/etc/greeting", "/etc/new", "/new"] {
        assert_ne!(probe(&scene, &["write", path, "x"], |run| run).code, 0, "{path} was written");
    }
    assert_eq!(reads(&scene, "/etc/greeting", |run| run), "hello from the image");
}

#[test]
fn nothing_leads_to_proc_and_devices() {
    let scene = scene("files-proc");
    for path in [
        "/proc/self/status",
        "/proc/version",
        "/leads-to-proc/status",
        "/app/leads-up-to-proc/status",
        "/status",
        "/app/status",
        "/app/deep/status",
        "/over-app",
        "/link-to-status",
        "/../proc/self/status",
        "/dev/cwasi/files/top.txt",
        "/sys/kernel/mm/transparent_hugepage/enabled",
    ] {
        let outcome = probe(&scene, &["read", path], |run| run);
        assert_ne!(outcome.code, 0, "{path} was readable: {}", outcome.text());
    }
    let there = probe(&scene, &["ls", "/proc"], |run| run);
    assert_eq!(there.text(), "", "an empty directory, or none");
    // As the working directory.
    for cwd in ["/leads-to-proc", "/proc/self", "/app/leads-up-to-proc"] {
        let outcome = probe(&scene, &["read", "status"], |run| run.flag("--cwd").flag(cwd));
        assert_ne!(outcome.code, 0, "{cwd}: {}", outcome.text());
    }
}

#[test]
fn a_function_has_the_devices_that_only_read_and_write() {
    let scene = scene("files-devices-of-guests");
    let listed = probe(&scene, &["ls", "/dev"], |run| run).success().text();
    assert_eq!(listed, "full\nnull\nrandom\nstderr\nstdin\nstdout\nurandom\nzero\n");
    assert_eq!(reads(&scene, "/dev/null", |run| run), "");
    let _written = probe(&scene, &["write", "/dev/null", "x"], |run| run).success();
    let full = probe(&scene, &["write", "/dev/full", "x"], |run| run);
    assert!(full.code != 0 && full.stderr.contains("StorageFull"), "{}", full.stderr);
    let new = probe(&scene, &["write", "/dev/new", "x"], |run| run);
    assert_ne!(new.code, 0, "nothing is made there");
    // With a working directory, absolute paths lead there nevertheless.
    let there = |run: Run| run.flag("--cwd").flag("/app");
    let _written = probe(&scene, &["write", "/dev/null", "x"], there).success();
}

/// The other engine has a WASI of its own, which follows no such link.
#[test]
fn the_functions_streams_are_among_its_devices() {
    let scene = scene("files-streams");
    let wasmtime = |run: Run| run.annotation("cwasi.engine", "wasmtime");
    let out = probe(&scene, &["write", "/dev/stdout", "to-out"], wasmtime).success();
    assert_eq!((out.text().as_str(), out.guest_stderr().as_str()), ("to-out", ""));
    let error = probe(&scene, &["write", "/dev/stderr", "to-err"], wasmtime).success();
    assert_eq!((error.text().as_str(), error.guest_stderr().trim_end()), ("", "to-err"));
    let stdin = |run: Run| wasmtime(run).stdin(b"from stdin".to_vec());
    assert_eq!(reads(&scene, "/dev/stdin", stdin), "from stdin");
}

/// Reads 8 bytes of a device into 8 bytes 0xff; exits with 7 if they are 0, or with 8.
fn reading_guest(device: &str) -> Vec<u8> {
    let length = device.len();
    let text = format!(
        r#"(module
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (import "wasi_snapshot_preview1" "path_open"
    (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 100) "{device}")
  (data (i32.const 200) "\ff\ff\ff\ff\ff\ff\ff\ff")
  (func (export "_start")
    (if (call $open (i32.const 3) (i32.const 1) (i32.const 100) (i32.const {length}) (i32.const 0)
          (i64.const 2) (i64.const 0) (i32.const 0) (i32.const 16))
      (then (call $exit (i32.const 90))))
    (i32.store (i32.const 0) (i32.const 200))
    (i32.store (i32.const 4) (i32.const 8))
    (if (call $read (i32.load (i32.const 16)) (i32.const 0) (i32.const 1) (i32.const 20))
      (then (call $exit (i32.const 91))))
    (if (i32.ne (i32.load (i32.const 20)) (i32.const 8)) (then (call $exit (i32.const 92))))
    (call $exit (select (i32.const 7) (i32.const 8) (i64.eqz (i64.load (i32.const 200)))))))"#
    );
    wat::parse_str(text).expect("the text is a module")
}

#[test]
fn zeroes_and_random_bytes_come_from_devices() {
    let scene = Scene::new(SHIM, "files-random");
    for (device, code) in [("zero", 7), ("urandom", 8), ("random", 8)] {
        let guest = reading_guest(&format!("dev/{device}"));
        let image = scene.import_module(device, &guest);
        let outcome = scene.run(scene.image(&image, device));
        assert_eq!(outcome.code, code, "{device}: {}", outcome.stderr);
    }
}

/// As the kubelet mounts `/dev/termination-log`.
#[test]
fn a_file_that_is_mounted_among_the_devices_can_be_written() {
    let scene = scene("files-termination");
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    std::fs::write(&log, "").unwrap();
    let mounted = |run: Run| run.mount(&log, "/dev/termination-log", "rw");
    let write = ["write", "/dev/termination-log", "the reason"];
    let _written = probe(&scene, &write, mounted).success();
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "the reason");
}

/// Links of an image, or of a mounted folder, must not lead device files out of the container.
#[test]
fn no_devices_are_made_where_links_lead() {
    let scene = Scene::new(SHIM, "files-devices");
    let programs = Path::new(SHIM).parent().unwrap();
    let (mounted, host) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let image = |name: &str, links: &[(&str, &str)]| {
        let mut rootfs = Rootfs::default();
        rootfs.file(&guests_dir(programs).join("probe.wasm"), "/probe.wasm").unwrap();
        // The link leads to a folder of the image, and to one of the host.
        rootfs.bytes(b"", &format!("{}/file", host.path().display())).unwrap();
        for (target, link) in links {
            rootfs.link(target, link).unwrap();
        }
        let reference = format!("localhost/{name}:test");
        let archive = scene.node.path().join(format!("{name}.tar"));
        rootfs.write(&reference, &Start::default(), &archive).unwrap();
        scene.import(&archive);
        reference
    };
    let run = |image: &str| scene.image(image, "probe").args(["/probe.wasm", "args"]);
    let link = image("files-dev-link", &[(host.path().to_str().unwrap(), "/dev")]);
    let refused = scene.run(run(&link));
    assert!(
        refused.stderr.contains("/dev is a symbolic link in the container"),
        "{}",
        refused.stderr
    );
    assert_eq!(std::fs::read_dir(host.path()).unwrap().count(), 0);
    let links = image("files-dev-links", &[("/dev", "/x"), ("..", "/y"), ("/dev/cwasi", "/z")]);
    for target in ["/x", "/y", "/z", "/dev/cwasi"] {
        let refused = scene.run(run(&links).mount(mounted.path(), target, "rw"));
        assert!(refused.stderr.contains("device files are made"), "{target}: {}", refused.stderr);
        // One that waits for its code.
        let awaits = scene.image(&links, "awaits").args(["nothing"]);
        let awaits = awaits.annotation("cwasi.role", "secondary").annotation("cwasi.http", "8080");
        let awaits = awaits.annotation("cwasi.protocol", "openwhisk");
        let refused = scene.run(awaits.mount(mounted.path(), target, "rw"));
        assert!(refused.stderr.contains("device files are made"), "{target}: {}", refused.stderr);
    }
    let inner_first =
        |run: Run| run.mount(host.path(), "/data/inner", "rw").mount(mounted.path(), "/data", "rw");
    let refused = scene.run(inner_first(run(&links)));
    assert!(
        refused.stderr.contains("/data/inner is hidden by the one at /data"),
        "{}",
        refused.stderr
    );
    assert_eq!(std::fs::read_dir(mounted.path()).unwrap().count(), 0);
}

/// What libcontainer says is for those who know it.
#[test]
fn a_mount_that_fails_is_said_in_words() {
    let scene = scene("files-words");
    for (source, target, said) in [
        ("/no/such", "/data", "/no/such, the source of the mount at /data, does not exist"),
        ("/tmp", "/top.txt", "/top.txt, and its source are not both folders, or both files"),
    ] {
        let refused = probe(&scene, &["args"], |run| run.mount(Path::new(source), target, "ro"));
        assert!(refused.stderr.contains(said), "{}", refused.stderr);
    }
    scene.import_busybox();
    let native = scene.image(cwasi_testbed::scene::BUSYBOX, "native").args(["true"]);
    let refused = scene.run(native.mount(Path::new("/no/such"), "/data", "ro")).stderr;
    let said =
        "the source of the mount at /data cannot be used: /no/such cannot be opened: No such file";
    assert!(refused.contains(said), "{refused}");
    for raw in ["Mount {", "Some(", "err=", "exec process failed", "cannot be created: :"] {
        assert!(!refused.contains(raw), "{raw} in {refused}");
    }
}

#[test]
fn mounted_files_and_directories_are_seen_in_their_places() {
    let scene = scene("files-mounts");
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name);
    std::fs::write(file("there"), "from the host").unwrap();
    let mounted = |run: Run| {
        run.mount(&file("there"), "/etc/replaced", "ro")
            .mount(&file("there"), "/var/lib/new/file", "rw")
            // Where containerd mounts a tmpfs.
            .mount(&file("there"), "/run/secrets/file", "ro")
            .mount(dir.path(), "/data", "rw")
            .mount(dir.path(), "/app/deep", "ro")
    };
    for path in [
        "/etc/replaced",
        "/var/lib/new/file",
        "/run/secrets/file",
        "/data/there",
        "/app/deep/there",
    ] {
        assert_eq!(reads(&scene, path, mounted), "from the host", "{path}");
    }
    assert_eq!(reads(&scene, "/etc/greeting", mounted), "hello from the image");
    let write = |path: &str, text: &str| probe(&scene, &["write", path, text], mounted).code;
    assert_ne!(write("/etc/replaced", "x"), 0);
    assert_ne!(write("/app/deep/new", "x"), 0);
    assert_eq!(std::fs::read_to_string(file("there")).unwrap(), "from the host");
    assert_eq!(write("/data/new", "from the guest"), 0);
    assert_eq!(std::fs::read_to_string(file("new")).unwrap(), "from the guest");
    assert_eq!(write("/var/lib/new/file", "changed"), 0);
    assert_eq!(std::fs::read_to_string(file("there")).unwrap(), "changed");
    // A link in a mount leads nowhere else.
    std::os::unix::fs::symlink("/proc/self", file("proc")).unwrap();
    for path in ["/data/proc/status", "/data/../proc/self/status"] {
        assert_ne!(probe(&scene, &["read", path], mounted).code, 0, "{path}");
    }
}

#[test]
fn relative_paths_begin_at_the_working_directory() {
    let scene = scene("files-cwd");
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("below")).unwrap();
    std::fs::write(dir.path().join("below/there"), "from the host").unwrap();
    let in_app = |run: Run| run.flag("--cwd").flag("/app").mount(dir.path(), "/data", "rw");
    for (path, text) in [
        ("data.txt", "beside the program"),
        ("./data.txt", "beside the program"),
        ("deep/data.txt", "below it"),
        ("/app/data.txt", "beside the program"),
        ("/etc/greeting", "hello from the image"),
        ("/data/below/there", "from the host"),
    ] {
        assert_eq!(reads(&scene, path, in_app), text, "{path}");
    }
    let env = probe(&scene, &["env"], in_app).success().text();
    assert!(env.lines().any(|line| line == "PWD=/app"), "{env}");
    // A missing one is made, as runc makes it.
    let missing = |run: Run| run.flag("--cwd").flag("/made/here");
    assert_eq!(probe(&scene, &["ls", "/made"], missing).success().text(), "here\n");
    assert_eq!(probe(&scene, &["ls", "."], missing).success().text(), "");
    // In a mount, and the mount itself.
    let in_mount = |cwd: &'static str| {
        let dir = dir.path();
        move |run: Run| run.flag("--cwd").flag(cwd).mount(dir, "/data", "rw")
    };
    assert_eq!(reads(&scene, "there", in_mount("/data/below")), "from the host");
    assert_eq!(reads(&scene, "below/there", in_mount("/data")), "from the host");
    let written = probe(&scene, &["write", "new", "x"], in_mount("/data/below"));
    let _written = written.success();
    assert!(dir.path().join("below/new").exists());
}

#[test]
fn a_secondary_sees_files_in_every_request() {
    let scene = scene("files-secondary");
    let dir = tempfile::tempdir().unwrap();
    let run = scene.image(IMAGE, "server").args(["/server.wasm"]);
    scene.start(run.annotation("cwasi.role", "secondary").mount(dir.path(), "/log", "rw"));
    let fifty = ["repeat", "server", "50", "!record 7"];
    let _recorded = probe(&scene, &fifty, |run| run).success();
    wait_for("fifty records", || {
        let text = std::fs::read_to_string(dir.path().join("executed")).unwrap();
        (text.lines().count() == 50).then_some(())
    });
}
