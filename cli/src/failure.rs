//! Errors of the command, and what its exit code says. The codes above 2 are those of `sysexits.h`.

use std::fmt;
use std::process::ExitCode;

use crate::containerd::ContainerdError;
use crate::workflow::WorkflowError;

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
    /// containerd, or a service of it, does not answer.
    Unavailable = 69,
    /// The operation failed.
    Failed = 70,
    /// The callee is overloaded, or did not answer in time: try again.
    TryAgain = 75,
    /// The user ended the command.
    Interrupted = 130,
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
        Self { exit: self.exit, error: anyhow::anyhow!("{:#}{more}", self.error) }
    }

    /// The exit code.
    #[must_use]
    pub const fn exit(&self) -> Exit {
        self.exit
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}", self.error)
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
        Some(WorkflowError::Wrong { .. }) => Exit::Data,
        Some(WorkflowError::Read { .. }) => Exit::Missing,
        None => Exit::Failed,
    }
}
