//! A shell that runs one command after the other, and what each prints.

use std::io::{Read as _, Write as _, pipe};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// Longest command: builds of the tutorial, and first starts of modules.
const COMMAND_MAX: Duration = Duration::from_secs(180);
/// Longest wait for what a background job prints.
const JOB_MAX: Duration = Duration::from_secs(30);
/// Printed after each command, before its exit code.
const MARK: char = '\u{1}';
/// A job that has ended is no failure.
const END_JOBS: &[u8] = b"kill $jobs 2>/dev/null; true\n";

/// A shell; reads commands from a pipe.
#[derive(Debug)]
pub struct Shell {
    child: Child,
    stdin: Option<ChildStdin>,
    output: Receiver<Vec<u8>>,
}

/// What a command did.
#[derive(Debug)]
pub struct Outcome {
    /// What it printed, stdout and stderr as they came.
    pub printed: String,
    pub code: i32,
}

impl Shell {
    /// Starts `command`, which is a shell or starts one.
    pub fn start(mut command: Command) -> Self {
        let (mut reader, writer) = pipe().unwrap();
        command.stdin(Stdio::piped()).stdout(writer.try_clone().unwrap()).stderr(writer);
        let mut child = command.process_group(0).spawn().unwrap();
        // It holds the pipe's other end.
        drop(command);
        let (sender, output) = channel();
        thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(length @ 1..) = reader.read(&mut chunk) {
                if sender.send(chunk[..length].to_vec()).is_err() {
                    return;
                }
            }
        });
        let stdin = child.stdin.take();
        Self { child, stdin, output }
    }

    /// Runs a command with an empty stdin. Of a job in the background it waits for output that `is_complete`.
    pub fn run(&mut self, command: &str, job: bool, is_complete: impl Fn(&str) -> bool) -> Outcome {
        let script = format!("{{ {command}\n}} </dev/null\nprintf '\\n\\001%d\\n' $?\n");
        self.stdin.as_mut().unwrap().write_all(script.as_bytes()).unwrap();
        let (mut printed, start) = (String::new(), Instant::now());
        let code = loop {
            if let Some((before, after)) = printed.split_once(MARK)
                && let Some((code, late)) = after.split_once('\n')
            {
                let code = code.parse().unwrap();
                let before = before.strip_suffix('\n').unwrap_or(before);
                printed = format!("{before}{late}");
                break code;
            }
            if !self.read(&mut printed, COMMAND_MAX.saturating_sub(start.elapsed())) {
                panic!("no end of `{command}` within {COMMAND_MAX:?}: {printed}");
            }
        };
        let start = Instant::now();
        // A line may come in pieces.
        while job && !(printed.ends_with('\n') && is_complete(&printed)) {
            if !self.read(&mut printed, JOB_MAX.saturating_sub(start.elapsed())) {
                break;
            }
        }
        Outcome { printed, code }
    }

    /// Appends what is printed next; false when nothing is within `max`.
    fn read(&self, printed: &mut String, max: Duration) -> bool {
        match self.output.recv_timeout(max) {
            Ok(bytes) => {
                printed.push_str(&String::from_utf8_lossy(&bytes));
                true
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => false,
        }
    }

    /// Ends it and the jobs that it lists in `$jobs`; its status and what it still printed.
    pub fn exit(mut self) -> (ExitStatus, String) {
        let mut stdin = self.stdin.take().unwrap();
        stdin.write_all(END_JOBS).unwrap();
        drop(stdin);
        let status = self.child.wait().unwrap();
        let mut rest = String::new();
        while self.read(&mut rest, Duration::ZERO) {}
        (status, rest)
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let Some(mut stdin) = self.stdin.take() else { return };
        // As Ctrl-C: the command ends, then the shell at the end of its input, then the test bed.
        let group = Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        let _ended = killpg(group, Signal::SIGINT);
        let _told = stdin.write_all(END_JOBS);
        drop(stdin);
        let _status = self.child.wait();
    }
}
