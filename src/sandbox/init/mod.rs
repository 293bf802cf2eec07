//! Sandbox init: pid 1 of a function's container. Runs no guest code; forks, feeds, watches and replaces
//! the workers that do, and reaps whatever else ends in the container.
//!
//! Free workers take requests themselves and say so on the [board](super::board). Init gives out those that nobody is
//! free for: one queue with exact bounds. And it knows who runs what, so that a worker's death or a missed deadline is
//! exactly one request's error.

mod barrier;
mod doing;
mod handover;
mod pool;
mod primary;
mod queue;
mod secondary;
mod signals;
mod work;

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::poll::PollTimeout;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{Pid, getpid};

use crate::sys::clock::monotonic_ns;
use crate::sys::process::{Fork, SingleThreaded};
use crate::sys::seqpacket::{self, Deadline};
use crate::vm::Module;
use crate::wire::control::{self, FunctionLaunch, Role, SandboxMessage};

use super::stderr;
use super::worker::{self, Seat};

use self::signals::Signals;

/// Exit code of a sandbox whose function cannot be started.
pub const EXIT_START_FAILED: i32 = 125;
/// Exit code after a trap: what a shell reports for abort.
pub const EXIT_TRAPPED: i32 = 134;
/// How long init waits for its shim to take a message, in nanoseconds.
const SHIM_WAIT_NS: u64 = 5_000_000_000;

/// A function's process, before it runs: inside the container, all descriptors but these closed.
#[derive(Debug)]
pub struct Sandbox<M> {
    /// What to run.
    pub launch: FunctionLaunch,
    /// Its code.
    pub module: M,
    /// Lets init fork.
    pub threads: SingleThreaded,
    /// Socket to the shim.
    pub broker: OwnedFd,
    /// Listening receiver; secondaries only.
    pub receiver: Option<OwnedFd>,
}

impl<M: Module> Sandbox<M> {
    /// Runs the function to its end and returns the container's exit code.
    pub fn run(mut self) -> i32 {
        // Names are for people who look at the process list.
        let _unnamed = nix::sys::prctl::set_name(c"cwasi-init");
        raise_descriptor_limit();
        let signals = match Signals::new() {
            Ok(signals) => signals,
            Err(error) => {
                return self.start_failed(&format!("signals cannot be received: {error}"));
            }
        };
        match (self.launch.role, self.receiver.take()) {
            (Role::Primary, _) => primary::run(&self, signals),
            (Role::Secondary, Some(listener)) => {
                match secondary::Secondary::new(&self, listener, signals) {
                    Ok(secondary) => secondary.run(),
                    Err(error) => self.start_failed(&format!("callers cannot be watched: {error}")),
                }
            }
            (Role::Secondary, None) => {
                self.start_failed("a secondary was started without its receiver socket")
            }
        }
    }

    /// Tells the shim, waiting a little for it to take it.
    fn tell(&self, message: &SandboxMessage) {
        let deadline = Some(monotonic_ns().saturating_add(SHIM_WAIT_NS));
        let bytes = control::encode(message);
        if let Err(error) = seqpacket::send(self.broker.as_fd(), &[&bytes], &[], deadline) {
            stderr::try_line(&format!(
                "the shim of {} cannot be told: {error}",
                self.launch.identity
            ));
        }
    }

    /// Tells the shim that there will be no workload; returns the exit code.
    pub fn start_failed(&self, message: &str) -> i32 {
        self.tell(&SandboxMessage::StartFailed { message: message.to_owned() });
        EXIT_START_FAILED
    }
}

impl<M: Module> Sandbox<M> {
    /// Forks a worker: its pid and init's end of the socketpair. In the child it does not return.
    fn fork_worker(&self, seat: Option<Seat<'_>>) -> io::Result<(Pid, OwnedFd)> {
        let (ours, theirs) = seqpacket::pair().map_err(io::Error::other)?;
        let init = getpid();
        match self.threads.fork()? {
            Fork::Parent(pid) => Ok((pid, ours)),
            Fork::Child => worker::enter(self, init, theirs, seat),
        }
    }
}

impl<M: Module> pool::Fork for &Sandbox<M> {
    fn fork(&self, seat: Seat<'_>) -> io::Result<(Pid, OwnedFd)> {
        self.fork_worker(Some(seat))
    }
}

/// Connections are descriptors: as many as the container may have.
fn raise_descriptor_limit() {
    if let Ok((_soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // Without it there are fewer connections; the rest waits in the backlog.
        let _refused = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// How long poll may sleep until `wakeup`.
fn poll_timeout(wakeup: Deadline) -> PollTimeout {
    wakeup.map_or(PollTimeout::NONE, |wakeup| {
        let left_ms = wakeup.saturating_sub(monotonic_ns()).div_ceil(1_000_000);
        PollTimeout::try_from(i32::try_from(left_ms).unwrap_or(i32::MAX))
            .unwrap_or(PollTimeout::MAX)
    })
}
