//! Why an action is not started or run.

use std::path::PathBuf;

/// What an action cannot be asked for.
#[derive(Debug, thiserror::Error)]
pub(super) enum ActionError {
    #[error("{0}")]
    Name(String),
    #[error("{0}: the executor's command line does not allow it")]
    Denied(String),
    #[error("dir {}: {why}", dir.display())]
    Folder { dir: PathBuf, why: String },
    #[error("the executor ends")]
    Ends,
    #[error("there is no action {0}")]
    Unknown(String),
    #[error("Initialization has failed due to: {0}")]
    Failed(String),
}
