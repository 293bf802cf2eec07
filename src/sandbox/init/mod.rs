//! Sandbox init: pid 1 of a function's container. Runs no guest code. Forks, supervises and replaces the workers, and
//! reaps every other process of the container.
//!
//! Free workers read requests themselves and record them in the [worker table](super::worker_table). Init queues
//! requests when no worker is free, with exact bounds, and assigns them. Init knows the request of every worker, so a
//! worker's death or a missed deadline is the error of exactly one request.

mod barrier;
mod growth;
mod in_flight;
mod pool;
mod primary;
mod queue;
mod secondary;
pub(crate) mod signals;

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{Pid, getpid};

use cwasi_sys::arenas;
use cwasi_sys::process::Fork;
use cwasi_sys::seqpacket;
use cwasi_vm::Module;
use cwasi_wire::control::Role;

use super::inherited::Sandbox;
use super::worker::{self, WorkerSetup};
use super::worker_table::WorkerTable;

use self::secondary::Secondary;
use self::signals::Signals;

/// Runs the function to its end and returns the container's exit code.
pub fn run<M: Module>(mut sandbox: Sandbox<M>) -> i32 {
    // Names are for people who look at the process list.
    let _unnamed = nix::sys::prctl::set_name(c"cwasi-init");
    raise_descriptor_limit();
    // What building the container took is free now, and would be in each worker, too.
    arenas::release_free_pages();
    let listener = sandbox.receiver.take();
    // Files of the engine were closed by their numbers, which it would close again. The process ends next.
    let sandbox = ManuallyDrop::new(sandbox);
    serve(&sandbox, listener).unwrap_or_else(|message| sandbox.start_failed(&message))
}

fn serve<M: Module>(sandbox: &Sandbox<M>, listener: Option<OwnedFd>) -> Result<i32, String> {
    let signals = Signals::new().map_err(|error| format!("signals cannot be received: {error}"))?;
    if sandbox.launch.role == Role::Primary {
        return Ok(primary::run(sandbox, signals));
    }
    let listener = listener.ok_or("a secondary was started without its receiver socket")?;
    let unwatched = |error: io::Error| format!("callers cannot be watched: {error}");
    let table = WorkerTable::of(&sandbox.launch).map_err(unwatched)?;
    let secondary = Secondary::new(sandbox, &table, listener, signals).map_err(unwatched)?;
    Ok(secondary.run())
}

/// Forks a worker: its pid and init's end of the socketpair. In the child it does not return.
fn fork_worker<M: Module>(
    sandbox: &Sandbox<M>,
    setup: Option<WorkerSetup<'_>>,
) -> io::Result<(Pid, OwnedFd)> {
    let (ours, theirs) = seqpacket::pair().map_err(io::Error::other)?;
    let init = getpid();
    match sandbox.threads.fork()? {
        Fork::Parent(pid) => Ok((pid, ours)),
        Fork::Child => {
            sandbox.module.forked();
            worker::enter(sandbox, init, theirs, setup)
        }
    }
}

/// Connections are descriptors: as many as the container may have.
fn raise_descriptor_limit() {
    if let Ok((_soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // Without it there are fewer connections; the rest waits in the backlog.
        let _refused = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}
