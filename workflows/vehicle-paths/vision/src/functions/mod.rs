//! The four functions and their library, as functions of bytes. How calls to other functions travel is behind
//! [`Runtime`]: the guests give CWASI's, the tools and tests one that calls plain functions.

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

use std::io::Write;
use std::ops::Deref;

use thiserror::Error;

use crate::dataset::ArchiveError;
use crate::detect::BackgroundError;
use crate::jpeg::JpegError;
use crate::payload::{Message, PayloadError, encode_into};
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

/// Where a call belongs that is one part of several: the callee handles them together, and each caller gets the
/// answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Join<'a> {
    /// What the parts have in common.
    pub key: &'a str,
    /// How many there are.
    pub parts: u32,
    /// The place of this one, from 0.
    pub part: u32,
}

/// How a function calls others: many at a time.
pub trait Runtime {
    /// Where a request is written.
    type Buffer: Write;
    /// A call under way.
    type Pending;
    /// What it ends with.
    type Answer: Deref<Target = [u8]>;

    /// A buffer with room for `len` bytes.
    fn buffer(&self, len: usize) -> Self::Buffer;

    /// Sends a request, and does not wait for its end.
    fn start(&self, target: &str, payload: Self::Buffer, join: Option<Join<'_>>) -> Self::Pending;

    /// Waits for it.
    ///
    /// # Errors
    /// When the call failed.
    fn wait(&self, call: Self::Pending) -> Result<Self::Answer, CallFailed>;
}

/// Sends a message.
fn send<R: Runtime, M: Message>(
    runtime: &R,
    target: &str,
    message: &M,
    join: Option<Join<'_>>,
) -> Result<R::Pending, PayloadError> {
    let payload = encode_into(message, |len| runtime.buffer(len))?;
    Ok(runtime.start(target, payload, join))
}

/// The key of the pictures from `first` on.
fn pictures_key(first: u32) -> String {
    format!("pictures-{first:06}")
}

/// Place of the pictures, and of their labels, among the parts that `prepare-dataset` handles together.
const PICTURES: u32 = 0;
const LABELS: u32 = 1;
const PICTURE_PARTS: u32 = 2;

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
    /// Pictures and labels that do not belong together.
    #[error("pictures {pictures:?} came with the labels of {labels:?}")]
    Mismatch {
        /// Numbers of the pictures.
        pictures: Vec<u32>,
        /// Numbers that the labels have.
        labels: Vec<u32>,
    },
    /// Parts that are never handled together.
    #[error(
        "these {count} parts do not belong together; deploy all four functions from the same build"
    )]
    Parts {
        /// How many.
        count: usize,
    },
    /// A callee answered something that its request does not ask for.
    #[error("{target} answered out of turn; deploy all four functions from the same build")]
    Answer {
        /// The callee.
        target: &'static str,
    },
}

#[cfg(test)]
mod tests;
