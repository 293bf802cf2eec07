//! One picture: full-range BT.601 luma and chroma in 4:2:0, what both video decoders deliver and
//! what JPEG stores, so that no step in between converts colours.

/// The largest width or height accepted, so that a forged header cannot ask for the memory.
pub const MAX_SIDE: usize = 4096;

/// A planar 4:2:0 picture, full range. Chroma planes are `width.div_ceil(2)` wide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Width in pixels.
    pub width: usize,
    /// Height in pixels.
    pub height: usize,
    /// Luma, one byte a pixel.
    pub luma: Vec<u8>,
    /// Blue difference, one byte per 2×2 pixels.
    pub blue: Vec<u8>,
    /// Red difference, one byte per 2×2 pixels.
    pub red: Vec<u8>,
}

impl Frame {
    /// A grey picture.
    pub fn grey(width: usize, height: usize, luma: u8) -> Self {
        let chroma = width.div_ceil(2) * height.div_ceil(2);
        Self {
            width,
            height,
            luma: vec![luma; width * height],
            blue: vec![128; chroma],
            red: vec![128; chroma],
        }
    }

    /// Width and height of the chroma planes.
    pub fn chroma_size(&self) -> (usize, usize) {
        (self.width.div_ceil(2), self.height.div_ceil(2))
    }

    /// Luma averaged over 2×2 pixels; an odd last row or column is left out.
    pub fn half_luma(&self) -> Vec<u8> {
        let (width, height) = (self.width / 2, self.height / 2);
        let mut out = Vec::with_capacity(width * height);
        for row in 0..height {
            let top = &self.luma[2 * row * self.width..][..2 * width];
            let low = &self.luma[(2 * row + 1) * self.width..][..2 * width];
            out.extend(top.chunks_exact(2).zip(low.chunks_exact(2)).map(|(a, b)| {
                let sum = u16::from(a[0]) + u16::from(a[1]) + u16::from(b[0]) + u16::from(b[1]);
                ((sum + 2) / 4) as u8
            }));
        }
        out
    }

    /// Interleaved RGB, for drawing.
    pub fn to_rgb(&self) -> Vec<u8> {
        let chroma_width = self.width.div_ceil(2);
        let mut out = Vec::with_capacity(self.width * self.height * 3);
        for row in 0..self.height {
            for column in 0..self.width {
                let chroma = (row / 2) * chroma_width + column / 2;
                let luma = f32::from(self.luma[row * self.width + column]);
                let blue = f32::from(self.blue[chroma]) - 128.0;
                let red = f32::from(self.red[chroma]) - 128.0;
                let green = luma - 0.344_14 * blue - 0.714_14 * red;
                out.extend([(luma + 1.402 * red) as u8, green as u8, (luma + 1.772 * blue) as u8]);
            }
        }
        out
    }
}

/// Stretches studio-range planes (luma 16..235, chroma 16..240) to full range in place.
pub fn stretch_range(luma: &mut [u8], blue: &mut [u8], red: &mut [u8]) {
    let table = |scale: f32, from: f32, to: f32| -> Vec<u8> {
        (0..=255).map(|v| ((v as f32 - from) * scale + to).round() as u8).collect()
    };
    let luma_table = table(255.0 / 219.0, 16.0, 0.0);
    let chroma_table = table(255.0 / 224.0, 128.0, 128.0);
    luma.iter_mut().for_each(|value| *value = luma_table[usize::from(*value)]);
    for plane in [blue, red] {
        plane.iter_mut().for_each(|value| *value = chroma_table[usize::from(*value)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grey_is_grey_in_rgb_and_at_half_size() {
        let frame = Frame::grey(5, 3, 90);
        assert_eq!(frame.to_rgb(), vec![90; 45]);
        assert_eq!(frame.half_luma(), vec![90; 2]);
    }

    #[test]
    fn studio_black_and_white_become_full_black_and_white() {
        let (mut luma, mut blue, mut red) = (vec![16, 235], vec![128], vec![240]);
        stretch_range(&mut luma, &mut blue, &mut red);
        assert_eq!((luma, blue, red), (vec![0, 255], vec![128], vec![255]));
    }
}
