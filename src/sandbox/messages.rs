//! Worker → init, over the socketpair between the two. (Init → worker is the `Assignment` frame with the
//! caller's connection as its descriptor.)

use serde::{Deserialize, Serialize};

/// Longest message in bytes.
pub const WORKER_MESSAGE_MAX: usize = 8 * 1024;

/// What a worker tells its init.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkerMessage {
    /// It has its first instance and waits (secondary) or runs it (primary).
    Ready,
    /// It cannot make an instance and ends.
    StartFailed {
        /// For the user.
        message: String,
    },
    /// The assigned request was answered, or its caller is gone.
    Done,
}
