//! Commands (`wasi:cli/run` of WASI 0.2 and 0.3) on wasmtime, and what they have of WASI. One test: stdin and stdout are
//! the process's.

#![expect(clippy::unwrap_used, reason = "a test fails where it panics")]

mod fixture;

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd};
use std::path::Path;

use cwasi_config::Engine as Kind;
use cwasi_engine_tests::{assert_no_thread_is_left, compile};
use cwasi_sys::process::redirect;
use cwasi_vm::engine::{
    CommandEnd, Engine as _, EngineOptions, Instance as _, InstanceSpec, Module as _, Preopen,
};
use cwasi_wasmtime::Wasmtime;
use cwasi_wire::control::Entry;
use cwasi_wire::egress::Egress;
use nix::unistd::pipe;

use fixture::{Seen, host, load_with};

/// Commands that do the same in WASI 0.2 and in 0.3.
const COMMANDS: [&str; 2] = ["command", "async_command"];

/// A command for WASI 0.3 with the `run` of 0.2 that its language's start code has. Only the first one succeeds.
const BOTH: &str = r#"(component
    (core module $m
        (func (export "old") (result i32) (i32.const 1))
        (func (export "new") (result i32) (i32.const 0)))
    (core instance $i (instantiate $m))
    (func $old (result (result)) (canon lift (core func $i "old")))
    (func $new async (result (result)) (canon lift (core func $i "new")))
    (instance $old (export "run" (func $old)))
    (instance $new (export "run" (func $new)))
    (export "wasi:cli/run@0.2.0" (instance $old))
    (export "wasi:cli/run@0.3.0" (instance $new)))"#;

/// What a command has done.
struct Ran {
    end: CommandEnd,
    stdout: String,
    stderr: String,
}

/// Runs the command with this stdin and stdout: its end, and the end of its stderr.
fn run_on(
    (name, options): (&str, EngineOptions),
    spec: &InstanceSpec,
    (input, output): (&impl AsRawFd, &impl AsRawFd),
) -> (CommandEnd, String) {
    let module = load_with(name, options);
    module.check(&Entry::Command { export: "_start".into() }).unwrap();
    let mut host = host(&Seen::default());
    let stdout = std::io::stdout().as_fd().try_clone_to_owned().unwrap();
    redirect(input, 0).unwrap();
    redirect(output, 1).unwrap();
    let mut instance = module.instantiate(spec, &mut host).unwrap();
    instance.keep_stderr();
    let end = instance.run_command("_start", &mut host);
    redirect(&stdout, 1).unwrap();
    (end, String::from_utf8(instance.stderr_tail()).unwrap())
}

/// Runs the command with this payload on stdin.
fn run_in(name: &str, options: EngineOptions, spec: &InstanceSpec, payload: &[u8]) -> Ran {
    let mut input = tempfile::tempfile().unwrap();
    input.write_all(payload).unwrap();
    input.rewind().unwrap();
    let mut output = tempfile::tempfile().unwrap();
    let (end, stderr) = run_on((name, options), spec, (&input, &output));
    output.rewind().unwrap();
    let mut stdout = String::new();
    output.read_to_string(&mut stdout).unwrap();
    Ran { end, stdout, stderr }
}

fn run(name: &str, spec: &InstanceSpec, payload: &str) -> String {
    let ran = run_in(name, EngineOptions::default(), spec, payload.as_bytes());
    assert_eq!(ran.end, CommandEnd::Exited(0), "{name}: {}", ran.stderr);
    ran.stdout
}

fn a_command_has_its_payload_on_stdin_and_answers_on_stdout(name: &str) {
    let spec = InstanceSpec::default();
    assert_eq!(run(name, &spec, "hello"), "hello");
    let large = "x".repeat(3 << 20);
    assert_eq!(run(name, &spec, &large).len(), large.len());
    let exited = run_in(name, EngineOptions::default(), &spec, b"!exit 3");
    assert_eq!(
        (exited.end, &*exited.stderr),
        (CommandEnd::Exited(1), "leaving\n"),
        "WASI has no other code"
    );
    let trapped = run_in(name, EngineOptions::default(), &spec, b"!panic");
    assert!(matches!(trapped.end, CommandEnd::Trapped(_)), "{:?}", trapped.end);
    assert!(trapped.stderr.contains("as requested"), "{}", trapped.stderr);
}

fn it_has_arguments_and_variables_of_its_own_only(name: &str) {
    let spec = InstanceSpec {
        args: vec!["command".into(), "two".into()],
        env: vec!["A=b=c".into()],
        ..InstanceSpec::default()
    };
    assert_eq!(run(name, &spec, "!args"), "command two");
    assert_eq!(run(name, &spec, "!env A"), "b=c");
    assert_eq!(run(name, &spec, "!env PATH"), "");
}

fn it_has_the_directories_that_were_mounted_only(name: &str) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "text").unwrap();
    fs::create_dir(folder.path().join("inner")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", folder.path().join("link")).unwrap();
    let preopen = |name: &str, read_only| Preopen {
        name: name.into(),
        path: Path::new("/").into(),
        inside: Some(folder.path().into()),
        read_only,
    };
    let preopens = vec![preopen("/data", false), preopen("/fixed", true)];
    let spec = InstanceSpec { preopens, ..InstanceSpec::default() };
    assert_eq!(run(name, &spec, "!ls /data"), "file inner link");
    assert_eq!(run(name, &spec, "!read /fixed/file"), "text");
    assert_eq!(run(name, &spec, "!write /data/new"), "done");
    assert_eq!(fs::read_to_string(folder.path().join("new")).unwrap(), "written");
    for refused in [
        "!write /fixed/other",
        "!read /etc/passwd",
        "!ls /",
        "!read /data/link",
        "!read /data/../../etc/passwd",
    ] {
        let said = run(name, &spec, refused);
        assert!(said.starts_with("error: "), "{refused}: {said}");
    }
}

fn it_sleeps_without_a_thread(name: &str) {
    let slept = assert_no_thread_is_left(|| run(name, &InstanceSpec::default(), "!sleep 20"));
    assert_eq!(slept, "slept");
}

#[test]
fn commands() {
    for name in COMMANDS {
        a_command_has_its_payload_on_stdin_and_answers_on_stdout(name);
        it_has_arguments_and_variables_of_its_own_only(name);
        it_has_the_directories_that_were_mounted_only(name);
        it_sleeps_without_a_thread(name);
        it_reaches_allowed_destinations_only(name);
    }
    its_tasks_end_before_it_does();
    its_tasks_go_on_while_it_waits_for_stdin();
    run_of_0_3_comes_before_that_of_0_2();
}

fn run_of_0_3_comes_before_that_of_0_2() {
    let folder = tempfile::tempdir().unwrap();
    let wasm = folder.path().join("both.wasm");
    fs::write(&wasm, wat::parse_str(BOTH).unwrap()).unwrap();
    let engine = Wasmtime::new(EngineOptions::default()).unwrap();
    let module = engine.load(&compile(Kind::Wasmtime, &wasm)).unwrap();
    let mut host = host(&Seen::default());
    let mut instance = module.instantiate(&InstanceSpec::default(), &mut host).unwrap();
    assert_eq!(instance.run_command("_start", &mut host), CommandEnd::Exited(0));
}

fn its_tasks_end_before_it_does() {
    let spec = InstanceSpec::default();
    assert_eq!(run("async_command", &spec, "!later"), "now and later");
    let ran = run_in("async_command", EngineOptions::default(), &spec, b"!forever");
    let CommandEnd::Trapped(trap) = ran.end else { panic!("{:?}", ran.end) };
    assert!(trap.reason.contains("deadlock"), "{}", trap.reason);
}

fn its_tasks_go_on_while_it_waits_for_stdin() {
    let (input, sender) = pipe().unwrap();
    let (receiver, output) = pipe().unwrap();
    let other_side = std::thread::spawn(move || {
        let (mut receiver, mut sender) = (File::from(receiver), File::from(sender));
        let mut tick = [0; 5];
        receiver.read_exact(&mut tick).unwrap();
        sender.write_all(b"late").unwrap();
        drop(sender);
        let mut rest = String::new();
        receiver.read_to_string(&mut rest).unwrap();
        (tick, rest)
    });
    let spec = InstanceSpec { args: vec!["ticks".into()], ..InstanceSpec::default() };
    let command = ("async_command", EngineOptions::default());
    let (end, stderr) = run_on(command, &spec, (&input, &output));
    drop(output);
    assert_eq!(end, CommandEnd::Exited(0), "{stderr}");
    let (tick, rest) = other_side.join().unwrap();
    assert_eq!((&tick, &*rest), (b"tick\n", "late"));
}

fn it_reaches_allowed_destinations_only(name: &str) {
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = server.local_addr().unwrap();
    let connect = |egress: Option<Egress>, to: &str| {
        let options = EngineOptions { egress, ..EngineOptions::default() };
        let ran =
            run_in(name, options, &InstanceSpec::default(), format!("!connect {to}").as_bytes());
        assert_eq!(ran.end, CommandEnd::Exited(0), "{}", ran.stderr);
        ran.stdout
    };
    let egress = |entry: &str| {
        let entries = vec![entry.parse().unwrap()];
        Some(Egress { entries, trusts_hosts: false, trusts_resolver: false })
    };
    assert!(connect(None, &at.to_string()).starts_with("error: "), "no destination is allowed");
    let other = egress("127.0.0.1:1");
    assert!(connect(other, &at.to_string()).starts_with("error: "), "another one is");
    let served = std::thread::spawn(move || server.accept().unwrap().0.write_all(b"hi").unwrap());
    assert_eq!(connect(egress(&at.to_string()), &at.to_string()), "hi");
    served.join().unwrap();
    let name = format!("localhost:{}", at.port());
    assert!(connect(egress(&at.to_string()), &name).starts_with("error: "), "not by this name");
}
