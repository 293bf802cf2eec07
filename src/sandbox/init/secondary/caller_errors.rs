//! The errors with which sandbox init answers callers instead of a worker.

use std::io;

use crate::function_log::{full_stream, unread};
use crate::init::in_flight::WorkerActivity;
use crate::init::queue::QueueFull;
use crate::init::signals::Ending;
use cwasi_modes::causes::{Break, Unreached};
use cwasi_modes::local::load::Load;
use cwasi_modes::local::{CallKey, LocalError};
use cwasi_modes::{CallError, Overload};
use cwasi_sys::seqpacket::SocketError;
use cwasi_vm::Module;
use cwasi_wire::control::{Entry, FunctionLaunch};

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

    /// Answers calls with an error. Callers whose connections have ended need none.
    pub(super) fn refuse(&mut self, calls: impl IntoIterator<Item = CallKey>, error: &CallError) {
        for call in calls {
            if let Some(caller) = self.receiver.reply_to(call.connection) {
                self.send_queue.send_error(&caller, call.id, error);
            }
        }
    }

    /// Answers instead of a worker that has ended. If the worker was reading from a connection, the connection ends,
    /// because the worker may have taken a request from it: every call on it gets an error, and none waits for ever.
    /// Work that it had not begun goes first, to another worker.
    pub(super) fn fail(&mut self, activity: WorkerActivity, error: &CallError) {
        match activity {
            WorkerActivity::Nothing => {}
            WorkerActivity::Assigned { work, .. } => self.queue.put_back(work),
            WorkerActivity::Begun(calls) => self.refuse(calls, error),
            WorkerActivity::Reading(connection) => self.receiver.end(connection),
        }
    }

    /// Why the function cannot start when a worker cannot be forked.
    pub(super) fn cannot_fork(&self, error: &io::Error) -> String {
        let workers = self.sandbox.launch.concurrency;
        let hint = if error.raw_os_error() == Some(libc::EAGAIN) {
            ": the container's pids limit, or its user's RLIMIT_NPROC, allows no more processes"
        } else {
            ""
        };
        format!("its workers (cwasi.concurrency: {workers}) cannot be forked{hint}: {error}")
    }

    pub(super) fn overloaded(&self, full: QueueFull) -> CallError {
        let FunctionLaunch { identity, concurrency, queue, .. } = &self.sandbox.launch;
        let function = identity.function.clone();
        let bound = match full {
            QueueFull::Items => Overload::Queue { function, workers: *concurrency, queue: *queue },
            QueueFull::Usage => {
                let Load { bytes, descriptors, .. } = self.queue.bounds;
                Overload::Load { function, bytes, descriptors }
            }
        };
        bound.into()
    }

    pub(super) fn ending(&self) -> CallError {
        let target = self.sandbox.launch.identity.function.clone();
        CallError::Unreachable { target, cause: Unreached::Ending }
    }

    pub(super) fn late(&self) -> CallError {
        CallError::Timeout { target: self.sandbox.launch.identity.function.clone() }
    }

    /// The error of calls whose worker was killed at their deadline, with the probable reason.
    pub(super) fn missed_deadline(&self, calls: &[CallKey]) -> CallError {
        let why = full_stream(self.sandbox.launch.entry == Entry::Reactor).map(unread);
        if let Some(CallKey { id, .. }) = calls.first() {
            self.complain(&format!(
                "call {id} did not end in time; its worker was killed for it{}",
                why.as_deref().unwrap_or_default()
            ));
        }
        let late = self.late();
        why.map_or_else(|| late.clone(), |why| CallError::Late { message: format!("{late}{why}") })
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
