//! Sandbox init of a primary: one worker runs the entry once. Init forwards signals to it and reports its exit code.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::function_log::{full_stream, unread};
use crate::inherited::Sandbox;
use crate::messages::WORKER_MESSAGE_MAX;
use crate::stderr;
use cwasi_sys::clock::{Deadline, monotonic_ns, poll_timeout};
use cwasi_vm::Module;
use cwasi_wire::control::SandboxMessage;

use super::fork_worker;
use super::pool::WorkerReport;
use super::signals::{Change, Ending, Signals, next_change};

/// Why init killed the worker.
#[derive(Clone, Copy)]
enum Cause {
    Stopped(Signal),
    OutOfTime,
}

/// Runs a primary and returns its exit code.
pub fn run<M: Module>(sandbox: &Sandbox<M>, mut signals: Signals) -> i32 {
    let (worker, socket) = match fork_worker(sandbox, None) {
        Ok(forked) => forked,
        Err(error) => return sandbox.start_failed(&format!("no worker can be forked: {error}")),
    };
    let deadline = sandbox.launch.timeout_ms.map(|ms| Deadline::after(Duration::from_millis(ms)));
    let mut cause = None;
    let mut socket = Some(socket);
    loop {
        pass_on(sandbox, &mut socket);
        while let Some((pid, change)) = next_change() {
            if let Change::Ended(ending) = change
                && pid == worker
            {
                // It may have sent a message just before its end.
                pass_on(sandbox, &mut socket);
                return code(sandbox, ending, cause);
            }
        }
        if cause.is_none() && deadline.is_some_and(|deadline| deadline.has_passed(monotonic_ns())) {
            cause = Some(Cause::OutOfTime);
            end(worker);
        }
        wait(&signals, socket.as_ref(), if cause.is_none() { deadline } else { None });
        if let Some(signal) = signals.take() {
            cause.get_or_insert(Cause::Stopped(signal));
            end(worker);
        }
    }
}

fn end(worker: Pid) {
    let _gone = kill(worker, Signal::SIGKILL);
}

fn wait(signals: &Signals, socket: Option<&OwnedFd>, wakeup: Option<Deadline>) {
    let mut fds = vec![PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
    fds.extend(socket.map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN)));
    let _interrupted = poll(&mut fds, poll_timeout(wakeup));
}

/// Passes on to the shim what the worker says. Drops `socket` once the worker closed its end: its exit follows, and
/// only signals are waited for.
fn pass_on<M: Module>(sandbox: &Sandbox<M>, socket: &mut Option<OwnedFd>) {
    let Some(open) = socket else { return };
    let said = WorkerReport::read(open.as_fd(), &mut [0; WORKER_MESSAGE_MAX]);
    if said.ready {
        sandbox.send(&SandboxMessage::Ready);
    }
    if let Some(message) = said.failed {
        sandbox.send(&SandboxMessage::StartFailed { message });
    }
    if said.closed {
        *socket = None;
    }
}

/// The container's exit code; says on stderr what the guest could not say itself.
fn code<M>(sandbox: &Sandbox<M>, ending: Ending, cause: Option<Cause>) -> i32 {
    let function = &sandbox.launch.identity.function;
    match (cause, ending) {
        // It was faster than the signal.
        (Some(Cause::Stopped(_)), Ending::Exited(code)) => code,
        (Some(Cause::Stopped(signal)), Ending::Killed(_)) => 128 + signal as i32,
        (Some(Cause::OutOfTime), _) => {
            let limit_ms = sandbox.launch.timeout_ms.unwrap_or(0);
            let why = full_stream(true).map(unread).unwrap_or_default();
            stderr::line(&format!(
                "{function} did not end within {limit_ms} ms (cwasi.timeout), killed{why}"
            ));
            ending.code()
        }
        (None, Ending::Killed(_)) => {
            stderr::line(&format!("{function} {}", ending.describe()));
            ending.code()
        }
        (None, Ending::Exited(code)) => code,
    }
}
