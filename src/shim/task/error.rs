//! What can go wrong with a task, and the one place where it becomes a ttrpc status.

use containerd_shim::TtrpcResult;
use containerd_shim::protos::ttrpc::{self, Code};

use super::provision::ProvisionError;
use super::stdio::IoError;
use super::stdio::logger::LoggerError;
use crate::cgroups::DriverError;
use crate::rootfs::RootfsError;
use crate::zygote::ZygoteError;
use cwasi_coordinator::registry::RegistryError;
use cwasi_coordinator::{AotError, PlanError};
use cwasi_host::network::TriggerFault;
use cwasi_host::state::StateError;
use cwasi_sys::seqpacket::SocketError;

/// A request that is not fulfilled.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    #[error("no task {id}")]
    NotFound {
        /// What was asked for.
        id: String,
    },
    #[error("no process {exec_id} in task {id}")]
    NoSuchProcess { id: String, exec_id: String },
    /// The process has ended, so it takes no signal.
    #[error("task {id}: process already finished")]
    Ended { id: String },
    /// The id is taken.
    #[error("task {id} already exists")]
    Exists { id: String },
    #[error("task {id} is {state}: {verb} is not possible")]
    State { id: String, state: &'static str, verb: &'static str },
    /// A function runs no other program.
    #[error(
        "task {id} is the WebAssembly function {function}: there is no exec, because its container runs nothing but its \
         module. Read its log (kubectl logs), call it from another function, or run a native container beside it \
         (kubectl debug -it POD --image=IMAGE); for probes and hooks see docs/operating.md"
    )]
    NoExec { id: String, function: String },
    #[error(
        "task {id} is the WebAssembly function {function}: it has stdin, stdout and stderr, and no terminal; run it \
         without -t/--tty (in a pod: tty: false)"
    )]
    NoTerminal { id: String, function: String },
    #[error(
        "task {id}: io.containerd.cwasi.v1 has no checkpoint and no restore, because the connections of a function to its \
         callers and callees, and the memory that they share, cannot be restored; stop the container and start a new one"
    )]
    NoCheckpoint { id: String },
    /// The request makes no sense.
    #[error("task {id}: {problem}")]
    Invalid {
        id: String,
        /// What is wrong with it.
        problem: String,
    },
    /// It was killed or deleted before it was there.
    #[error("task {id} was killed or deleted while it was being created")]
    Cancelled { id: String },
    #[error("the shim of this group is ending; try again")]
    Ending,
    /// What the bundle asks for cannot be provided.
    #[error(transparent)]
    Provision(#[from] ProvisionError),
    #[error(transparent)]
    Io(#[from] IoError),
    #[error(transparent)]
    Rootfs(#[from] RootfsError),
    #[error("task {id}: {source}")]
    Cgroup {
        id: String,
        /// Why they cannot be made.
        #[source]
        source: DriverError,
    },
    #[error(transparent)]
    Files(#[from] StateError),
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error(transparent)]
    Zygote(#[from] ZygoteError),
    /// A socket of the sandbox.
    #[error("a socket for task {id} cannot be made: {source}")]
    Socket {
        id: String,
        #[source]
        source: SocketError,
    },
    /// The workload did not come up.
    #[error("task {id} did not start: {reason}")]
    NotStarted {
        id: String,
        /// What its sandbox said.
        reason: String,
    },
    /// A system call about the task failed.
    #[error("task {id}: {operation} failed: {source}")]
    System {
        id: String,
        operation: &'static str,
        #[source]
        source: std::io::Error,
    },
    #[error(
        "task {id}: cwasi.http={port} cannot be served in the container's network namespace: {source}; another \
         function of the pod may have the port"
    )]
    HttpPort {
        id: String,
        port: u16,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    #[error("task {id}: {source}")]
    Trigger {
        id: String,
        #[source]
        source: TriggerFault,
    },
    #[error("metrics of task {id} cannot be read: {message}")]
    Metrics { id: String, message: String },
}

impl TaskError {
    /// The status that containerd sees.
    #[must_use]
    pub const fn code(&self) -> Code {
        match self {
            Self::NotFound { .. } | Self::NoSuchProcess { .. } | Self::Ended { .. } => {
                Code::NOT_FOUND
            }
            Self::Exists { .. } => Code::ALREADY_EXISTS,
            Self::State { .. } => Code::FAILED_PRECONDITION,
            Self::NoExec { .. } | Self::NoTerminal { .. } | Self::NoCheckpoint { .. } => {
                Code::UNIMPLEMENTED
            }
            Self::Provision(ProvisionError::Plan(PlanError::Aot(
                AotError::Cache { .. } | AotError::Full { .. },
            ))) => Code::RESOURCE_EXHAUSTED,
            Self::Invalid { .. }
            | Self::Io(
                IoError::Scheme { .. }
                | IoError::LoggerOfStderr { .. }
                | IoError::Logger(LoggerError::Uri { .. }),
            )
            | Self::Cgroup { .. }
            | Self::Trigger { .. }
            | Self::Provision(ProvisionError::Plan(_)) => Code::INVALID_ARGUMENT,
            Self::Cancelled { .. } => Code::CANCELLED,
            Self::Ending => Code::UNAVAILABLE,
            Self::Io(_)
            | Self::Rootfs(_)
            | Self::Files(_)
            | Self::Registry(_)
            | Self::Zygote(_)
            | Self::Socket { .. }
            | Self::NotStarted { .. }
            | Self::System { .. }
            | Self::HttpPort { .. }
            | Self::Metrics { .. } => Code::UNKNOWN,
        }
    }
}

/// Turns a result into what ttrpc sends.
///
/// # Errors
/// The same as `result`.
pub fn answer<T>(result: Result<T, TaskError>) -> TtrpcResult<T> {
    result.map_err(|error| {
        let status = ttrpc::get_status(error.code(), error.to_string());
        ttrpc::Error::RpcStatus(status)
    })
}

#[cfg(test)]
mod tests {
    use cwasi_config::triggers::Trigger;
    use cwasi_networked::NetworkError;

    use super::*;

    fn id() -> String {
        "c".to_owned()
    }

    #[test]
    fn errors_have_containerds_statuses() {
        let io = || std::io::Error::from_raw_os_error(libc::EIO);
        let full = AotError::Full { origin: id(), path: "/c".into(), free: 1, message: id() };
        let full = PlanError::from(full);
        let fault = TriggerFault {
            trigger: Trigger::RedisStream(id()),
            source: NetworkError::Command { command: "XGROUP CREATE", reason: id() },
        };
        let table = [
            (TaskError::NotFound { id: id() }, Code::NOT_FOUND),
            (TaskError::NoSuchProcess { id: id(), exec_id: id() }, Code::NOT_FOUND),
            (TaskError::Ended { id: id() }, Code::NOT_FOUND),
            (TaskError::Exists { id: id() }, Code::ALREADY_EXISTS),
            (
                TaskError::State { id: id(), state: "running", verb: "delete" },
                Code::FAILED_PRECONDITION,
            ),
            (TaskError::NoCheckpoint { id: id() }, Code::UNIMPLEMENTED),
            (TaskError::NoExec { id: id(), function: id() }, Code::UNIMPLEMENTED),
            (TaskError::NoTerminal { id: id(), function: id() }, Code::UNIMPLEMENTED),
            (TaskError::Io(IoError::LoggerOfStderr { uri: id() }), Code::INVALID_ARGUMENT),
            (TaskError::Invalid { id: id(), problem: id() }, Code::INVALID_ARGUMENT),
            (TaskError::Provision(PlanError::NoCommand.into()), Code::INVALID_ARGUMENT),
            (TaskError::Provision(full.into()), Code::RESOURCE_EXHAUSTED),
            (TaskError::Cgroup { id: id(), source: DriverError::Legacy }, Code::INVALID_ARGUMENT),
            (TaskError::Cancelled { id: id() }, Code::CANCELLED),
            (TaskError::Ending, Code::UNAVAILABLE),
            (
                TaskError::Io(IoError::Open { stream: "stdout", path: id(), source: io() }),
                Code::UNKNOWN,
            ),
            (TaskError::Socket { id: id(), source: SocketError::Closed }, Code::UNKNOWN),
            (TaskError::NotStarted { id: id(), reason: id() }, Code::UNKNOWN),
            (TaskError::System { id: id(), operation: "kill", source: io() }, Code::UNKNOWN),
            (TaskError::HttpPort { id: id(), port: 80, source: io() }, Code::UNKNOWN),
            (TaskError::Trigger { id: id(), source: fault }, Code::INVALID_ARGUMENT),
            (TaskError::Metrics { id: id(), message: id() }, Code::UNKNOWN),
            (TaskError::Zygote(ZygoteError::Failed(id())), Code::UNKNOWN),
            (TaskError::Provision(PlanError::Engine(id()).into()), Code::INVALID_ARGUMENT),
        ];
        for (error, code) in table {
            assert_eq!(error.code(), code, "{error}");
        }
    }
}
