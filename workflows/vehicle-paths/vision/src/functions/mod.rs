//! The four functions and their library, as functions of bytes. How a call to another function travels is behind
//! [`Call`]: the guests give the runtime's, the tools and tests give a plain function call.

#[cfg(feature = "video")]
pub mod extract;
mod metadata;
pub mod options;
mod prepare;
mod process;
mod reconstruct;

pub use metadata::image_metadata;
pub use prepare::prepare_dataset;
pub use process::process_frames;
pub use reconstruct::reconstruct_paths;

use thiserror::Error;

use crate::dataset::ArchiveError;
use crate::detect::BackgroundError;
use crate::jpeg::JpegError;
use crate::payload::PayloadError;
use crate::picture::PictureError;
use crate::track::TrackError;

/// The names under which the functions call each other.
pub const PROCESS_FRAMES: &str = "process-frames";
/// See [`PROCESS_FRAMES`].
pub const PREPARE_DATASET: &str = "prepare-dataset";
/// See [`PROCESS_FRAMES`].
pub const RECONSTRUCT_PATHS: &str = "reconstruct-paths";

/// A call that failed.
#[derive(Clone, Debug, Error)]
#[error("calling {target}: {reason}")]
pub struct CallFailed {
    /// The callee.
    pub target: String,
    /// What the runtime or the callee said.
    pub reason: String,
}

/// How a function calls another.
pub trait Call {
    /// Sends a request and waits for its response.
    fn call(&self, target: &str, payload: &[u8]) -> Result<Vec<u8>, CallFailed>;
}

impl<F: Fn(&str, &[u8]) -> Result<Vec<u8>, CallFailed>> Call for F {
    fn call(&self, target: &str, payload: &[u8]) -> Result<Vec<u8>, CallFailed> {
        self(target, payload)
    }
}

/// Why a function cannot answer.
#[derive(Debug, Error)]
pub enum FunctionError {
    /// The request, or a callee's response, is not what it should be.
    #[error(transparent)]
    Payload(#[from] PayloadError),
    /// A picture in the request cannot be read.
    #[error("picture {number}: {source}")]
    Picture {
        /// Its number.
        number: u32,
        /// Why.
        source: JpegError,
    },
    /// `get_image_metadata` cannot read a picture.
    #[error("picture {number}: {reason}")]
    Metadata {
        /// Its number.
        number: u32,
        /// Why.
        reason: String,
    },
    /// The pictures do not fit the background.
    #[error(transparent)]
    Background(#[from] BackgroundError),
    /// The labels cannot be tracked.
    #[error(transparent)]
    Track(#[from] TrackError),
    /// The archive cannot be written.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The picture of the paths cannot be written.
    #[error(transparent)]
    Drawing(#[from] PictureError),
    /// A call to another function failed.
    #[error(transparent)]
    Call(#[from] CallFailed),
    /// A callee answered something that its request does not ask for.
    #[error("{target} answered out of turn; deploy all four functions from the same build")]
    Answer {
        /// The callee.
        target: &'static str,
    },
}

#[cfg(test)]
mod tests;
