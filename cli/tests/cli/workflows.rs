//! Workflows on a real containerd: run, deploy, list, read, remove.

use std::io::Write as _;
use std::process::Stdio;

use cwasi_testbed::scene::wait_for;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::scene::Stage;
use super::{cwasi, stderr, stdout};

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

/// Each run has a shim of its own, whose counts begin at 0.
#[test]
fn every_run_counts_its_own_calls() {
    let stage = Stage::new("cli-counts");
    let file = stage.hello();
    for calls in [1_u64, 2, 2, 5, 1, 6] {
        let names: Vec<_> = (0..calls).map(|number| format!("name{number}")).collect();
        let args = format!("spec.functions.hello.args=[{}]", names.join(", "));
        let json = stage.ok(&["run", "--json", &file, "--set", &args]);
        let json: Value = serde_json::from_str(&json).unwrap();
        let hops = json["hops"].as_array().unwrap();
        assert_eq!(hops.len(), 1, "{json}");
        assert_eq!(hops[0]["calls"], calls, "{json}");
    }
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
fn logs_are_bounded_and_read_across_their_files() {
    let stage = Stage::new("cli-logs-bound");
    // The node's configuration, with small logs in a folder of their own.
    let node = stage.scene.node.config();
    let folder = stage.folder.path().join("logs");
    let config = std::fs::read_to_string(node).unwrap();
    let config =
        format!("{config}\n[logs]\ndir = {folder:?}\nmax_size = \"64KiB\"\nmax_files = 2\n");
    let path = stage.folder.path().join("node.toml");
    std::fs::write(&path, config).unwrap();
    let run = |arguments: &[&str]| {
        let output = stage.cwasi().env("CWASI_CONFIG", &path).args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        stdout(&output)
    };
    let name = "Ada ".repeat(100);
    let functions = format!(
        "    greeter: {{module: {}, role: secondary}}\n    calls: {{module: {}, args: [repeat, greeter, '400', {name:?}]}}\n",
        stage.guest("greeter"),
        stage.guest("probe")
    );
    let file = stage.workflow("long", &functions);
    run(&["deploy", &file]);
    run(&["run", &file]);
    let files: Vec<_> = std::fs::read_dir(folder.join(&stage.scene.namespace)).unwrap().collect();
    let sizes = files.iter().map(|file| file.as_ref().unwrap().metadata().unwrap().len());
    assert!(files.len() == 2 && sizes.max() <= Some(64 << 10), "{files:?}");
    let lines = run(&["logs", "greeter"]).lines().count();
    let tail = run(&["logs", "--tail", "1", "greeter"]);
    assert!(tail.starts_with("INFO greeter: greeting Ada "), "{tail}");
    assert!((65..400).contains(&lines), "{lines} lines, more than one file has");
    run(&["rm", "--workflow", "long"]);
    assert!(!folder.join(&stage.scene.namespace).exists());
}

#[test]
fn lines_of_logs_have_times_and_are_selected_by_them() {
    let stage = Stage::new("cli-logs-times");
    stage.ok(&["deploy", &stage.hello()]);
    for name in ["Ada", "Grace"] {
        stage.ok(&["invoke", "greeter", "--data", name]);
    }
    let logs = |arguments: &[&str]| stage.ok(&[&["logs", "greeter"], arguments].concat());
    let about = |text: &str| -> Vec<String> {
        text.lines().filter(|line| line.contains("greeting")).map(str::to_owned).collect()
    };
    let plain = wait_for("both lines", || Some(about(&logs(&[]))).filter(|lines| lines.len() == 2));
    assert!(plain[0].starts_with("INFO greeter: greeting Ada"), "{plain:?}");
    let timed = about(&logs(&["--timestamps"]));
    let time = |line: &str| line.split_once(' ').unwrap().0.to_owned();
    assert!(timed[0].ends_with(&plain[0]) && time(&timed[0]) < time(&timed[1]), "{timed:?}");
    assert_eq!(about(&logs(&["--since", &time(&timed[1])])), plain[1..]);
    assert_eq!(about(&logs(&["--since", "10m"])), plain);
    assert_eq!(logs(&["--tail", "1"]).trim_end(), plain[1]);
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

/// Interrupts `cwasi run FILE` when `container` has this state (`None` = no task yet), and sees nothing left.
fn interrupted(stage: &Stage, file: &str, container: &str, status: Option<&str>) {
    let run = stage.cwasi().args(["run", file]).stderr(Stdio::piped()).spawn().unwrap();
    wait_for("the function to be there", || {
        let exists = stage.containers().iter().any(|id| id == container);
        (exists && stage.scene.status(container).as_deref() == status).then_some(())
    });
    kill(Pid::from_raw(run.id().try_into().unwrap()), Signal::SIGINT).unwrap();
    let output = run.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    assert!(stderr(&output).contains("interrupted, taking down"), "{}", stderr(&output));
    assert_eq!(stage.containers(), Vec::<String>::new());
}

#[test]
fn ctrl_c_takes_everything_down() {
    let stage = Stage::new("cli-interrupt");
    let (greeter, probe) = (stage.guest("greeter"), stage.guest("probe"));
    let functions = |module: &str| {
        format!(
            "    greeter: {{module: {greeter}, role: secondary}}\n    probe: {{module: {module}, args: [loop]}}\n"
        )
    };
    let file = stage.workflow("endless", &functions(&probe));
    // Compiled before, so that waiting for the endless one has a bound.
    stage.ok(&["run", &file, "--set", "spec.functions.probe.args=[args]"]);
    interrupted(&stage, &file, "endless.probe", Some("RUNNING"));
    // While it is compiled: with a section of its own it is another module in each run.
    let mut module = std::fs::read(&probe).unwrap();
    module.extend([0, 6, 1, b'n']);
    module.extend(std::process::id().to_le_bytes());
    let other = stage.folder.path().join("other.wasm");
    std::fs::write(&other, module).unwrap();
    let file = stage.workflow("endless", &functions(&other.display().to_string()));
    interrupted(&stage, &file, "endless.probe", None);
}

#[test]
fn a_failed_start_says_why_and_ends_the_run() {
    let stage = Stage::new("cli-fault");
    let greeter = stage.guest("greeter");
    let wrong = stage.folder.path().join("wrong.wasm");
    std::fs::write(&wrong, "no module").unwrap();
    let functions = format!(
        "    greeter: {{module: {greeter}, role: secondary}}\n    wrong: {{module: {}, role: secondary}}\n",
        wrong.display()
    );
    let file = stage.workflow("faulty", &functions);
    let text = stage.fails(70, &["deploy", &file]);
    assert!(text.contains("is not a WebAssembly module"), "{text}");
    assert_eq!(stage.containers(), Vec::<String>::new());
}

#[test]
fn what_is_missing_is_named() {
    let stage = Stage::new("cli-missing");
    let image = stage.workflow("w", "    f: {image: 'localhost/nothing:1', role: secondary}\n");
    let text = stage.fails(66, &["deploy", &image]);
    assert!(text.contains("image localhost/nothing:1 is not in containerd's namespace"), "{text}");
    let module = stage.workflow("w", "    f: {module: nothing.wasm, role: secondary}\n");
    assert!(stage.fails(66, &["deploy", &module]).contains("nothing.wasm cannot be read"));
    assert!(
        stage
            .fails(66, &["run", "/does/not/exist.yaml"])
            .contains("/does/not/exist.yaml cannot be read")
    );
    let wrong = stage.workflow("w", "    f: {modul: x.wasm}\n");
    let text = stage.fails(65, &["run", &wrong]);
    assert!(text.contains("w.yaml:6:9: ") && text.contains("did you mean `module`?"), "{text}");
    assert!(text.contains("has 2 faults"), "{text}");
}

#[test]
fn without_containerd_the_error_says_where_it_looked() {
    let output = cwasi().args(["--address", "/does/not/exist.sock", "ps"]).output().unwrap();
    assert_eq!(output.status.code(), Some(69));
    let text = stderr(&output);
    assert!(text.contains("/does/not/exist.sock: No such file or directory"), "{text}");
    assert!(text.contains("CONTAINERD_ADDRESS"), "{text}");
}
