//! Compressed video in, frames out, a few at a time. Runs inside `extract-frames`.
//!
//! Formats: H.264 in MP4 and Motion JPEG in AVI. A file is read piece by piece and never held as
//! a whole. When reading fails in the middle, the frames before that point have been delivered:
//! [`Video::next_frame`] returns them first and the error after them.

mod avi;
mod h264;
mod mp4;

use std::io::{Read, Seek, SeekFrom};

use thiserror::Error;

use crate::frame::{Frame, MAX_SIDE};
use crate::jpeg::{self, JpegError};

/// The largest compressed frame that is read, bytes.
const MAX_SAMPLE_BYTES: u64 = 32 * 1024 * 1024;

/// Why a video could not be opened or read on.
#[derive(Debug, Error)]
pub enum VideoError {
    /// Zero bytes.
    #[error("the video is empty (0 bytes); check that the file was copied completely")]
    Empty,
    /// Neither container is recognized.
    #[error(
        "not a video this function reads: it starts with {first:02x?}; \
         give H.264 in MP4 or Motion JPEG in AVI, for example `ffmpeg -i YOURS -c:v libx264 out.mp4`"
    )]
    Foreign {
        /// The first bytes.
        first: Vec<u8>,
    },
    /// The container's index is missing or wrong.
    #[error("the {container} container is damaged or cut short: {reason}")]
    Container {
        /// MP4 or AVI.
        container: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A stream, but of another codec.
    #[error(
        "the video is coded as {codec}; convert it with `ffmpeg -i YOURS -c:v libx264 out.mp4`"
    )]
    Codec {
        /// The codec's name.
        codec: String,
    },
    /// The file ends inside the pictures.
    #[error("the video is cut short: frame {frame} of {frames} lies beyond the end of the file")]
    CutShort {
        /// Number of the frame that is missing.
        frame: usize,
        /// How many the index promises.
        frames: usize,
    },
    /// A compressed frame cannot be decoded.
    #[error("frame {frame} cannot be decoded: {reason}")]
    Frame {
        /// Its number in the file.
        frame: usize,
        /// The decoder's words.
        reason: String,
    },
    /// A Motion JPEG frame cannot be decoded.
    #[error("frame {frame} cannot be decoded")]
    Picture {
        /// Its number in the file.
        frame: usize,
        /// Why.
        #[source]
        source: JpegError,
    },
    /// The file system failed.
    #[error("cannot {operation} the video at byte {at}")]
    Io {
        /// read or seek in.
        operation: &'static str,
        /// Where in the file.
        at: u64,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
}

/// A decoded frame, or one that was already a JPEG and need not be coded again.
#[derive(Debug)]
pub enum Picture {
    /// Pixels.
    Frame(Frame),
    /// A whole JPEG file.
    Jpeg(Vec<u8>),
}

/// A picture and its time.
#[derive(Debug)]
pub struct TimedPicture {
    /// Milliseconds from the start of the video.
    pub time_ms: u32,
    /// The picture.
    pub picture: Picture,
}

impl TimedPicture {
    /// As a JPEG.
    pub fn into_jpeg(self) -> Result<Vec<u8>, JpegError> {
        match self.picture {
            Picture::Frame(frame) => jpeg::encode(&frame),
            Picture::Jpeg(bytes) => Ok(bytes),
        }
    }
}

/// An open video of either format.
pub enum Video<R> {
    /// H.264 in MP4.
    Mp4(Box<mp4::Mp4Video<R>>),
    /// Motion JPEG in AVI.
    Avi(avi::AviVideo<R>),
}

impl<R: Read + Seek> Video<R> {
    /// Recognizes the container and reads its index.
    pub fn open(mut reader: R) -> Result<Self, VideoError> {
        let size = seek(&mut reader, SeekFrom::End(0))?;
        if size == 0 {
            return Err(VideoError::Empty);
        }
        seek(&mut reader, SeekFrom::Start(0))?;
        let mut first = vec![0; size.min(12) as usize];
        reader.read_exact(&mut first).map_err(|source| VideoError::Io {
            operation: "read",
            at: 0,
            source,
        })?;
        if first.len() == 12 && first.starts_with(b"RIFF") && first.ends_with(b"AVI ") {
            return Ok(Self::Avi(avi::AviVideo::open(reader, size)?));
        }
        if first.len() == 12 && &first[4..8] == b"ftyp" {
            return Ok(Self::Mp4(Box::new(mp4::Mp4Video::open(reader, size)?)));
        }
        Err(VideoError::Foreign { first })
    }

    /// Frames a second, as far as the container says.
    pub fn fps(&self) -> f64 {
        match self {
            Self::Mp4(video) => video.fps(),
            Self::Avi(video) => video.fps(),
        }
    }

    /// The next frame in display order; `None` after the last. After an error there is no more.
    pub fn next_frame(&mut self) -> Result<Option<TimedPicture>, VideoError> {
        match self {
            Self::Mp4(video) => video.next_frame(),
            Self::Avi(video) => video.next_frame(),
        }
    }
}

fn seek(reader: &mut impl Seek, to: SeekFrom) -> Result<u64, VideoError> {
    let at = match to {
        SeekFrom::Start(at) => at,
        SeekFrom::End(_) | SeekFrom::Current(_) => 0,
    };
    reader.seek(to).map_err(|source| VideoError::Io { operation: "seek in", at, source })
}

/// Reads `size` bytes at `offset`; `None` when the file ends before.
fn read_at(
    reader: &mut (impl Read + Seek),
    offset: u64,
    size: u64,
    file_size: u64,
) -> Result<Option<Vec<u8>>, VideoError> {
    if size > MAX_SAMPLE_BYTES || offset.checked_add(size).is_none_or(|end| end > file_size) {
        return Ok(None);
    }
    seek(reader, SeekFrom::Start(offset))?;
    let mut bytes = vec![0; size as usize];
    reader.read_exact(&mut bytes).map_err(|source| VideoError::Io {
        operation: "read",
        at: offset,
        source,
    })?;
    Ok(Some(bytes))
}

/// Thins a stream out to a chosen rate: keeps the first frame at or after each tick.
#[derive(Debug)]
pub struct Sampler {
    interval_ms: f64,
    taken: u64,
}

impl Sampler {
    /// At most `fps` frames a second.
    pub fn new(fps: f64) -> Self {
        Self { interval_ms: 1000.0 / fps, taken: 0 }
    }

    /// Whether the frame at this time is wanted.
    pub fn wants(&mut self, time_ms: u32) -> bool {
        let due = self.taken as f64 * self.interval_ms;
        // A frame half a millisecond early (rounding) is still the one meant.
        if f64::from(time_ms) + 0.51 < due {
            return false;
        }
        self.taken = (f64::from(time_ms) / self.interval_ms + 0.02) as u64 + 1;
        true
    }
}

/// Whether a size announced by a container can be used.
fn is_usable(width: usize, height: usize) -> bool {
    (2..=MAX_SIDE).contains(&width) && (2..=MAX_SIDE).contains(&height)
}

#[cfg(test)]
mod tests;
