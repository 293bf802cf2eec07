//! WASI commands: primaries that call, plain commands as secondaries, what they see of the host.

use std::fs::{self, File};
use std::io::{Seek as _, Write as _};
use std::os::fd::AsFd;
use std::time::Duration;

use cwasi_vm::CommandEnd;
use nix::sys::wait::WaitStatus;
use nix::unistd::dup2_stdin;

use crate::guests::output;
use crate::harness::{Case, in_child, text};
use crate::worker::Worker;

/// Longest run of a command here.
const RUN: Duration = Duration::from_secs(120);

pub const CASES: &[Case] = &[
    ("the_sdks_two_functions_greet", greetings),
    ("calls_are_followed_by_allocation_and_copying", churn),
    ("a_failed_call_has_errno_and_message", failed_call),
    ("bad_pointers_are_errnos", bad_pointers),
    ("arguments_and_environment_arrive", arguments),
    ("stdin_is_the_payload_and_stdout_the_response", stdio),
    ("only_preopened_directories_are_seen", preopens),
    ("exit_codes_and_traps_of_commands", command_ends),
];

/// Runs a command in a process of its own; its end as the worker sees it and its output.
fn run(worker: &mut Worker, stdin: Option<&File>) -> (Option<CommandEnd>, String) {
    let mut printed = output();
    let mut ended = output();
    let child = in_child(&printed, || {
        // The instance is there before its stdin is.
        worker.prepare();
        if let Some(stdin) = stdin {
            dup2_stdin(stdin.as_fd()).unwrap();
        }
        let end = worker.command();
        let line = match end {
            CommandEnd::Exited(code) => format!("exited {code}"),
            CommandEnd::Trapped(trap) => format!("trapped {trap}"),
        };
        ended.write_all(line.as_bytes()).unwrap();
    });
    let status = child.wait(RUN);
    assert!(matches!(status, Some(WaitStatus::Exited(_, 0))), "{status:?}: {}", text(&mut printed));
    let line = text(&mut ended);
    let end = line.strip_prefix("exited ").map(|code| CommandEnd::Exited(code.parse().unwrap()));
    (end, format!("{}{}", text(&mut printed), line.strip_prefix("trapped ").unwrap_or("")))
}

/// `greeter`'s answer, from a worker in a process of its own.
pub fn greet(name: &[u8]) -> Vec<u8> {
    let mut answer = output();
    let child = in_child(&answer, || {
        let mut worker = Worker::new("greeter", &[]);
        print!("{}", worker.request(name).text());
        std::io::stdout().flush().unwrap();
    });
    let status = child.wait(RUN);
    assert!(matches!(status, Some(WaitStatus::Exited(_, 0))), "{status:?}");
    text(&mut answer).into_bytes()
}

fn greetings() {
    let (end, printed) = run(&mut Worker::new("hello-caller", &["Ada", "Grace"]), None);
    assert_eq!(end, Some(CommandEnd::Exited(0)), "{printed}");
    assert_eq!(printed, "Hello, Ada!\nHello, Grace!\n");
}

fn churn() {
    for (target, expect) in [("echo", "echo"), ("reverse", "reverse")] {
        for (count, size) in [("200", "0"), ("200", "70000"), ("20", "3000000")] {
            let mut worker = Worker::new("caller", &[target, count, size, expect]);
            let (end, printed) = run(&mut worker, None);
            assert_eq!(end, Some(CommandEnd::Exited(0)), "{printed}");
            assert_eq!(printed, format!("{count} calls with {size} bytes: as expected\n"));
        }
    }
}

fn failed_call() {
    let (end, printed) = run(&mut Worker::new("caller", &["nobody", "1", "5", "any"]), None);
    assert_eq!(end, Some(CommandEnd::Exited(3)));
    assert_eq!(printed, "no such function: no function nobody in this test\n");
}

fn bad_pointers() {
    let (end, printed) = run(&mut Worker::new("probe", &["bad-pointers"]), None);
    assert_eq!((end, printed.as_str()), (Some(CommandEnd::Exited(0)), "[1, 1, 1, 12]\n"));
}

fn arguments() {
    let (_, printed) = run(&mut Worker::new("probe", &["args", "a b", ""]), None);
    assert_eq!(printed, "probe\nargs\na b\n\n");
    let mut worker = Worker::new("probe", &["env"]);
    worker.spec_mut().env = vec!["KEY=value".into(), "EMPTY=".into()];
    assert_eq!(run(&mut worker, None).1, "KEY=value\nEMPTY=\n");
}

fn stdio() {
    for (guest, input, response) in
        [("filter", &b"hello"[..], "HELLO"), ("echo", b"hello", "hello"), ("echo", b"", "")]
    {
        let mut stdin = output();
        stdin.write_all(input).unwrap();
        stdin.rewind().unwrap();
        let (end, printed) = run(&mut Worker::new(guest, &[]), Some(&stdin));
        assert_eq!((end, printed.as_str()), (Some(CommandEnd::Exited(0)), response));
    }
}

fn preopens() {
    let directory = tempfile::Builder::new().prefix("seen").tempdir().unwrap();
    fs::write(directory.path().join("seen.txt"), "inside").unwrap();
    let path = directory.path().to_str().unwrap();
    let run_in = |verb: &str, file: &str| {
        let mut worker = Worker::new("probe", &[verb, file]);
        worker.spec_mut().preopens = vec![directory.path().into(), "/etc/hosts".into()];
        run(&mut worker, None)
    };
    assert_eq!(run_in("read", &format!("{path}/seen.txt")).1, "inside");
    assert_eq!(run_in("ls", path).1, "seen.txt\n");
    for outside in ["/etc/hosts".to_owned(), format!("{path}/../../etc/hosts"), "/".to_owned()] {
        let (end, printed) = run_in("read", &outside);
        assert_ne!(end, Some(CommandEnd::Exited(0)), "{outside}: {printed}");
    }
}

fn command_ends() {
    assert_eq!(
        run(&mut Worker::new("probe", &["exit", "42"]), None).0,
        Some(CommandEnd::Exited(42))
    );
    let (end, message) = run(&mut Worker::new("probe", &["oob"]), None);
    assert_eq!(end, None);
    assert!(message.ends_with("trap in `_start`: out of bounds memory access"), "{message}");
    let (end, message) = run(&mut Worker::new("probe", &["both", "to-stdout", "to-stderr"]), None);
    assert_eq!(end, Some(CommandEnd::Exited(0)));
    assert!(message.contains("to-stdout\n") && message.contains("to-stderr\n"), "{message}");
}
