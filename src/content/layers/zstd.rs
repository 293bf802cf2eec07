//! Zstandard data of several frames, one after the other, as parallel compressors and seekable formats write them. Runs in
//! the shim daemon.

use std::io::{self, Read};

use ruzstd::decoding::StreamingDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};

/// Bytes of the header of a skippable frame: magic number and length.
const SKIPPABLE_HEADER: usize = 8;

/// Reads the contents of all frames. [`StreamingDecoder`] alone ends after the first one.
pub(super) struct Frames<'a> {
    rest: &'a [u8],
    frame: Option<StreamingDecoder<&'a [u8], ruzstd::decoding::FrameDecoder>>,
}

impl<'a> Frames<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, frame: None }
    }

    /// Begins the next frame, or skips one without contents.
    fn begin(&mut self) -> io::Result<()> {
        match StreamingDecoder::new(self.rest) {
            Ok(frame) => self.frame = Some(frame),
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                length,
                ..
            })) => {
                let end =
                    SKIPPABLE_HEADER.saturating_add(usize::try_from(length).unwrap_or(usize::MAX));
                let rest = self.rest.get(end..);
                self.rest = rest.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
            }
            Err(error) => return Err(io::Error::other(error)),
        }
        Ok(())
    }
}

impl Read for Frames<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            if let Some(frame) = &mut self.frame {
                let len = frame.read(buffer)?;
                if len > 0 {
                    return Ok(len);
                }
                self.rest = frame.get_ref();
                self.frame = None;
            } else if self.rest.is_empty() {
                return Ok(0);
            } else {
                self.begin()?;
            }
        }
    }
}
