//! The errors with which sandbox init answers callers instead of a worker.

use std::io;

use crate::modes::causes::{Break, Unreached};
use crate::modes::local::LocalError;
use crate::modes::{CallError, Overload};
use crate::sandbox::init::in_flight::{AssignedWork, WorkerActivity};
use crate::sandbox::init::queue::{QueueEntry, QueueFull, QueueUsage};
use crate::sandbox::init::signals::Ending;
use crate::sandbox::init::work::ReplyTarget;
use crate::sys::seqpacket::SocketError;
use crate::vm::Module;
use crate::wire::control::FunctionLaunch;

use super::Secondary;

impl<M: Module> Secondary<'_, M> {
    /// A crash of the guest's code is a trap (errno 7). A worker that was killed, or ended, is a callee that died
    /// (errno 11).
    pub(super) fn fault(&self, ending: Ending) -> CallError {
        let function = &self.sandbox.launch.identity.function;
        let how = ending.describe();
        if ending.is_crash() {
            CallError::Trapped { message: format!("{function} {how}") }
        } else {
            self.broken(Break::Worker { how })
        }
    }

    /// Answers instead of a worker that has ended. If the worker was reading from a connection, the connection ends,
    /// because the worker may have taken a request from it: every call on it gets an error, and none waits for ever.
    pub(super) fn fail(&mut self, activity: &WorkerActivity, error: &CallError) {
        match activity {
            WorkerActivity::Nothing => {}
            WorkerActivity::NotBegun(QueueEntry { item: work, .. })
            | WorkerActivity::Assigned(AssignedWork { work, .. }) => {
                work.refuse(error, &mut self.send_queue);
            }
            WorkerActivity::Direct(request) => {
                if let Some(reply_to) = self.receiver.reply_to(request.connection) {
                    self.send_queue.send_error(&ReplyTarget { reply_to, id: request.id }, error);
                }
            }
            WorkerActivity::Reading(connection) => self.receiver.end(*connection),
        }
    }

    /// Why the function cannot start when a worker cannot be forked.
    pub(super) fn cannot_fork(&self, error: &io::Error) -> String {
        let workers = self.sandbox.launch.concurrency;
        let hint = match error.raw_os_error() {
            Some(libc::EAGAIN) => {
                ": the container's pids limit, or its user's RLIMIT_NPROC, allows no more processes"
            }
            _ => "",
        };
        format!("its workers (cwasi.concurrency: {workers}) cannot be forked{hint}: {error}")
    }

    pub(super) fn unreachable(&self, cause: Unreached) -> CallError {
        CallError::Unreachable { target: self.sandbox.launch.identity.function.clone(), cause }
    }

    pub(super) fn overloaded(&self, full: QueueFull) -> CallError {
        let FunctionLaunch { identity, concurrency, queue, .. } = &self.sandbox.launch;
        let function = identity.function.clone();
        let bound = match full {
            QueueFull::Items => Overload::Queue { function, workers: *concurrency, queue: *queue },
            QueueFull::Usage => {
                let QueueUsage { bytes, descriptors } = self.queue.bounds().load;
                Overload::Load { function, bytes, descriptors }
            }
        };
        bound.into()
    }

    pub(super) fn ending(&self) -> CallError {
        self.unreachable(Unreached::Ending)
    }

    pub(super) fn late(&self) -> CallError {
        CallError::Timeout { target: self.sandbox.launch.identity.function.clone() }
    }

    /// A missed deadline with its probable reason.
    pub(super) fn late_because(&self, why: &str) -> CallError {
        CallError::Late { message: format!("{}{why}", self.late()) }
    }

    pub(super) fn broken(&self, cause: Break) -> CallError {
        CallError::Broken { target: self.sandbox.launch.identity.function.clone(), cause }
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
