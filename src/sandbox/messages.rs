//! Worker → init, over the socketpair between the two; besides, `Undelivered` frames. (Init → worker are frames: `Assignment` with the
//! caller's connection as its descriptor, `Part`, and `Line` with a connection that the worker may read from.)

use serde::{Deserialize, Serialize};

use crate::wire::frame::FRAME_VERSION;

/// Longest message in bytes; frames are longer.
pub const WORKER_MESSAGE_MAX: usize = 8 * 1024;
/// What a caller reads whose payload or response could not be sent between processes of this host.
pub const TOO_MANY_DESCRIPTORS: &str = "too many descriptors are on their way between functions of this host: raise RLIMIT_NOFILE, or call fewer at a time";

/// True for an `Undelivered` frame; false for a [`WorkerMessage`], whose text begins with another byte.
#[must_use]
pub fn is_frame(message: &[u8]) -> bool {
    message.first() == Some(&FRAME_VERSION)
}

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
    /// The assigned request was answered, or its caller is gone. Also after a request that the worker took itself when
    /// init has others that wait.
    Done,
    /// It took a request itself while init slept.
    Took,
    /// Instances are made anew for each request.
    NotRenewed {
        /// For the user.
        message: String,
    },
}
