//! Every verb when its output goes nowhere: stdout on a full disk, closed by its reader, or stderr on a full disk. A verb
//! without a row here fails `every_verb_has_a_row`.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::process::{Command, Output, Stdio};

use cwasi_testbed::scene::wait_for;
use nix::sys::signal::Signal;

use super::home::{Home, signal};
use super::scene::Stage;
use super::unhappy::verbs;
use super::{cwasi, stderr, stdout};

/// Verbs with arguments, with which they print. `{FILE}` is a workflow file whose secondary runs, `{ENDLESS}` one whose
/// primary prints and does not end, `{MODULE}` a module, `{N}` a number of replicas that the function does not have.
const ROWS: &[(&str, &str)] = &[
    ("deploy", "{FILE}"),
    ("run", "{FILE}"),
    ("run", "{ENDLESS}"),
    ("run", "--json {FILE}"),
    ("ps", ""),
    ("ps", "-v"),
    ("logs", "greeter"),
    ("logs", "--tail 1 greeter"),
    ("invoke", "greeter --data Ada"),
    ("top", "--count 1 --interval 1ms"),
    ("top", "--json --count 1 --interval 1ms"),
    ("trace", ""),
    ("trace", "last"),
    ("lint", "{FILE} --set spec.functions.greeter.module=/none.wasm"),
    ("explain", "hello greeter --file {FILE}"),
    ("inspect", "{MODULE}"),
    ("inspect", "--text {MODULE}"),
    ("compile", "{MODULE}"),
    ("image build", "-t localhost/greeter:1 {MODULE}"),
    ("image ls", ""),
    ("image prune", "--json"),
    ("doctor", ""),
    ("metrics", ""),
    ("completions", "bash"),
    ("schema", ""),
    ("schema", "--markdown"),
    ("scale", "greeter {N}"),
    ("rm", "--workflow hello"),
];
/// They print nothing on stdout.
const SILENT: [&str; 4] = ["dashboard", "gateway", "man", "openwhisk"];

/// A stdout that takes nothing.
#[derive(Clone, Copy, Debug)]
enum Sink {
    FullDisk,
    ClosedPipe,
}

impl Sink {
    fn open(self) -> Stdio {
        match self {
            Self::FullDisk => full(),
            Self::ClosedPipe => std::io::pipe().unwrap().1.into(),
        }
    }

    /// What is wrong with the end of a command.
    fn fault(self, output: &Output) -> Option<String> {
        let said = stderr(output);
        let (code, is_said) = match self {
            Self::FullDisk => (
                74,
                said.ends_with(
                    "cwasi: stdout cannot be written: No space left on device (os error 28)\n",
                ),
            ),
            Self::ClosedPipe => (141, !said.contains("stdout")),
        };
        let fits = output.status.code() == Some(code) && is_said && !said.contains("panicked");
        (!fits).then(|| format!("{self:?}: {:?}: {said}", output.status.code()))
    }
}

/// What takes no byte, as a file on a full disk.
fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

fn end(mut command: Command, stdout: Stdio) -> Output {
    command.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped());
    command.spawn().unwrap().wait_with_output().unwrap()
}

#[test]
fn every_verb_has_a_row() {
    let rows = ROWS.iter().map(|(verb, _)| (*verb).to_owned());
    let rows: BTreeSet<_> = rows.chain(SILENT.map(str::to_owned)).collect();
    assert_eq!(rows, verbs());
}

#[test]
fn each_verb_ends_when_stdout_takes_nothing() {
    let stage = Stage::new("cli-outputs");
    let (file, probe) = (stage.hello(), stage.guest("probe"));
    let endless = format!("    probe: {{module: {probe}, args: [say-then, hello, loop]}}\n");
    let endless = stage.workflow("endless", &endless);
    stage.ok(&["run", &file]);
    let (mut replicas, mut faults) = (1, Vec::new());
    for (verb, arguments) in ROWS {
        for sink in [Sink::FullDisk, Sink::ClosedPipe] {
            stage.ok(&["deploy", &file]);
            // So that there is a line in its log.
            stage.ok(&["invoke", "greeter", "--data", "Ada"]);
            replicas += 1;
            let arguments = arguments
                .replace("{FILE}", &file)
                .replace("{ENDLESS}", &endless)
                .replace("{MODULE}", &stage.guest("greeter"))
                .replace("{N}", &replicas.to_string());
            let mut command = stage.cwasi();
            command.args(verb.split(' ')).args(arguments.split_whitespace());
            let fault = sink.fault(&end(command, sink.open()));
            faults.extend(fault.map(|fault| format!("cwasi {verb} {arguments}: {fault}")));
            // What was to be done is done, and what was started for this run is gone.
            let containers = stage.containers();
            let done = match *verb {
                "rm" => containers.is_empty(),
                "scale" => containers.len() == replicas,
                _ => containers == ["hello.greeter"],
            };
            if !done {
                faults.push(format!("cwasi {verb} {arguments}, {sink:?}: {containers:?}"));
            }
            if *verb == "scale" {
                stage.ok(&["scale", "greeter", "1"]);
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn help_and_version_end_alike() {
    for arguments in [["--help"].as_slice(), &["--version"], &["help", "run"], &["run", "-h"]] {
        for sink in [Sink::FullDisk, Sink::ClosedPipe] {
            let mut command = cwasi();
            command.args(arguments);
            assert_eq!(sink.fault(&end(command, sink.open())), None, "{arguments:?}");
        }
    }
}

#[test]
fn a_local_run_ends_and_leaves_nothing() {
    let home = Home::new();
    let endless = home.probe("[say-then, hello, loop]", "env: {}");
    for sink in [Sink::FullDisk, Sink::ClosedPipe] {
        assert_eq!(sink.fault(&end(home.run(&[&endless]), sink.open())), None);
        home.nothing_is_left();
    }
}

#[test]
fn a_full_stderr_changes_nothing() {
    let stage = Stage::new("cli-stderr");
    let run = |arguments: &[&str]| {
        let mut command = stage.cwasi();
        command.args(arguments).stdout(Stdio::piped()).stderr(full());
        let output = command.output().unwrap();
        (output.status.code(), stdout(&output))
    };
    let file = stage.hello();
    assert_eq!(run(&["run", &file]), (Some(0), "Hello, Ada!\nHello, Grace!\n".to_owned()));
    assert_eq!(run(&["deploy", &file]), (Some(0), "hello.greeter started\n".to_owned()));
    assert_eq!(run(&["invoke", "-v", "greeter", "-d", "Ada"]), (Some(0), "Hello, Ada!".to_owned()));
    assert_eq!(run(&["invoke", "nobody"]), (Some(66), String::new()));
    assert_eq!(run(&["nothing"]), (Some(2), String::new()));
    stage.ok(&["rm", "--workflow", "hello"]);
    let socket = stage.folder.path().join("metrics.sock").display().to_string();
    let mut command = stage.cwasi();
    command.args(["metrics", "--listen", &format!("unix:{socket}")]).stderr(full());
    let mut server = command.spawn().unwrap();
    wait_for("its socket", || fs::exists(&socket).unwrap().then_some(()));
    signal(&server, Signal::SIGTERM);
    assert!(server.wait().unwrap().success());
}
