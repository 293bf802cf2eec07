//! Signals in each phase of the verbs that take long: nothing is left, and the exit code says which signal it was.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpListener;
use std::process::{Child, Stdio};

use cwasi_testbed::scene::wait_for;
use cwasi_testbed::slow_module::fresh_module;
use nix::sys::signal::Signal::{self, SIGHUP, SIGINT, SIGTERM};

use super::home::signal;
use super::scene::Stage;
use super::stderr;

/// A stage of a command, at which it is interrupted.
#[derive(Clone, Copy, Debug)]
enum At {
    Begin,
    /// This container exists.
    Container(&'static str),
    /// It runs.
    Running(&'static str),
}

/// Waits until a command is at this stage, or has ended. Returns false when it has ended.
fn reaches(stage: &Stage, command: &mut Child, at: At) -> bool {
    wait_for(&format!("{at:?}"), || {
        let is_there = match at {
            At::Begin => true,
            At::Container(id) => stage.containers().iter().any(|it| it == id),
            At::Running(id) => stage.scene.status(id).as_deref() == Some("RUNNING"),
        };
        let has_ended = command.try_wait().unwrap().is_some();
        (is_there || has_ended).then_some(!has_ended)
    })
}

/// `128 + number`, as shells say it.
fn code_of(signal: Signal) -> Option<i32> {
    Some(128 + signal as i32)
}

fn start(stage: &Stage, arguments: &[&str]) -> Child {
    let mut command = stage.cwasi();
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// Ends a command that runs by a signal; what it had said on stderr.
fn interrupt(child: Child, with: Signal) -> String {
    signal(&child, with);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), code_of(with), "{}", stderr(&output));
    stderr(&output)
}

/// Neither containers nor what belongs to them: tasks, snapshots, leases, logs, processes, files.
fn nothing_is_left(stage: &Stage, what: &str) {
    let list = |arguments: &[&str]| stage.scene.ctr(arguments).success().text();
    assert_eq!(list(&["containers", "ls", "--quiet"]), "", "{what}");
    assert_eq!(list(&["tasks", "ls", "--quiet"]), "", "{what}");
    assert_eq!(list(&["leases", "ls", "--quiet"]), "", "{what}");
    let snapshots = list(&["snapshots", "ls"]);
    assert!(!snapshots.contains(" Active"), "{what}: {snapshots}");
    let left = stage.scene.leftovers();
    assert!(left.is_empty(), "{what} left:\n{}", left.join("\n"));
    let logs = stage.scene.node.state().join("logs");
    assert!(!logs.exists(), "{what}: {:?}", fs::read_dir(logs).unwrap().collect::<Vec<_>>());
}

/// The file of a module that is compiled in each run of the tests, and in each call of this.
fn fresh(stage: &Stage, number: u8) -> String {
    let path = stage.folder.path().join(format!("fresh-{number}.wasm"));
    fs::write(&path, fresh_module(number)).unwrap();
    path.display().to_string()
}

/// A secondary, and a primary that does not end.
fn endless(stage: &Stage, greeter: &str) -> String {
    let probe = stage.guest("probe");
    stage.workflow(
        "endless",
        &format!(
            "    greeter: {{module: {greeter}, role: secondary}}\n    \
             probe: {{module: {probe}, args: [loop]}}\n"
        ),
    )
}

/// Waits for a container in this state (`None` = without a task).
fn wait_for_status(stage: &Stage, container: &str, status: Option<&str>) {
    wait_for(&format!("{container} to be {status:?}"), || {
        let exists = stage.containers().iter().any(|id| id == container);
        (exists && stage.scene.status(container).as_deref() == status).then_some(())
    });
}

/// Workers of the first function that run a request.
fn busy(stage: &Stage) -> Option<u64> {
    let picture = stage.ok(&["top", "--json", "--count", "1", "--interval", "10ms"]);
    let picture: serde_json::Value = serde_json::from_str(&picture).unwrap();
    picture["functions"][0]["busy"].as_u64()
}

#[test]
fn starts_are_taken_down_at_any_stage() {
    let stage = Stage::new("cli-signals");
    let file = endless(&stage, &stage.guest("greeter"));
    // Compiled before: the stages are those of a start.
    stage.ok(&["run", &file, "--set", "spec.functions.probe.args=[args]"]);
    let greeter = [At::Begin, At::Container("endless.greeter"), At::Running("endless.greeter")];
    // A primary, which `deploy` does not start.
    let probe = [At::Container("endless.probe"), At::Running("endless.probe")];
    let runs = greeter.into_iter().chain(probe).map(|at| ("run", at));
    let stages = runs.chain(greeter.map(|at| ("deploy", at)));
    for ((verb, at), with) in stages.zip([SIGINT, SIGTERM, SIGHUP].into_iter().cycle()) {
        let mut child = start(&stage, &[verb, &file]);
        if reaches(&stage, &mut child, at) {
            signal(&child, with);
        }
        let output = child.wait_with_output().unwrap();
        let what = format!("{verb} at {at:?}: {}", stderr(&output));
        if output.status.success() {
            // It was faster than the signal.
            stage.ok(&["rm", "--workflow", "endless"]);
        }
        nothing_is_left(&stage, &what);
    }
}

#[test]
fn a_deployment_that_compiles_is_taken_down() {
    let stage = Stage::new("cli-signals-compile");
    for (number, with) in [(0, SIGINT), (1, SIGTERM)] {
        let greeter = fresh(&stage, number);
        let child = start(&stage, &["deploy", &endless(&stage, &greeter)]);
        wait_for_status(&stage, "endless.greeter", None);
        assert!(interrupt(child, with).contains("taking down"), "deploy says what it does");
        nothing_is_left(&stage, "deploy");
    }
}

#[test]
fn an_interrupted_replacement_is_ended() {
    let stage = Stage::new("cli-signals-replace");
    let server = stage.guest("server");
    let file = stage.workflow("w", &format!("    server: {{module: {server}, role: secondary}}\n"));
    stage.ok(&["deploy", &file]);
    // The old container ends this call first, while the one with another number serves.
    let call = start(&stage, &["invoke", "server", "--data", "!sleep 9000"]);
    wait_for("the call to run", || (busy(&stage) == Some(1)).then_some(()));
    let deploy = start(&stage, &["deploy", &file, "--set", "spec.functions.server.queue=8"]);
    wait_for_status(&stage, "w.server.65", Some("RUNNING"));
    interrupt(deploy, SIGINT);
    let call = call.wait_with_output().unwrap();
    assert!(call.status.success(), "{}", stderr(&call));
    assert_eq!(stage.containers(), ["w.server"]);
    assert_eq!(stage.scene.status("w.server").as_deref(), Some("RUNNING"));
    let list: serde_json::Value = serde_json::from_str(&stage.ok(&["ps", "--json"])).unwrap();
    assert_eq!(list[0]["annotations"]["cwasi.queue"], "8");
    assert_eq!(stage.ok(&["invoke", "server", "--data", "x"]), "x");
    stage.ok(&["rm", "server"]);
    nothing_is_left(&stage, "deploy");
}

#[test]
fn a_second_signal_does_not_stop_taking_down() {
    let stage = Stage::new("cli-signals-twice");
    let file = endless(&stage, &stage.guest("greeter"));
    stage.ok(&["run", &file, "--set", "spec.functions.probe.args=[args]"]);
    let mut child = start(&stage, &["run", &file]);
    wait_for_status(&stage, "endless.probe", Some("RUNNING"));
    signal(&child, SIGTERM);
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    lines.find(|line| line.as_ref().unwrap().contains("taking down")).unwrap().unwrap();
    for _ in 0..3 {
        signal(&child, SIGINT);
    }
    assert_eq!(child.wait().unwrap().code(), code_of(SIGTERM));
    nothing_is_left(&stage, "run");
}

#[test]
fn scaling_is_taken_back_at_any_stage() {
    let stage = Stage::new("cli-signals-scale");
    stage.ok(&["deploy", &stage.hello()]);
    for at in [
        At::Begin,
        At::Container("hello.greeter.2"),
        At::Running("hello.greeter.2"),
        At::Container("hello.greeter.3"),
    ] {
        let mut child = start(&stage, &["scale", "greeter", "3"]);
        if reaches(&stage, &mut child, at) {
            signal(&child, SIGINT);
        }
        let output = child.wait_with_output().unwrap();
        // Each replica is whole or not there, and the others stay.
        for id in stage.containers() {
            let status = stage.scene.status(&id);
            assert_eq!(status.as_deref(), Some("RUNNING"), "{id} at {at:?}: {output:?}");
        }
        stage.ok(&["scale", "greeter", "1"]);
        assert_eq!(stage.containers(), ["hello.greeter"], "at {at:?}");
    }
    stage.ok(&["rm", "greeter"]);
    nothing_is_left(&stage, "scale");
}

#[test]
fn what_follows_ends_with_the_signals_code() {
    let stage = Stage::new("cli-signals-follow");
    stage.ok(&["deploy", &stage.hello()]);
    stage.ok(&["invoke", "greeter", "--data", "Ada"]);
    for with in [SIGINT, SIGTERM] {
        for arguments in [
            ["logs", "--follow", "greeter"].as_slice(),
            &["top", "--interval", "10ms"],
            &["top", "--interval", "10ms", "--json"],
        ] {
            let mut child = start(&stage, arguments);
            // It has begun: this is the first byte of what it prints.
            child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
            interrupt(child, with);
        }
    }
    stage.ok(&["rm", "greeter"]);
}

#[test]
fn an_interrupted_call_leaves_the_function_alone() {
    let stage = Stage::new("cli-signals-invoke");
    let server = stage.guest("server");
    let file = stage.workflow("w", &format!("    server: {{module: {server}, role: secondary}}\n"));
    stage.ok(&["deploy", &file]);
    for with in [SIGINT, SIGTERM] {
        let child = start(&stage, &["invoke", "server", "--data", "!sleep 9000"]);
        wait_for("the call to run", || (busy(&stage) == Some(1)).then_some(()));
        interrupt(child, with);
        // The worker finishes what nobody waits for, then serves the next call.
        assert_eq!(stage.ok(&["invoke", "server", "--data", "x"]), "x");
        // What is reported is up to a second old: the next call would seem to run before it does.
        wait_for("the worker to rest", || (busy(&stage) == Some(0)).then_some(()));
    }
    stage.ok(&["rm", "server"]);
    nothing_is_left(&stage, "invoke");
}

#[test]
fn a_push_to_a_registry_that_hangs_is_interrupted() {
    let stage = Stage::new("cli-signals-push");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let tag = format!("{}/greeter:1", listener.local_addr().unwrap());
    for with in [SIGINT, SIGTERM] {
        let child =
            start(&stage, &["image", "build", "--push", "-t", &tag, &stage.guest("greeter")]);
        // It waits for an answer that does not come.
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0]).unwrap();
        interrupt(child, with);
    }
    nothing_is_left(&stage, "image build --push");
}

#[test]
fn an_interrupted_compilation_leaves_no_draft() {
    let stage = Stage::new("cli-signals-compiler");
    let config = stage.folder.path().join("node.toml");
    let cache = stage.folder.path().join("cache");
    fs::write(&config, format!("cache_dir = '{}'\n", cache.display())).unwrap();
    let files = || -> Vec<String> {
        let entries = fs::read_dir(cache.join("aot")).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
    };
    for (number, with) in [(0, SIGINT), (1, SIGTERM)] {
        let module = fresh(&stage, number);
        let mut command = stage.cwasi();
        command.env("CWASI_CONFIG", &config).args(["compile", &module]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait_for("the draft", || files().iter().any(|it| it.starts_with(".draft-")).then_some(()));
        interrupt(child, with);
        let drafts = || files().into_iter().find(|it| it.starts_with(".draft-"));
        assert_eq!(drafts(), None);
    }
}
