//! The errors that callers get from init instead of an answer.

use crate::modes::local::LocalError;
use crate::modes::{CallError, Overload};
use crate::sandbox::init::doing::Doing;
use crate::sandbox::init::queue::{Full, Load};
use crate::sandbox::init::signals::Ending;
use crate::sandbox::init::work::Reply;
use crate::sandbox::messages::TOO_MANY_DESCRIPTORS;
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
            self.broken(&format!("its worker {how}"))
        }
    }

    /// Answers instead of the worker that is gone. A connection of which nobody knows whether that had taken a
    /// request from it ends: every call that is out on it gets an error, and none waits for ever.
    pub(super) fn fail(&mut self, doing: &Doing, error: &CallError) {
        match doing {
            Doing::Nothing => {}
            Doing::Given(running) => {
                running.replies().for_each(|reply| self.outbox.tell(reply, error));
            }
            Doing::Took { took, .. } => {
                if let Some(reply_to) = self.receiver.reply_to(took.connection) {
                    self.outbox.tell(&Reply { reply_to, id: took.id }, error);
                }
            }
            Doing::Taking(connection) => self.receiver.end(*connection),
        }
    }

    pub(super) fn unreachable(&self, message: &str) -> CallError {
        let target = self.sandbox.launch.identity.function.clone();
        CallError::Unreachable { target, message: message.to_owned() }
    }

    pub(super) fn overloaded(&self, full: Full) -> CallError {
        let FunctionLaunch { identity, concurrency, queue, .. } = &self.sandbox.launch;
        let function = identity.function.clone();
        let bound = match full {
            Full::Items => Overload::Queue { function, workers: *concurrency, queue: *queue },
            Full::Load => {
                let Load { bytes, descriptors } = self.queue.bounds().load;
                Overload::Load { function, bytes, descriptors }
            }
        };
        bound.into()
    }

    pub(super) fn ending(&self) -> CallError {
        self.unreachable("this instance is ending")
    }

    pub(super) fn late(&self) -> CallError {
        CallError::Timeout { target: self.sandbox.launch.identity.function.clone() }
    }

    /// Late, and this may be the reason.
    pub(super) fn late_because(&self, why: &str) -> CallError {
        CallError::Late { message: format!("{}{why}", self.late()) }
    }

    pub(super) fn broken(&self, message: &str) -> CallError {
        let target = self.sandbox.launch.identity.function.clone();
        CallError::Broken { target, message: message.to_owned() }
    }
}

/// A request that no worker has got.
pub(super) fn not_handed(error: &LocalError) -> CallError {
    match error {
        LocalError::Socket(SocketError::Deadline) => {
            Overload::Said(TOO_MANY_DESCRIPTORS.to_owned()).into()
        }
        error => CallError::Internal {
            message: format!("request cannot be handed to a worker: {error}"),
        },
    }
}
