//! What the functions say to each other, and how it is written: four bytes (`VP`, version, kind)
//! and a postcard body. Bytes of pictures are borrowed from the payload, not copied.
//!
//! Each kind of message has a number of its own, so a payload sent to the wrong function, or from
//! another version of the workflow, is refused with a sentence and not misread.

use std::io::Write;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::detect::Background;
use crate::geometry::Matrix3;
use crate::label::FrameLabels;
use crate::track::Path;

/// Raised with every change of a message.
pub const VERSION: u8 = 3;
/// Largest payload written or read, bytes: well under what a call may carry.
pub const MAX_BYTES: usize = 128 * 1024 * 1024;
/// Pictures in one message, at most.
pub const MAX_PICTURES: usize = 64;

const MAGIC: [u8; 2] = *b"VP";
const HEADER: usize = 4;

/// Why a payload was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PayloadError {
    /// Shorter than the header.
    #[error("a payload of {bytes} bytes is too short for a vehicle-paths message")]
    Short {
        /// How long it is.
        bytes: usize,
    },
    /// Something else altogether.
    #[error("not a vehicle-paths message: it starts with {start:02x?}")]
    Foreign {
        /// The first bytes.
        start: [u8; 2],
    },
    /// Written by another version of the workflow.
    #[error(
        "message version {is}, this function speaks {VERSION}: deploy all four functions from the same build"
    )]
    Version {
        /// The version in the payload.
        is: u8,
    },
    /// A message for another function.
    #[error(
        "message kind {is} where {name} ({wanted}) is expected: was the right function called?"
    )]
    Kind {
        /// The kind in the payload.
        is: u8,
        /// The kind expected.
        wanted: u8,
        /// The name of the kind expected.
        name: &'static str,
    },
    /// The body contradicts itself.
    #[error("malformed {name} message: {reason}")]
    Malformed {
        /// The kind of message.
        name: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// Too many bytes or pictures.
    #[error("{name} with {count} {unit} is over the limit of {limit}: send smaller chunks")]
    TooLarge {
        /// The kind of message.
        name: &'static str,
        /// How many.
        count: usize,
        /// Of what.
        unit: &'static str,
        /// How many are allowed.
        limit: usize,
    },
}

/// A message with its kind.
pub trait Message: Serialize {
    /// Its number on the wire.
    const KIND: u8;
    /// Its name in errors.
    const NAME: &'static str;

    /// How many pictures it carries.
    fn pictures(&self) -> usize {
        0
    }
}

/// Writes a message.
pub fn encode<M: Message>(message: &M) -> Result<Vec<u8>, PayloadError> {
    encode_into(message, Vec::with_capacity)
}

/// Writes a message into the buffer that `make` gives for its length.
pub fn encode_into<M: Message, B: Write>(
    message: &M,
    make: impl FnOnce(usize) -> B,
) -> Result<B, PayloadError> {
    let malformed = |reason: String| PayloadError::Malformed { name: M::NAME, reason };
    check_pictures(message)?;
    let body = postcard::experimental::serialized_size(message)
        .map_err(|error| malformed(error.to_string()))?;
    check_bytes::<M>(HEADER + body)?;
    let mut buffer = make(HEADER + body);
    let head = [MAGIC[0], MAGIC[1], VERSION, M::KIND];
    buffer.write_all(&head).map_err(|error| malformed(error.to_string()))?;
    postcard::to_io(message, buffer).map_err(|error| malformed(error.to_string()))
}

/// Reads a message; nothing may be left over.
pub fn decode<'a, M: Message + Deserialize<'a>>(bytes: &'a [u8]) -> Result<M, PayloadError> {
    check_bytes::<M>(bytes.len())?;
    let Some((head, body)) = bytes.split_first_chunk::<HEADER>() else {
        return Err(PayloadError::Short { bytes: bytes.len() });
    };
    let [first, second, version, kind] = *head;
    if [first, second] != MAGIC {
        return Err(PayloadError::Foreign { start: [first, second] });
    }
    if version != VERSION {
        return Err(PayloadError::Version { is: version });
    }
    if kind != M::KIND {
        return Err(PayloadError::Kind { is: kind, wanted: M::KIND, name: M::NAME });
    }
    let malformed = |reason: String| PayloadError::Malformed { name: M::NAME, reason };
    let (message, rest) =
        postcard::take_from_bytes::<M>(body).map_err(|error| malformed(error.to_string()))?;
    if !rest.is_empty() {
        return Err(malformed(format!("{} bytes are left over", rest.len())));
    }
    check_pictures(&message)?;
    Ok(message)
}

fn check_bytes<M: Message>(count: usize) -> Result<(), PayloadError> {
    if count <= MAX_BYTES {
        return Ok(());
    }
    Err(PayloadError::TooLarge { name: M::NAME, count, unit: "bytes", limit: MAX_BYTES })
}

fn check_pictures<M: Message>(message: &M) -> Result<(), PayloadError> {
    let count = message.pictures();
    if count <= MAX_PICTURES {
        return Ok(());
    }
    Err(PayloadError::TooLarge { name: M::NAME, count, unit: "pictures", limit: MAX_PICTURES })
}

/// A numbered JPEG.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shot<'a> {
    /// Number of the sampled picture, from 0.
    pub number: u32,
    /// Milliseconds from the start of the video.
    pub time_ms: u32,
    /// A whole JPEG file.
    #[serde(borrow, with = "serde_bytes")]
    pub jpeg: &'a [u8],
}

/// To `process-frames`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ProcessRequest<'a> {
    /// Learn the empty scene from pictures spread over some seconds.
    Learn {
        /// Up to [`MAX_PICTURES`].
        #[serde(borrow)]
        shots: Vec<Shot<'a>>,
    },
    /// Label consecutive pictures.
    Label {
        /// What the answer before returned.
        background: Box<Background>,
        /// Up to [`MAX_PICTURES`].
        #[serde(borrow)]
        shots: Vec<Shot<'a>>,
    },
    /// Anonymize labelled pictures and have them put into the archive.
    Anonymize {
        /// Labels of each of them.
        frames: Vec<FrameLabels>,
        /// Up to [`MAX_PICTURES`].
        #[serde(borrow)]
        shots: Vec<Shot<'a>>,
    },
}

impl Message for ProcessRequest<'_> {
    const KIND: u8 = 1;
    const NAME: &'static str = "process request";

    fn pictures(&self) -> usize {
        match self {
            Self::Learn { shots } | Self::Label { shots, .. } | Self::Anonymize { shots, .. } => {
                shots.len()
            }
        }
    }
}

/// From `process-frames`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ProcessResponse {
    /// The scene was learned.
    Learned {
        /// To be passed on with the first pictures.
        background: Box<Background>,
        /// The empty scene in full resolution, anonymized as a whole, a JPEG.
        #[serde(with = "serde_bytes")]
        scene: Vec<u8>,
    },
    /// Pictures were labelled.
    Labelled {
        /// To be passed on with the next pictures.
        background: Box<Background>,
        /// Labels per picture.
        labels: Vec<FrameLabels>,
        /// Numbers of pictures in which too much changed at once to label or anonymize them; they
        /// are not in the archive.
        skipped: Vec<u32>,
    },
    /// Pictures were anonymized, and are in the archive's part.
    Anonymized,
}

impl Message for ProcessResponse {
    const KIND: u8 = 2;
    const NAME: &'static str = "process response";
}

/// To `prepare-dataset`, one part of those that it handles together: the pictures of a chunk with their labels, or
/// the end alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum DatasetRequest<'a> {
    /// Anonymized pictures, to be appended.
    Pictures {
        /// Up to [`MAX_PICTURES`].
        #[serde(borrow)]
        shots: Vec<Shot<'a>>,
    },
    /// What is in these pictures.
    Labels {
        /// One for each of them, in their order.
        frames: Vec<FrameLabels>,
    },
    /// All pictures are in: write the annotations, have the paths reconstructed, end the archive.
    Finish(#[serde(borrow)] Recording<'a>),
}

impl Message for DatasetRequest<'_> {
    const KIND: u8 = 3;
    const NAME: &'static str = "dataset request";

    fn pictures(&self) -> usize {
        match self {
            Self::Pictures { shots } => shots.len(),
            Self::Labels { frames } => frames.len(),
            Self::Finish(_) => 1,
        }
    }
}

/// From `prepare-dataset`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum DatasetResponse {
    /// A part of the archive.
    Part(#[serde(with = "serde_bytes")] Vec<u8>),
    /// The archive's end, and the paths.
    End {
        /// The last part of the archive.
        #[serde(with = "serde_bytes")]
        archive: Vec<u8>,
        /// What `reconstruct-paths` answered.
        paths: PathsResponse,
    },
}

impl Message for DatasetResponse {
    const KIND: u8 = 4;
    const NAME: &'static str = "dataset response";
}

/// All labels of a video, to `reconstruct-paths`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recording<'a> {
    /// Picture width in pixels.
    pub width: u32,
    /// Picture height in pixels.
    pub height: u32,
    /// World (x, y, 1) to pixels, row by row, when the camera is calibrated.
    pub homography: Option<Matrix3>,
    /// The empty scene, anonymized, a JPEG, to draw the paths on.
    #[serde(borrow, with = "serde_bytes")]
    pub scene: &'a [u8],
    /// In order of time.
    pub frames: Vec<FrameLabels>,
    /// Pictures that are not in the archive.
    pub skipped: Vec<u32>,
}

impl Message for Recording<'_> {
    const KIND: u8 = 5;
    const NAME: &'static str = "paths request";
}

/// From `reconstruct-paths`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PathsResponse {
    /// In order of appearance.
    pub paths: Vec<Path>,
    /// Why there are none, when the video does not allow any.
    pub note: Option<String>,
    /// The paths drawn over the scene, a PNG.
    #[serde(with = "serde_bytes")]
    pub picture: Vec<u8>,
}

impl Message for PathsResponse {
    const KIND: u8 = 6;
    const NAME: &'static str = "paths response";
}

#[cfg(test)]
mod tests;
