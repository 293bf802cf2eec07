//! The causes in a [`BuilderError`](super::BuilderError) that come from several libraries. Each reads as its own cause.

use std::io;

use libcgroups::common::{AnyManagerError, CreateCgroupSetupError};
use libcontainer::syscall::SyscallError;

use cwasi_sys::file_access::FileAccessError;
use cwasi_sys::seqpacket::SocketError;

use crate::exec_filter::ExecFilterError;
use crate::privileges::PrivilegeError;

use super::lsm::LsmError;

/// Why a mount cannot be prepared.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub enum MountCause {
    Io(#[from] io::Error),
    Kernel(#[from] nix::Error),
    Libcontainer(#[from] SyscallError),
}

/// Why device rules cannot be enforced.
#[derive(Debug, thiserror::Error)]
pub enum DevicesCause {
    #[error(transparent)]
    Kernel(#[from] io::Error),
    #[error("{rule}: {problem}")]
    Rule { rule: String, problem: &'static str },
}

/// Why a terminal does not arrive.
#[derive(Debug, thiserror::Error)]
pub enum TerminalCause {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error("its message has no descriptor")]
    NoDescriptor,
}

/// Why a cgroup cannot be changed.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub enum CgroupCause {
    Io(#[from] io::Error),
    Setup(#[from] CreateCgroupSetupError),
    Limits(#[from] AnyManagerError),
}

/// Why a function's process cannot give up what it does not need.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub enum LockDownError {
    Lsm(#[from] LsmError),
    Privileges(#[from] PrivilegeError),
    FileAccess(#[from] FileAccessError),
    ExecFilter(#[from] ExecFilterError),
}
