//! The errors with which sandbox init answers callers instead of a worker, and its lines in the function's log.

use crate::function_log::{full_stream, unread};
use crate::init::in_flight::{LostWorker, WorkerActivity};
use crate::init::queue::QueueFull;
use crate::init::signals::Ending;
use crate::stderr;
use crate::worker_table::Phase;
use cwasi_modes::causes::{Break, Unreached};
use cwasi_modes::local::load::Load;
use cwasi_modes::local::{CallKey, LocalError};
use cwasi_modes::{CallError, Overload};
use cwasi_sys::seqpacket::SocketError;
use cwasi_wire::control::{Entry, FunctionLaunch};

/// The errors of calls of one function.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallerErrors<'a> {
    launch: &'a FunctionLaunch,
}

impl<'a> CallerErrors<'a> {
    pub fn of(launch: &'a FunctionLaunch) -> Self {
        Self { launch }
    }

    fn function(self) -> String {
        self.launch.identity.function.clone()
    }

    /// Writes a line to the function's log.
    pub fn log(self, message: &str) {
        stderr::try_line(&format!("{}: {message}", self.launch.identity.function));
    }

    pub fn worker_lost(self, lost: &LostWorker, ending: Ending, closed: bool) -> CallError {
        let how = ending.describe();
        match &lost.activity {
            WorkerActivity::Begun(calls) if lost.state.phase() == Phase::Expired => {
                return self.missed_deadline(calls);
            }
            WorkerActivity::Begun(_) | WorkerActivity::Reading(_) => {
                self.log(&format!("a worker {how} while it served a request"));
            }
            WorkerActivity::Nothing | WorkerActivity::Assigned { .. } if closed => {}
            WorkerActivity::Nothing | WorkerActivity::Assigned { .. } => {
                self.log(&format!("a worker {how}"));
            }
        }
        self.fault(ending)
    }

    /// A crash of the guest's code is a trap (errno 7). A worker that was killed, or ended, is a callee that died
    /// (errno 11).
    fn fault(self, ending: Ending) -> CallError {
        let how = ending.describe();
        if ending.is_crash() {
            CallError::Trapped { message: format!("{} {how}", self.launch.identity.function) }
        } else {
            self.broken(Break::Worker { how })
        }
    }

    /// The queue, with these bounds, is full.
    pub fn overloaded(self, full: QueueFull, bounds: Load) -> CallError {
        let FunctionLaunch { concurrency, workers_max, queue, .. } = self.launch;
        let workers = *concurrency.max(workers_max);
        let function = self.function();
        let bound = match full {
            QueueFull::Items => Overload::Queue { function, workers, queue: *queue },
            QueueFull::Usage => {
                let Load { bytes, descriptors, .. } = bounds;
                Overload::Load { function, bytes, descriptors }
            }
        };
        bound.into()
    }

    pub fn ending(self) -> CallError {
        CallError::Unreachable { target: self.function(), cause: Unreached::Ending }
    }

    pub fn late(self) -> CallError {
        CallError::Timeout { target: self.function() }
    }

    /// The error of calls whose worker was killed at their deadline, with the probable reason.
    fn missed_deadline(self, calls: &[CallKey]) -> CallError {
        let why = full_stream(self.launch.entry == Entry::Reactor).map(unread);
        if let Some(CallKey { id, .. }) = calls.first() {
            self.log(&format!(
                "call {id} did not end in time; its worker was killed for it{}",
                why.as_deref().unwrap_or_default()
            ));
        }
        let late = self.late();
        why.map_or_else(|| late.clone(), |why| CallError::Late { message: format!("{late}{why}") })
    }

    pub fn broken(self, cause: Break) -> CallError {
        CallError::Broken { target: self.function(), cause }
    }
}

/// A request that could not be sent to a worker.
pub(super) fn not_handed(error: &LocalError) -> CallError {
    match error {
        LocalError::Socket(SocketError::Deadline) => Overload::Descriptors.into(),
        error => CallError::Internal {
            message: format!("request cannot be handed to a worker: {error}"),
        },
    }
}
