//! Cases in processes of their own.
#![expect(unsafe_code, reason = "fork")]

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, dup2_stderr, dup2_stdout, fork};

/// Longest case.
const CASE_SECONDS_MAX: u64 = 300;
/// Time between two checks of a child.
const POLL: Duration = Duration::from_millis(2);

pub type Case = (&'static str, fn());

/// Runs the cases that the command line names, all by default; the exit code.
pub fn run(cases: &[Case]) -> i32 {
    let filters: Vec<String> =
        std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let wanted = |name: &str| filters.is_empty() || filters.iter().any(|part| name.contains(part));
    let (mut ran, mut failed) = (0, Vec::new());
    for (name, body) in cases.iter().filter(|(name, _)| wanted(name)) {
        let mut output = tempfile::tempfile().unwrap();
        let end = in_child(&output, body).wait(Duration::from_secs(CASE_SECONDS_MAX));
        let passed = end == Some(WaitStatus::Exited(end_pid(end), 0));
        println!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
        ran += 1;
        if !passed {
            failed.push(*name);
        }
        if !passed || !filters.is_empty() {
            println!("{}", text(&mut output));
        }
    }
    println!("\ntest result: {} passed; {} failed {failed:?}\n", ran - failed.len(), failed.len());
    i32::from(!failed.is_empty())
}

fn end_pid(end: Option<WaitStatus>) -> Pid {
    end.and_then(|status| status.pid()).unwrap_or(Pid::from_raw(0))
}

/// A forked process that runs one closure.
pub struct Child(Pid);

impl Child {
    /// Its end, or `None` when it was still running after `limit`; then it is killed.
    pub fn wait(self, limit: Duration) -> Option<WaitStatus> {
        let until = Instant::now() + limit;
        loop {
            match waitpid(self.0, Some(WaitPidFlag::WNOHANG)).unwrap() {
                WaitStatus::StillAlive if Instant::now() < until => std::thread::sleep(POLL),
                WaitStatus::StillAlive => {
                    kill(self.0, Signal::SIGKILL).unwrap();
                    waitpid(self.0, None).unwrap();
                    return None;
                }
                status => return Some(status),
            }
        }
    }
}

/// Runs `body` in a child whose stdout and stderr are `output`; it exits with 0, or 101 on a panic.
pub fn in_child(output: &File, body: impl FnOnce()) -> Child {
    // SAFETY:
    // - this process has one thread (own harness), so the child may do everything.
    match unsafe { fork() }.unwrap() {
        ForkResult::Parent { child } => Child(child),
        ForkResult::Child => {
            dup2_stdout(output.as_fd()).unwrap();
            dup2_stderr(output.as_fd()).unwrap();
            let ended = catch_unwind(AssertUnwindSafe(body));
            // SAFETY:
            // - no clean-up of the parent's is wanted in the child.
            unsafe { libc::_exit(if ended.is_ok() { 0 } else { 101 }) }
        }
    }
}

/// What was written to a child's output.
pub fn text(output: &mut File) -> String {
    output.rewind().unwrap();
    let mut bytes = Vec::new();
    output.read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}
