//! End to end on a real containerd: what a single container promises. One test per promise; every test ends
//! with the check that nothing is left ([`cwasi_testbed::scene`]).

use std::io::{Read as _, Write as _};
use std::process::Stdio;
use std::sync::mpsc;
use std::thread;

use cwasi_config::Engine;
use cwasi_testbed::scene::{BUSYBOX, GUESTS, Scene, unique, wait_for};

use crate::{SHIM, scene};

#[test]
fn arguments_and_environment_are_the_given_ones() {
    let scene = scene("args");
    let run = scene.guest("c", "probe").args(["args", "a", "b c", "", "ü"]);
    assert_eq!(scene.run(run).success().text(), "/probe.wasm\nargs\na\nb c\n\nü\n");
    let run = scene.guest("env", "probe").args(["env"]).env("COLOUR", "dark blue");
    let text = scene.run(run).success().text();
    assert!(text.lines().any(|line| line == "COLOUR=dark blue"), "{text}");
    // Nothing of the host's own environment.
    assert!(!text.contains("CWASI_CONFIG") && !text.contains("TMPDIR"), "{text}");
}

#[test]
fn stdin_reaches_the_guest_and_stdout_comes_back_binary_safe() {
    let scene = scene("stdin");
    let bytes: Vec<u8> = (0..1_000_003_u32).map(|index| (index % 251) as u8).collect();
    let run = scene.guest("c", "probe").args(["cat"]);
    let mut command = run.command(&scene.containerd, false);
    let mut cat = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut stdin, mut stdout) = (cat.stdin.take().unwrap(), cat.stdout.take().unwrap());
    let (mut back, (sender, receiver)) = (vec![0; bytes.len()], mpsc::channel());
    let sent = bytes.clone();
    thread::spawn(move || stdin.write_all(&sent).map(|()| stdin));
    thread::spawn(move || stdout.read_exact(&mut back).map(|()| sender.send(back)));
    // Stdin ends after that: `ctr` drops what lies in its pipe when the task has ended, with any runtime.
    let back = wait_for("the bytes", || receiver.try_recv().ok());
    assert!(back == bytes);
    assert!(cat.wait().unwrap().success());
}

#[test]
fn signals_end_a_primary_with_128_and_their_number() {
    let scene = scene("signals");
    for (verb, signal, code) in [
        ("loop", "TERM", 143),
        ("loop", "KILL", 137),
        ("block", "TERM", 143),
        ("block", "INT", 130),
    ] {
        let id = format!("{verb}-{signal}");
        scene.start(scene.guest(&id, "probe").args([verb]));
        assert_eq!(scene.status(&id).as_deref(), Some("RUNNING"));
        scene.kill(&id, signal);
        scene.wait_stopped(&id);
        assert_eq!(scene.remove(&id), code, "{verb} with SIG{signal}");
    }
}

#[test]
fn the_memory_limit_holds_and_the_cgroup_is_the_asked_one() {
    /// Enough for the engine and a small guest, far below what `alloc` takes.
    const LIMIT: &str = "100663296";
    let scene = scene("memory");
    scene.start(scene.guest("small", "probe").args(["block"]).flag("--memory-limit").flag(LIMIT));
    let pid = scene.pid("small");
    let cgroups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let wanted = format!("/{}/small", scene.namespace);
    let memory = cgroups.lines().find(|line| line.contains(":memory:") || line.starts_with("0::/"));
    assert!(memory.is_some_and(|line| line.ends_with(&wanted)), "{cgroups}");
    let metrics = scene.ctr(["task", "metrics", "small"]).success().text();
    assert!(metrics.contains(LIMIT), "{metrics}");
    // Resident memory and page faults are left out when they are 0. Names of cgroup v1, or of v2.
    let json = scene.ctr(["task", "metrics", "--format", "json", "small"]).success().text();
    for names in [["\"total_rss\"", "\"anon\""], ["\"total_pg_fault\"", "\"pgfault\""]] {
        assert!(names.iter().any(|name| json.contains(name)), "{names:?} missing in {json}");
    }
    let hungry = scene.guest("hungry", "probe").args(["alloc", "512"]);
    let outcome = scene.run(hungry.flag("--memory-limit").flag(LIMIT));
    assert_eq!(outcome.code, 137, "{}{}", outcome.text(), outcome.stderr);
    let free = scene.guest("free", "probe").args(["alloc", "512"]);
    assert_eq!(scene.run(free).success().text(), "allocated 512 MiB\n");
}

#[test]
fn each_worker_that_memory_kills_is_an_event() {
    let scene = scene("oom-events");
    let events = scene.events(GUESTS);
    let eater = scene.guest("eater", "probe").args(["alloc", "512"]);
    let eater = eater.annotation("cwasi.role", "secondary").annotation("cwasi.function", "eater");
    scene.start(eater.flag("--memory-limit").flag("100663296"));
    for kills in 1..=2 {
        let outcome = scene.run(scene.guest("caller", "probe").args(["call", "eater", "x"]));
        assert_ne!(outcome.code, 0, "{}", outcome.text());
        wait_for("an event for each kill", || {
            (events.text().matches("/tasks/oom").count() == kills).then_some(())
        });
    }
    assert_eq!(scene.status("eater").as_deref(), Some("RUNNING"));
    scene.remove("eater");
    assert_eq!(events.text().matches("/tasks/oom").count(), 2);
}

#[test]
fn a_detached_task_answers_ctr_task_as_with_runc() {
    let scene = scene("task");
    // Not `block`: the engine tells a guest's `poll_oneoff` that the freezer interrupted it.
    scene.start(scene.guest("c", "probe").args(["loop"]));
    let pid = scene.pid("c");
    let ps = scene.ctr(["task", "ps", "c"]).success().text();
    assert!(ps.split_whitespace().any(|word| word == pid.to_string()), "{ps}");
    let metrics = scene.ctr(["task", "metrics", "c"]).success().text();
    assert!(metrics.contains("memory.usage_in_bytes") || metrics.contains("memory"), "{metrics}");
    // A running task cannot be deleted.
    let refused = scene.ctr(["task", "rm", "c"]);
    assert_ne!(refused.code, 0);
    assert_eq!(scene.status("c").as_deref(), Some("RUNNING"));
    let _paused = scene.ctr(["task", "pause", "c"]).success();
    assert_eq!(scene.status("c").as_deref(), Some("PAUSED"));
    let _resumed = scene.ctr(["task", "resume", "c"]).success();
    assert_eq!(scene.status("c").as_deref(), Some("RUNNING"));
    scene.kill("c", "TERM");
    scene.wait_stopped("c");
    assert_eq!(scene.delete_task("c"), 143);
    assert_eq!(scene.status("c"), None);
    // The container is still there and can be started again.
    let again = scene.ctr(["task", "start", "--detach", "c"]);
    let _started = again.success();
    assert_eq!(scene.status("c").as_deref(), Some("RUNNING"));
}

#[test]
fn the_same_runtime_runs_native_programs() {
    let scene = scene("native");
    scene.import_busybox();
    let busybox = |id: &str, args: &[&str]| scene.image(BUSYBOX, id).args(args.iter().copied());
    assert_eq!(scene.run(busybox("echo", &["echo", "hello"])).success().text(), "hello\n");
    assert_eq!(scene.run(busybox("code", &["sh", "-c", "exit 3"])).code, 3);
    let outcome = scene.run(busybox("cat", &["cat"]).stdin(b"from stdin".to_vec())).success();
    assert_eq!(outcome.text(), "from stdin");
    // Its own environment, and no variable of the runtime's.
    let run = busybox("env", &["sh", "-c", "echo $COLOUR $LD_PRELOAD"]).env("COLOUR", "blue");
    assert_eq!(scene.run(run).success().text(), "blue\n");
    // Its own pid namespace.
    assert_eq!(scene.run(busybox("pid", &["sh", "-c", "echo $$"])).success().text(), "1\n");
    // Once it has said that its handler is there.
    let dir = tempfile::tempdir().unwrap();
    let script = "trap 'exit 9' TERM; echo >/data/ready; while :; do sleep 0.1; done";
    scene.start(busybox("sleep", &["sh", "-c", script]).mount(dir.path(), "/data", "rw"));
    wait_for("the handler", || dir.path().join("ready").exists().then_some(()));
    scene.kill("sleep", "TERM");
    scene.wait_stopped("sleep");
    assert_eq!(scene.remove("sleep"), 9);
}

#[test]
fn a_module_that_is_not_there_is_an_error_in_words() {
    let scene = scene("no-module");
    let outcome = scene.run(scene.guest("c", "nothing"));
    assert_ne!(outcome.code, 0);
    assert!(outcome.stderr.contains("/nothing.wasm"), "{}", outcome.stderr);
}

#[test]
fn names_of_63_characters_work_everywhere() {
    let shim = SHIM;
    let namespace = format!("{:n<63}", unique("long") + "-");
    let scene = Scene::open(cwasi_testbed::paths::ContainerdVersion::V1_6, shim, &namespace);
    let callee = "s".repeat(63);
    scene.secondary(&callee, "server");
    let run = scene.guest(&"p".repeat(63), "probe").args(["call", &callee, "hello"]);
    assert_eq!(scene.run(run).success().text(), "hello");
}

#[test]
fn another_export_can_be_the_entry() {
    let scene = scene("export");
    // Prints nothing and exits with 5 from an export named `five`.
    let module = br#"(module
        (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
        (memory (export "memory") 1)
        (func (export "_start") (call $exit (i32.const 4)))
        (func (export "five") (call $exit (i32.const 5))))"#;
    let image = scene.import_module("entries", &wat::parse_bytes(module).unwrap());
    assert_eq!(scene.run(scene.image(&image, "start")).code, 4);
    let run = scene.image(&image, "five").args(["/m.wasm#five"]);
    // `ctr run` puts these arguments in the place of the image's.
    assert_eq!(scene.run(run).code, 5);
}

#[test]
fn functions_run_without_the_compiler_in_their_memory() {
    let scene = scene("llvm");
    for engine in Engine::ALL {
        let run = scene.guest("server", "server").annotation("cwasi.role", "secondary");
        scene.start(run.annotation("cwasi.engine", engine.name()));
        let init = scene.pid("server");
        let maps = std::fs::read_to_string(format!("/proc/{init}/maps")).unwrap();
        assert_eq!(maps.contains("libwasmedge"), engine == Engine::Wasmedge, "{maps}");
        assert!(!maps.contains("libLLVM"), "{maps}");
        scene.remove("server");
    }
}

/// Connects to 127.0.0.1 on a port that it may not reach, then on one that it may, which it sends "hello". With
/// `by_name` it looks `localhost` up in between. Exits with 7, or with what went wrong.
fn connecting_guest(denied: u16, allowed: u16, by_name: bool) -> Vec<u8> {
    let look_up = if by_name { "(call $look_up)" } else { "" };
    let text = format!(
        r#"(module
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (import "wasi_snapshot_preview1" "sock_open" (func $open (param i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "sock_connect" (func $connect (param i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "sock_listen" (func $listen (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "sock_send" (func $send (param i32 i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "sock_getaddrinfo"
    (func $get (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 32) "\7f\00\00\01")
  (data (i32.const 100) "localhost")
  (data (i32.const 300) "hello")
  (func $to (param $port i32) (result i32)
    (if (call $open (i32.const 1) (i32.const 2) (i32.const 16)) (then (call $exit (i32.const 99))))
    (i32.store (i32.const 0) (i32.const 32))
    (i32.store (i32.const 4) (i32.const 4))
    (call $connect (i32.load (i32.const 16)) (i32.const 0) (local.get $port)))
  (func $look_up
    (i32.store (i32.const 400) (i32.const 404))
    (i32.store8 (i32.const 522) (i32.const 1))
    (i32.store (i32.const 416) (i32.const 440))
    (i32.store (i32.const 444) (i32.const 26))
    (i32.store (i32.const 448) (i32.const 460))
    (if (call $get (i32.const 100) (i32.const 9) (i32.const 0) (i32.const 0)
        (i32.const 520) (i32.const 400) (i32.const 1) (i32.const 516))
      (then (call $exit (i32.const 98))))
    (if (i32.ne (i32.load (i32.const 462)) (i32.const 0x0100007f)) (then (call $exit (i32.const 97)))))
  (func (export "_start")
    (if (i32.ne (call $to (i32.const {denied})) (i32.const 2)) (then (call $exit (i32.const 96))))
    {look_up}
    (if (call $to (i32.const {allowed})) (then (call $exit (i32.const 95))))
    (if (i32.ne (call $listen (i32.load (i32.const 16)) (i32.const 1)) (i32.const 2))
      (then (call $exit (i32.const 94))))
    (i32.store (i32.const 48) (i32.const 300))
    (i32.store (i32.const 52) (i32.const 5))
    (if (call $send (i32.load (i32.const 16)) (i32.const 48) (i32.const 1) (i32.const 0) (i32.const 56))
      (then (call $exit (i32.const 93))))
    (call $exit (i32.const 7))))"#
    );
    wat::parse_str(text).expect("the text is a module")
}

#[test]
fn sockets_reach_what_the_annotation_allows_and_nothing_else() {
    let scene = scene("network");
    let listen = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = |listener: &std::net::TcpListener| listener.local_addr().unwrap().port();
    for (host, by_name) in [("127.0.0.1", false), ("localhost", true)] {
        let (allowed, denied) = (listen(), listen());
        denied.set_nonblocking(true).unwrap();
        let guest = connecting_guest(port(&denied), port(&allowed), by_name);
        let image = scene.import_module(&format!("connects-{by_name}"), &guest);
        let run = |id: &str| scene.image(&image, id).flag("--net-host");
        // By default there are no sockets at all.
        let outcome = scene.run(run(&format!("default-{by_name}")));
        assert_ne!(outcome.code, 0);
        assert!(outcome.stderr.contains("cwasi.network"), "{}", outcome.stderr);
        let entry = format!("{host}:{}", port(&allowed));
        let id = format!("allowed-{by_name}");
        let outcome = scene.run(run(&id).annotation("cwasi.network", &entry));
        assert_eq!(outcome.code, 7, "{host}: {}", outcome.stderr);
        let mut text = String::new();
        let (mut connection, _) = allowed.accept().unwrap();
        std::io::Read::read_to_string(&mut connection, &mut text).unwrap();
        assert_eq!(text, "hello");
        assert!(denied.accept().is_err(), "the other server saw something");
    }
}
