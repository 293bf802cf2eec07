//! Workflows on a real containerd: run, deploy, list, read, remove.

use std::io::Write as _;
use std::process::Stdio;

use cwasi_testbed::scene::wait_for;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::scene::Stage;
use super::{stderr, stdout};

#[test]
fn a_run_prints_results_and_hops_and_leaves_nothing() {
    let stage = Stage::new("cli-run");
    let file = stage.hello();
    let output = stage.cwasi().args(["run", &file]).output().unwrap();
    assert_eq!(
        (output.status.code(), stdout(&output).as_str()),
        (Some(0), "Hello, Ada!\nHello, Grace!\n")
    );
    let text = stderr(&output);
    let hop =
        text.lines().find(|line| line.starts_with("hello ")).unwrap_or_else(|| panic!("{text}"));
    assert!(hop.contains("greeter") && hop.contains("local") && hop.contains(" 2 "), "{hop}");
    assert_eq!(stage.containers(), Vec::<String>::new());
    // Nothing is coloured, and nothing moves, in a pipe.
    assert!(!text.contains('\u{1b}'), "{text}");
}

#[test]
fn what_is_piped_into_a_run_is_the_primarys_input() {
    let stage = Stage::new("cli-stdin");
    let function = format!("    cat: {{module: {}, args: [cat]}}\n", stage.guest("probe"));
    let file = stage.workflow("piped", &function);
    // More than a pipe holds.
    let text = "a line of input\n".repeat(20_000);
    for place in [&["run", file.as_str()][..], &["run", "--local", file.as_str()]] {
        let mut run = stage.cwasi();
        let run = run.args(place).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut run = run.stderr(Stdio::piped()).spawn().unwrap();
        let (mut input, bytes) = (run.stdin.take().unwrap(), text.clone().into_bytes());
        let writing = std::thread::spawn(move || input.write_all(&bytes));
        let output = run.wait_with_output().unwrap();
        writing.join().unwrap().unwrap();
        assert!(output.status.success(), "{place:?}: {}", stderr(&output));
        assert!(stdout(&output) == text, "{place:?}: {} bytes came back", output.stdout.len());
        // Without any input it has its end.
        assert_eq!(stage.ok(place), "", "{place:?}");
    }
}

#[test]
fn functions_of_the_papers_prototype_are_run_and_linted_with_compat_only() {
    let stage = Stage::new("cli-prototype");
    let (module, caller) = (stage.guest("prototype"), "args: [func_b.wasm, x]");
    let workflow = |more: &str| {
        let functions = format!(
            "    func_b: {{module: {module}, role: secondary{more}}}\n    \
             func_a: {{module: {module}, {caller}{more}}}\n"
        );
        stage.workflow("prototype", &functions)
    };
    let file = workflow(", compat: \"2023\"");
    assert_eq!(stage.ok(&["lint", &file]), "");
    for place in [&["run", file.as_str()][..], &["run", "--local", file.as_str()]] {
        let said = stage.ok(place);
        assert!(said.contains("Result from Module B : "), "{place:?}: {said}");
    }
    let said = stage.ok(&["inspect", &module]);
    assert!(said.contains("the runtime, for a function with cwasi.compat=2023"), "{said}");
    let found = stage.ok_or(1, &["lint", &workflow("")]);
    assert_eq!(found.matches("set `compat: \"2023\"`").count(), 2, "{found}");
}

#[test]
fn a_deploy_that_fails_leaves_what_runs() {
    let stage = Stage::new("cli-bad-deploy");
    let file = stage.hello();
    stage.ok(&["deploy", &file]);
    let pid = stage.scene.pid("hello.greeter");
    // No module; and an image that is in no containerd.
    let image = "spec.functions.greeter={image: 'localhost/none:1', role: secondary}";
    for set in ["spec.functions.greeter.module=/etc/hostname", image] {
        let output = stage.cwasi().args(["deploy", &file, "--set", set]).output().unwrap();
        assert!(!output.status.success(), "{set}");
        let starts = set.contains("module=");
        assert_eq!(stderr(&output).contains("hello.greeter runs on as it was"), starts, "{set}");
        assert_eq!(stage.containers(), ["hello.greeter"], "{set}: {}", stderr(&output));
        assert_eq!(stage.scene.pid("hello.greeter"), pid, "{set}");
        assert_eq!(stage.ok(&["invoke", "greeter", "--data", "Ada"]), "Hello, Ada!");
    }
}

#[test]
fn a_deploy_makes_the_containers_that_the_file_has() {
    let stage = Stage::new("cli-converge");
    let greeter = stage.guest("greeter");
    let function = |name: &str, replicas: u32| {
        format!("    {name}: {{module: {greeter}, role: secondary, replicas: {replicas}}}\n")
    };
    let file = stage.workflow("w", &(function("a", 3) + &function("b", 1)));
    stage.ok(&["deploy", &file]);
    assert_eq!(stage.containers(), ["w.a", "w.a.2", "w.a.3", "w.b"]);
    let file = stage.workflow("w", &function("a", 1));
    assert_eq!(
        stage.ok(&["deploy", &file]),
        "w.a unchanged\nw.a.2 removed\nw.a.3 removed\nw.b removed\n"
    );
    assert_eq!(stage.containers(), ["w.a"]);
}

#[test]
fn calls_go_on_while_a_function_is_deployed_anew() {
    let stage = Stage::new("cli-redeploy");
    let (server, probe) = (stage.guest("server"), stage.guest("probe"));
    let functions = format!(
        "    svc: {{module: {server}, role: secondary}}\n    p: {{module: {probe}, args: [repeat, svc, '300', '!sleep 10']}}\n"
    );
    let file = stage.workflow("w", &functions);
    stage.ok(&["deploy", &file]);
    let calling = stage.cwasi().args(["run", &file]).stdout(Stdio::piped()).spawn().unwrap();
    for queue in 1..=3 {
        let queue = format!("spec.functions.svc.queue={queue}");
        assert_eq!(stage.ok(&["deploy", &file, "--set", &queue]), "w.svc started\n");
    }
    let output = calling.wait_with_output().unwrap();
    assert_eq!(stdout(&output), "ok 300\n", "{}", stderr(&output));
}

#[test]
fn what_runs_already_is_used_and_stays() {
    let stage = Stage::new("cli-deploy");
    let file = stage.hello();
    assert_eq!(stage.ok(&["deploy", &file]), "hello.greeter started\n");
    let pid = stage.scene.pid("hello.greeter");
    assert_eq!(stage.ok(&["deploy", &file]), "hello.greeter unchanged\n");
    let json: Value = serde_json::from_str(&stage.ok(&["run", "--json", &file])).unwrap();
    assert_eq!((&json["exit"], &json["hops"][0]["calls"]), (&0.into(), &2.into()));
    assert_eq!(stage.scene.pid("hello.greeter"), pid);
    // Another configuration is another container.
    let more = ["deploy", &file, "--set", "spec.functions.greeter.concurrency=2"];
    assert_eq!(stage.ok(&more), "hello.greeter started\n");
    assert_ne!(stage.scene.pid("hello.greeter"), pid);
    let list: Value = serde_json::from_str(&stage.ok(&["ps", "--json"])).unwrap();
    assert_eq!(list[0]["function"], "greeter");
    // `run` does not replace what others call.
    let (pid, other) = (stage.scene.pid("hello.greeter"), "spec.functions.greeter.concurrency=3");
    let refused = stage.fails(70, &["run", &file, "--set", other]);
    assert!(refused.contains("hello.greeter runs otherwise than the file says"), "{refused}");
    assert_eq!(stage.scene.pid("hello.greeter"), pid);
    assert_eq!(list[0]["annotations"]["cwasi.concurrency"], "2");
    assert!(stage.ok(&["ps", "-v"]).contains("cwasi.concurrency=2"));
    stage.ok(&["run", &file, "--set", "spec.functions.greeter.concurrency=2"]);
    // The shim copies it beside the call.
    wait_for("the line of the log", || {
        stage.ok(&["logs", "greeter"]).contains("greeting Grace for hello").then_some(())
    });
    assert_eq!(stage.ok(&["rm", "--workflow", "hello"]), "hello.greeter\n");
    assert!(stage.fails(66, &["rm", "greeter"]).contains("has no container or function greeter"));
}

#[test]
fn rm_removes_what_a_killed_run_left() {
    let stage = Stage::new("cli-killed");
    let (greeter, probe) = (stage.guest("greeter"), stage.guest("probe"));
    let functions = format!(
        "    greeter: {{module: {greeter}, role: secondary}}\n    probe: {{module: {probe}, args: [loop]}}\n"
    );
    let file = stage.workflow("endless", &functions);
    let mut run = stage.cwasi();
    let run = run.args(["run", &file]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let run = run.unwrap();
    wait_for("the primary", || {
        (stage.scene.status("endless.probe").as_deref() == Some("RUNNING")).then_some(())
    });
    let temporary = || std::fs::read_dir(stage.scene.node.temporary()).unwrap();
    assert_eq!(temporary().count(), 0);
    kill(Pid::from_raw(run.id().try_into().unwrap()), Signal::SIGKILL).unwrap();
    run.wait_with_output().unwrap();
    assert_eq!(stage.containers(), ["endless.greeter", "endless.probe"]);
    let runs = stage.scene.node.state().join("runs");
    let left = || std::fs::read_dir(&runs).unwrap().count();
    assert_eq!((left(), temporary().count()), (1, 0));
    let checks = stage.cwasi().args(["doctor", "--json"]).output().unwrap();
    let checks: Value = serde_json::from_slice(&checks.stdout).unwrap();
    let found = |check: &&Value| check["what"] == "runs" && check["state"] == "note";
    assert!(checks.as_array().unwrap().iter().find(found).is_some(), "{checks}");
    let again = stage.fails(70, &["run", &file]);
    assert!(again.contains("endless.probe runs already: cwasi rm endless.probe"), "{again}");
    stage.ok(&["rm", "--workflow", "endless"]);
    assert_eq!(left(), 0);
}

#[test]
fn logs_follow_a_function_until_it_ends() {
    let stage = Stage::new("cli-logs");
    let file = stage.hello();
    stage.ok(&["deploy", &file]);
    let mut logs = stage.cwasi();
    let logs = logs.args(["logs", "--follow", "greeter"]);
    let logs = logs.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    stage.ok(&["run", &file]);
    stage.scene.kill("hello.greeter", "TERM");
    let output = logs.wait_with_output().unwrap();
    assert!(output.status.success() && stdout(&output).contains("greeting Ada"), "{output:?}");
    assert!(stderr(&output).contains("what was followed has ended"), "{output:?}");
    stage.ok(&["rm", "greeter"]);
}

#[test]
fn a_primarys_exit_code_is_the_commands() {
    let stage = Stage::new("cli-exit");
    let hello = stage.guest("hello-caller");
    // Its callee does not exist.
    let file = stage.workflow("alone", &format!("    hello: {{module: {hello}, args: [Ada]}}\n"));
    let text = stage.fails(1, &["run", &file]);
    assert!(text.contains("no route to function `greeter`"), "{text}");
    assert_eq!(stage.containers(), Vec::<String>::new());
}
