//! Errors of the command, and what its exit code says. The codes above 2 are those of `sysexits.h`.

use std::fmt;
use std::io::ErrorKind;
use std::process::ExitCode;

use cwasi_config::NodeConfigError;

use crate::cluster::ClusterError;
use crate::containerd::ContainerdError;
use crate::registry::RegistryError;
use cwasi_workflow::WorkflowError;

/// Why the command ends without success. `docs/cli.md` has this table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// What was examined has faults, or the called function failed.
    Findings = 1,
    /// The command line is wrong.
    Usage = 2,
    /// A file's content is wrong.
    Data = 65,
    /// A file, image, container or function does not exist.
    Missing = 66,
    /// containerd, a cluster, a registry or a callee does not answer.
    Unavailable = 69,
    Failed = 70,
    /// stdout cannot be written.
    Output = 74,
    /// The callee is overloaded, or did not answer in time: try again.
    TryAgain = 75,
    /// A registry or a cluster refuses the user, `cwasi.allow` of a function the caller, or this command what is not safe.
    Denied = 77,
    /// The terminal was closed: 128 and the number of `SIGHUP`, as shells say it.
    HungUp = 129,
    /// The user ended the command: `SIGINT`.
    Interrupted = 130,
    /// The reader of stdout closed it: `SIGPIPE`.
    PipeClosed = 141,
    /// Another process ended it: `SIGTERM`.
    Terminated = 143,
}

impl Exit {
    /// True if a signal ended the command.
    #[must_use]
    pub const fn is_signal(self) -> bool {
        matches!(self, Self::HungUp | Self::Interrupted | Self::Terminated)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// An error with its exit code.
#[derive(Debug)]
pub struct Failure {
    exit: Exit,
    error: anyhow::Error,
}

impl Failure {
    /// `error`, which ends the command with `exit`.
    pub fn new(exit: Exit, error: impl Into<anyhow::Error>) -> Self {
        Self { exit, error: error.into() }
    }

    /// A text for the user.
    pub fn text(exit: Exit, text: impl fmt::Display + fmt::Debug + Send + Sync + 'static) -> Self {
        Self { exit, error: anyhow::Error::msg(text) }
    }

    /// The same, with more text at its end.
    #[must_use]
    pub fn with(self, more: &str) -> Self {
        if more.is_empty() {
            return self;
        }
        Self { exit: self.exit, error: anyhow::anyhow!("{self}{more}") }
    }

    #[must_use]
    pub const fn exit(&self) -> Exit {
        self.exit
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Some errors say their causes themselves.
        let mut said = String::new();
        for cause in self.error.chain().map(ToString::to_string) {
            if !said.contains(&cause) {
                let between = if said.is_empty() { "" } else { ": " };
                said = format!("{said}{between}{cause}");
            }
        }
        f.write_str(&said)
    }
}

/// Errors of this crate have their codes; any other one is [`Exit::Failed`].
impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        let error = error.into();
        Self::new(code_of(&error), error)
    }
}

fn code_of(error: &anyhow::Error) -> Exit {
    match error.downcast_ref::<ContainerdError>() {
        Some(ContainerdError::Away { .. }) => return Exit::Unavailable,
        Some(error) if error.is_missing() => return Exit::Missing,
        Some(_) | None => {}
    }
    match error.downcast_ref::<WorkflowError>() {
        Some(WorkflowError::Wrong { .. }) => return Exit::Data,
        Some(WorkflowError::Read { source, .. }) if source.kind() == ErrorKind::InvalidData => {
            return Exit::Data;
        }
        Some(WorkflowError::Read { .. }) => return Exit::Missing,
        None => {}
    }
    match error.downcast_ref::<NodeConfigError>() {
        Some(NodeConfigError::Invalid { .. }) => return Exit::Data,
        Some(NodeConfigError::Read { .. }) => return Exit::Missing,
        None => {}
    }
    if let Some(error) = error.downcast_ref::<ClusterError>() {
        return of_cluster(error);
    }
    match error.downcast_ref::<RegistryError>() {
        Some(RegistryError::NoRegistry { .. } | RegistryError::Tag { .. }) => Exit::Usage,
        Some(RegistryError::Credentials { .. }) => Exit::Data,
        Some(RegistryError::Away { .. }) => Exit::Unavailable,
        Some(RegistryError::Denied { .. } | RegistryError::Readable { .. }) => Exit::Denied,
        Some(RegistryError::Refused { .. }) | None => Exit::Failed,
    }
}

const fn of_cluster(error: &ClusterError) -> Exit {
    match error {
        ClusterError::NotConfigured { .. }
        | ClusterError::NoContext { .. }
        | ClusterError::NoDefinition
        | ClusterError::NoWorkflow { .. }
        | ClusterError::NoPods { .. }
        | ClusterError::NotInWorkflow { .. }
        | ClusterError::NoFunction { .. } => Exit::Missing,
        ClusterError::Configuration { .. } => Exit::Data,
        ClusterError::Away { .. } | ClusterError::NoNode { .. } | ClusterError::NoNodes { .. } => {
            Exit::Unavailable
        }
        ClusterError::Denied { .. } | ClusterError::Unauthorized { .. } => Exit::Denied,
        ClusterError::Remains { .. } => Exit::TryAgain,
        ClusterError::TooManyLogs { .. } => Exit::Usage,
        ClusterError::Refused { .. } | ClusterError::Ended { .. } => Exit::Failed,
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        let config = |source: std::io::Error| NodeConfigError::Read { path: "/c".into(), source };
        let failure = Failure::from(config(std::io::Error::other("odd")));
        assert_eq!(failure.to_string(), "configuration file /c cannot be read: odd");
        assert_eq!(failure.exit(), Exit::Missing);
        let error = Err::<(), _>(std::io::Error::other("odd")).context("a cannot be read");
        let failure = Failure::from(error.unwrap_err()).with("\nlog");
        assert_eq!(failure.to_string(), "a cannot be read: odd\nlog");
    }
}
