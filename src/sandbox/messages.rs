//! Messages from a worker to its sandbox init, over their socketpair. Pure data.
//!
//! A worker also sends `Undelivered` frames there. Init sends frames only: `Assignment` with the caller's connection as
//! its descriptor, and `SharedConnection` with a connection that the worker may read from.

use serde::{Deserialize, Serialize};

use cwasi_wire::frame::FRAME_VERSION;

/// Longest message in bytes; frames are longer.
pub const WORKER_MESSAGE_MAX: usize = 8 * 1024;

/// True for an `Undelivered` frame; false for a [`WorkerMessage`], whose text begins with another byte.
#[must_use]
pub fn is_frame(message: &[u8]) -> bool {
    message.first() == Some(&FRAME_VERSION)
}

/// A message of a worker to its init.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkerMessage {
    /// A primary has its instance and runs it.
    ///
    /// A secondary has changed its slot in the worker table: it has its first instance, it began a direct request while
    /// init slept, or an assigned group, or it ended a request that init assigned or for which it disabled direct reads.
    Progress,
    /// It cannot make an instance and ends.
    StartFailed { message: String },
}
