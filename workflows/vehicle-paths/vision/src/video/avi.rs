//! AVI: a small walker over RIFF chunks that yields the Motion JPEG frames in file order. It needs
//! no index, so a file that was cut still gives the frames it has.

use std::io::{Read, Seek};

use super::{Picture, TimedPicture, VideoError, is_usable, read_at};
use crate::jpeg;

/// Chunks walked through at most before the pictures start.
const MAX_HEADER_CHUNKS: usize = 4096;

/// An AVI file being read.
pub struct AviVideo<R> {
    reader: R,
    file_size: u64,
    frame_us: u64,
    promised: usize,
    at: u64,
    taken: usize,
    done: bool,
}

struct Chunk {
    id: [u8; 4],
    size: u64,
    data: u64,
}

fn damaged(reason: impl Into<String>) -> VideoError {
    VideoError::Container { container: "AVI", reason: reason.into() }
}

impl<R: Read + Seek> AviVideo<R> {
    /// Reads the headers up to the first picture.
    pub fn open(mut reader: R, file_size: u64) -> Result<Self, VideoError> {
        let (mut at, mut frame_us, mut promised) = (12, 0, 0);
        let mut codec = None;
        for _ in 0..MAX_HEADER_CHUNKS {
            let Some(chunk) = chunk_at(&mut reader, at, file_size)? else {
                return Err(damaged("the file ends before its pictures"));
            };
            at = chunk.data + chunk.size + chunk.size % 2;
            match &chunk.id {
                b"LIST" => {
                    let kind = read_at(&mut reader, chunk.data, 4, file_size)?.unwrap_or_default();
                    if kind == b"movi" {
                        at = chunk.data + 4;
                        break;
                    }
                    at = chunk.data + 4; // walk into it
                }
                b"avih" => {
                    let head = header(&mut reader, &chunk, 40, file_size)?;
                    frame_us = u64::from(word(&head, 0));
                    promised = word(&head, 16) as usize;
                    let (width, height) = (word(&head, 32) as usize, word(&head, 36) as usize);
                    if !is_usable(width, height) {
                        return Err(damaged(format!("pictures of {width}x{height}")));
                    }
                }
                b"strh" => {
                    let head = header(&mut reader, &chunk, 8, file_size)?;
                    if &head[..4] == b"vids" {
                        codec = Some([head[4], head[5], head[6], head[7]]);
                    }
                }
                _ => {}
            }
        }
        let codec = codec.ok_or_else(|| damaged("there is no video stream in it"))?;
        if !codec.eq_ignore_ascii_case(b"mjpg") {
            return Err(VideoError::Codec { codec: String::from_utf8_lossy(&codec).into_owned() });
        }
        let frame_us = if frame_us == 0 { 40_000 } else { frame_us };
        Ok(Self { reader, file_size, frame_us, promised, at, taken: 0, done: false })
    }

    /// Frames a second.
    pub fn fps(&self) -> f64 {
        1e6 / self.frame_us as f64
    }

    /// The next frame.
    pub fn next_frame(&mut self) -> Result<Option<TimedPicture>, VideoError> {
        while !self.done {
            let Some(chunk) = chunk_at(&mut self.reader, self.at, self.file_size)? else {
                return self.end();
            };
            self.at = chunk.data + chunk.size + chunk.size % 2;
            if chunk.id == *b"LIST" {
                self.at = chunk.data + 4; // `rec ` groups
                continue;
            }
            if chunk.id == *b"idx1" {
                return self.end();
            }
            // Video chunks are `00dc` or `00db`; an empty one repeats the frame before.
            if (&chunk.id[2..] == b"dc" || &chunk.id[2..] == b"db") && chunk.size > 0 {
                return self.picture(&chunk).map(Some);
            }
        }
        Ok(None)
    }

    fn picture(&mut self, chunk: &Chunk) -> Result<TimedPicture, VideoError> {
        let frame = self.taken;
        self.taken += 1;
        let read = read_at(&mut self.reader, chunk.data, chunk.size, self.file_size)?;
        let Some(bytes) = read else {
            self.done = true;
            return Err(VideoError::CutShort { frame, frames: self.promised.max(frame + 1) });
        };
        if let Err(source) = jpeg::decode_size(&bytes) {
            self.done = true;
            return Err(VideoError::Picture { frame, source });
        }
        let time_ms = (frame as u64 * self.frame_us / 1000) as u32;
        Ok(TimedPicture { time_ms, picture: Picture::Jpeg(bytes) })
    }

    fn end(&mut self) -> Result<Option<TimedPicture>, VideoError> {
        self.done = true;
        if self.taken < self.promised {
            return Err(VideoError::CutShort { frame: self.taken, frames: self.promised });
        }
        Ok(None)
    }
}

fn chunk_at(
    reader: &mut (impl Read + Seek),
    at: u64,
    file_size: u64,
) -> Result<Option<Chunk>, VideoError> {
    let Some(head) = read_at(reader, at, 8, file_size)? else { return Ok(None) };
    let id = [head[0], head[1], head[2], head[3]];
    Ok(Some(Chunk { id, size: u64::from(word(&head, 4)), data: at + 8 }))
}

fn header(
    reader: &mut (impl Read + Seek),
    chunk: &Chunk,
    least: u64,
    file_size: u64,
) -> Result<Vec<u8>, VideoError> {
    let name = String::from_utf8_lossy(&chunk.id).into_owned();
    if chunk.size < least {
        return Err(damaged(format!("its {name} header has only {} bytes", chunk.size)));
    }
    read_at(reader, chunk.data, least, file_size)?
        .ok_or_else(|| damaged(format!("the file ends inside its {name} header")))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
