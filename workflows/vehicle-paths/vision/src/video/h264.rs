//! H.264 access units from MP4 samples to frames.

use rusty_h264_common::YuvFrame;
use rusty_h264_decoder::Decoder;

use super::is_usable;
use crate::frame::{Frame, stretch_range};

const START_CODE: [u8; 4] = [0, 0, 0, 1];

/// One H.264 stream being decoded.
pub struct H264 {
    decoder: Decoder,
    headers: Vec<u8>,
    length_bytes: usize,
}

impl H264 {
    /// A decoder that is given these parameter sets before the first access unit. In the MP4
    /// each unit is preceded by its length in `length_bytes` bytes.
    pub fn new<'a>(parameter_sets: impl Iterator<Item = &'a [u8]>, length_bytes: usize) -> Self {
        let mut headers = Vec::new();
        for set in parameter_sets {
            headers.extend(START_CODE);
            headers.extend(set);
        }
        Self { decoder: Decoder::new(), headers, length_bytes }
    }

    /// Decodes one sample. The error is the decoder's reason.
    pub fn decode(&mut self, sample: &[u8]) -> Result<Option<Frame>, String> {
        let mut unit = std::mem::take(&mut self.headers);
        unit.reserve(sample.len() + 64);
        let mut rest = sample;
        while rest.len() > self.length_bytes {
            let (length, after) = rest.split_at(self.length_bytes);
            let length = length.iter().fold(0usize, |sum, byte| sum << 8 | usize::from(*byte));
            if length > after.len() {
                return Err(format!("a unit of {length} bytes in {} left", after.len()));
            }
            unit.extend(START_CODE);
            unit.extend(&after[..length]);
            rest = &after[length..];
        }
        let decoded = self.decoder.decode(&unit).map_err(|error| error.to_string())?;
        decoded.map(to_frame).transpose()
    }
}

fn to_frame(yuv: YuvFrame) -> Result<Frame, String> {
    let YuvFrame { width, height, mut y, mut u, mut v } = yuv;
    let chroma = width.div_ceil(2) * height.div_ceil(2);
    if !is_usable(width, height) || y.len() < width * height || u.len() < chroma || v.len() < chroma
    {
        return Err(format!("a picture of {width}x{height} cannot be used"));
    }
    stretch_range(&mut y, &mut u, &mut v);
    Ok(Frame { width, height, luma: y, blue: u, red: v })
}
