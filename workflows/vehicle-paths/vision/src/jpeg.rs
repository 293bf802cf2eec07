//! Frames as JPEG, the form in which they travel between functions: a tenth of the raw bytes.

use jpeg_encoder::{Encoder, EncodingError, ImageBuffer, JpegColorType, SamplingFactor};
use thiserror::Error;
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

use crate::frame::{Frame, MAX_SIDE};

/// Quality of every JPEG written here: artefacts stay under the camera's own noise.
pub const QUALITY: u8 = 85;

/// Why a picture could not be read or written.
#[derive(Debug, Error)]
pub enum JpegError {
    /// Not a JPEG, damaged, or a kind that is not supported.
    #[error("cannot decode this JPEG ({bytes} bytes): {reason}")]
    Decode {
        /// Size of the input.
        bytes: usize,
        /// The decoder's words.
        reason: String,
    },
    /// The picture has no pixels or too many.
    #[error("a picture of {width}x{height} cannot be used: sides must be 2 to {MAX_SIDE} pixels")]
    Size {
        /// Width in pixels.
        width: usize,
        /// Height in pixels.
        height: usize,
    },
    /// The encoder failed.
    #[error("cannot encode a {width}x{height} picture as JPEG")]
    Encode {
        /// Width in pixels.
        width: usize,
        /// Height in pixels.
        height: usize,
        /// What the encoder said.
        #[source]
        source: EncodingError,
    },
}

/// Reads a baseline or progressive JPEG.
pub fn decode(bytes: &[u8]) -> Result<Frame, JpegError> {
    let failed = |reason: String| JpegError::Decode { bytes: bytes.len(), reason };
    let options = DecoderOptions::new_fast()
        .set_max_width(MAX_SIDE)
        .set_max_height(MAX_SIDE)
        .jpeg_set_out_colorspace(ColorSpace::YCbCr);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(|error| failed(error.to_string()))?;
    if decoder.input_colorspace() == Some(ColorSpace::Luma) {
        let grey = decoder.options().jpeg_set_out_colorspace(ColorSpace::Luma);
        decoder.set_options(grey);
    }
    let pixels = decoder.decode().map_err(|error| failed(error.to_string()))?;
    let (width, height) = decoder.dimensions().ok_or_else(|| failed("no size".to_owned()))?;
    check_size(width, height)?;
    match pixels.len() / (width * height) {
        3 => Ok(subsample(&pixels, width, height)),
        1 => Ok(Frame { luma: pixels, ..Frame::grey(width, height, 0) }),
        channels => Err(failed(format!("{channels} colour channels"))),
    }
}

/// Reads only the header: width and height.
pub fn decode_size(bytes: &[u8]) -> Result<(usize, usize), JpegError> {
    let failed = |reason: String| JpegError::Decode { bytes: bytes.len(), reason };
    let mut decoder = JpegDecoder::new(ZCursor::new(bytes));
    decoder.decode_headers().map_err(|error| failed(error.to_string()))?;
    let (width, height) = decoder.dimensions().ok_or_else(|| failed("no size".to_owned()))?;
    check_size(width, height)?;
    Ok((width, height))
}

fn check_size(width: usize, height: usize) -> Result<(), JpegError> {
    let usable = 2..=MAX_SIDE;
    if usable.contains(&width) && usable.contains(&height) {
        return Ok(());
    }
    Err(JpegError::Size { width, height })
}

/// Interleaved 4:4:4 to planar 4:2:0; the decoder interpolated the chroma, so one of four serves.
fn subsample(pixels: &[u8], width: usize, height: usize) -> Frame {
    let mut frame = Frame::grey(width, height, 0);
    let chroma_width = width.div_ceil(2);
    for (row, line) in pixels.chunks_exact(width * 3).enumerate() {
        let luma = &mut frame.luma[row * width..][..width];
        for (value, pixel) in luma.iter_mut().zip(line.chunks_exact(3)) {
            *value = pixel[0];
        }
        if row.is_multiple_of(2) {
            let blue = &mut frame.blue[row / 2 * chroma_width..][..chroma_width];
            let red = &mut frame.red[row / 2 * chroma_width..][..chroma_width];
            for (column, pixel) in line.chunks(6).enumerate() {
                blue[column] = pixel[1];
                red[column] = pixel[2];
            }
        }
    }
    frame
}

/// Writes a 4:2:0 baseline JPEG.
pub fn encode(frame: &Frame) -> Result<Vec<u8>, JpegError> {
    let (width, height) = (frame.width, frame.height);
    check_size(width, height)?;
    let mut out = Vec::with_capacity(width * height / 8);
    let mut encoder = Encoder::new(&mut out, QUALITY);
    encoder.set_sampling_factor(SamplingFactor::F_2_2);
    encoder.encode_image(Planes(frame)).map_err(|source| JpegError::Encode {
        width,
        height,
        source,
    })?;
    Ok(out)
}

/// Hands the encoder our planes; it wants full chroma rows and averages them again itself.
struct Planes<'a>(&'a Frame);

impl ImageBuffer for Planes<'_> {
    fn get_jpeg_color_type(&self) -> JpegColorType {
        JpegColorType::Ycbcr
    }

    fn width(&self) -> u16 {
        self.0.width as u16
    }

    fn height(&self) -> u16 {
        self.0.height as u16
    }

    fn fill_buffers(&self, y: u16, buffers: &mut [Vec<u8>; 4]) {
        let (width, row) = (self.0.width, usize::from(y));
        let chroma_width = width.div_ceil(2);
        buffers[0].extend_from_slice(&self.0.luma[row * width..][..width]);
        for (buffer, plane) in buffers[1..3].iter_mut().zip([&self.0.blue, &self.0.red]) {
            let line = &plane[row / 2 * chroma_width..][..chroma_width];
            buffer.extend(line.iter().flat_map(|value| [*value; 2]).take(width));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_survives_the_trip() {
        let mut frame = Frame::grey(66, 50, 0);
        for (index, value) in frame.luma.iter_mut().enumerate() {
            *value = (60 + index % 66 + index / 66) as u8;
        }
        frame.blue.fill(100);
        let back = decode(&encode(&frame).unwrap()).unwrap();
        assert_eq!((back.width, back.height), (66, 50));
        let worst = back.luma.iter().zip(&frame.luma).map(|(a, b)| a.abs_diff(*b)).max();
        assert!(worst.unwrap() < 10, "{worst:?}");
        assert!(back.blue.iter().all(|value| value.abs_diff(100) < 4));
    }

    #[test]
    fn damaged_pictures_are_errors() {
        assert!(decode(b"").is_err());
        assert!(decode(b"not a picture at all").is_err());
        let whole = encode(&Frame::grey(64, 64, 10)).unwrap();
        assert!(decode(&whole[..20]).is_err());
    }

    #[test]
    fn an_empty_frame_is_refused() {
        let error = encode(&Frame::grey(0, 0, 0)).unwrap_err();
        assert!(error.to_string().contains("0x0"), "{error}");
    }
}
