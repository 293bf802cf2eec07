//! Sandbox init: pid 1 of a function's container. Runs no guest code. Forks, supervises and replaces the workers, and
//! reaps every other process of the container.
//!
//! Free workers read requests themselves and record them in the [worker table](super::worker_table). Init queues
//! requests when no worker is free, with exact bounds, and assigns them. Init knows the request of every worker, so a
//! worker's death or a missed deadline is the error of exactly one request.

mod barrier;
mod handover;
mod in_flight;
mod load;
mod pool;
mod primary;
mod queue;
mod secondary;
mod signals;

use std::io;
use std::os::fd::OwnedFd;

use nix::poll::PollTimeout;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{Pid, getpid};

use crate::sys::arenas;
use crate::sys::clock::{Deadline, monotonic_ns};
use crate::sys::process::Fork;
use crate::sys::seqpacket;
use crate::vm::Module;
use crate::wire::control::Role;

use super::inherited::Sandbox;
use super::worker::{self, WorkerSetup};
use super::worker_table::WorkerTable;

use self::signals::Signals;

/// Runs the function to its end and returns the container's exit code.
pub fn run<M: Module>(mut sandbox: Sandbox<M>) -> i32 {
    // Names are for people who look at the process list.
    let _unnamed = nix::sys::prctl::set_name(c"cwasi-init");
    raise_descriptor_limit();
    // What building the container took is free now, and would be in each worker, too.
    arenas::release_free_pages();
    let signals = match Signals::new() {
        Ok(signals) => signals,
        Err(error) => {
            return sandbox.start_failed(&format!("signals cannot be received: {error}"));
        }
    };
    match (sandbox.launch.role, sandbox.receiver.take()) {
        (Role::Primary, _) => primary::run(&sandbox, signals),
        (Role::Secondary, Some(listener)) => run_secondary(&sandbox, listener, signals)
            .unwrap_or_else(|error| {
                sandbox.start_failed(&format!("callers cannot be watched: {error}"))
            }),
        (Role::Secondary, None) => {
            sandbox.start_failed("a secondary was started without its receiver socket")
        }
    }
}

fn run_secondary<M: Module>(
    sandbox: &Sandbox<M>,
    listener: OwnedFd,
    signals: Signals,
) -> io::Result<i32> {
    let workers = usize::try_from(sandbox.launch.concurrency).unwrap_or(usize::MAX);
    let table = WorkerTable::new(workers.max(1))?;
    Ok(secondary::Secondary::new(sandbox, &table, listener, signals)?.run())
}

impl<M: Module> Sandbox<M> {
    /// Forks a worker: its pid and init's end of the socketpair. In the child it does not return.
    fn fork_worker(&self, setup: Option<WorkerSetup<'_>>) -> io::Result<(Pid, OwnedFd)> {
        let (ours, theirs) = seqpacket::pair().map_err(io::Error::other)?;
        let init = getpid();
        match self.threads.fork()? {
            Fork::Parent(pid) => Ok((pid, ours)),
            Fork::Child => worker::enter(self, init, theirs, setup),
        }
    }
}

impl<M: Module> pool::ForkWorker for &Sandbox<M> {
    fn fork(&self, setup: WorkerSetup<'_>) -> io::Result<(Pid, OwnedFd)> {
        self.fork_worker(Some(setup))
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
fn poll_timeout(wakeup: Option<Deadline>) -> PollTimeout {
    wakeup.map_or(PollTimeout::NONE, |wakeup| {
        let left_ms = wakeup.left(monotonic_ns()).as_nanos().div_ceil(1_000_000);
        PollTimeout::try_from(i32::try_from(left_ms).unwrap_or(i32::MAX))
            .unwrap_or(PollTimeout::MAX)
    })
}
