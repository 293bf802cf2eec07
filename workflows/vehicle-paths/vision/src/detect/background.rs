//! The empty scene at half resolution, its noise, and the tone of its shadows. Learned as a
//! per-pixel median over a spread of frames, then moved slowly with the light.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::mask;
use crate::frame::Frame;
use crate::label::Rect;

/// Frames that learning looks at, at most.
pub const MAX_LEARNING_FRAMES: usize = 64;
/// Frames that an object must stay before it becomes part of the scene.
const SETTLE_FRAMES: u8 = 200;
/// What one change between scene and object adds to a pixel's flicker, which fades by 1 a frame.
const FLICKER_STEP: u8 = 14;
/// From here on a pixel is taken for a flickering one: a clock in the picture, leaves.
const FLICKER_LIMIT: u8 = 110;
/// Shadow tones are counted in this many steps of the ratio 0..1.
pub const TONE_STEPS: usize = 64;
/// Range of ratios that a cast shadow may have.
const SHADOW_RATIO: std::ops::Range<f32> = 0.36..0.90;
/// Half width of the learned band around the shadows' tone.
const SHADOW_BAND: f32 = 0.075;
/// What is left of a tone's count after a picture.
const TONE_MEMORY: f32 = 0.997;
/// Dark pixels that give a picture half of its say.
const TONE_PIXELS: u32 = 800;
/// Pictures with shadows that are needed before a tone is believed.
const TONE_PICTURES: f32 = 2.5;
/// Used until a tone has been learned.
const ANY_SHADOW: (f32, f32) = (0.50, 0.95);

/// Why a picture does not fit the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BackgroundError {
    /// Nothing to learn from.
    #[error("no frames to learn the background from")]
    NoFrames,
    /// The picture size changed within one video.
    #[error(
        "a picture of {is_width}x{is_height} half pixels, but the background has {width}x{height}; start a new background for another camera"
    )]
    Size {
        /// Width of the picture.
        is_width: usize,
        /// Height of the picture.
        is_height: usize,
        /// Width of the background.
        width: usize,
        /// Height of the background.
        height: usize,
    },
    /// A received background contradicts itself.
    #[error("the background's planes do not fit its size {width}x{height}")]
    Planes {
        /// Width that it claims.
        width: usize,
        /// Height that it claims.
        height: usize,
    },
}

/// A frame at half resolution: luma averaged, chroma as it comes.
pub struct Scaled {
    /// Width in half pixels.
    pub width: usize,
    /// Height in half pixels.
    pub height: usize,
    /// Luma.
    pub luma: Vec<u8>,
    /// Blue difference.
    pub blue: Vec<u8>,
    /// Red difference.
    pub red: Vec<u8>,
}

impl Scaled {
    /// Halves a frame.
    pub fn new(frame: &Frame) -> Self {
        let (width, height) = (frame.width / 2, frame.height / 2);
        let stride = frame.chroma_size().0;
        let crop = |plane: &[u8]| -> Vec<u8> {
            plane.chunks_exact(stride).take(height).flat_map(|row| &row[..width]).copied().collect()
        };
        let (blue, red) = (crop(&frame.blue), crop(&frame.red));
        Self { width, height, luma: frame.half_luma(), blue, red }
    }
}

/// The learned scene; everything that the detector remembers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Background {
    /// Width in half pixels.
    pub width: usize,
    /// Height in half pixels.
    pub height: usize,
    /// Luma of the empty scene.
    #[serde(with = "serde_bytes")]
    pub luma: Vec<u8>,
    /// Blue difference of the empty scene.
    #[serde(with = "serde_bytes")]
    pub blue: Vec<u8>,
    /// Red difference of the empty scene.
    #[serde(with = "serde_bytes")]
    pub red: Vec<u8>,
    /// Usual deviation of the luma, in quarter levels.
    #[serde(with = "serde_bytes")]
    pub spread: Vec<u8>,
    /// For how many frames each pixel has been an object.
    #[serde(with = "serde_bytes")]
    held: Vec<u8>,
    /// How often each pixel changed lately.
    #[serde(with = "serde_bytes")]
    flicker: Vec<u8>,
    /// How often each shadow tone was seen.
    tones: Vec<f32>,
    /// Share of the pictures that changed lately.
    pub(super) unrest: f32,
    /// Boxes of the picture before, to tell what lasts from what flashes.
    pub(super) previous: Vec<Rect>,
}

impl Background {
    /// Learns the empty scene from frames spread over some seconds.
    pub fn learn(frames: &[Frame]) -> Result<Self, BackgroundError> {
        let scaled: Vec<Scaled> =
            frames.iter().take(MAX_LEARNING_FRAMES).map(Scaled::new).collect();
        let first = scaled.first().ok_or(BackgroundError::NoFrames)?;
        let pixels = first.width * first.height;
        let plane =
            |pick: fn(&Scaled) -> &[u8]| -> Vec<&[u8]> { scaled.iter().map(pick).collect() };
        let (luma, spread) = medians(&plane(|frame| &frame.luma), pixels);
        let mut learned = Self {
            width: first.width,
            height: first.height,
            blue: Vec::new(),
            red: Vec::new(),
            luma,
            spread,
            held: vec![0; pixels],
            flicker: vec![0; pixels],
            tones: vec![0.0; TONE_STEPS],
            unrest: 0.0,
            previous: Vec::new(),
        };
        for frame in &scaled {
            learned.check_size(frame)?;
        }
        learned.blue = medians(&plane(|frame| &frame.blue), pixels).0;
        learned.red = medians(&plane(|frame| &frame.red), pixels).0;
        for frame in &scaled {
            let gain = learned.light_gain(frame);
            let pixels = mask::explain(&mut learned, frame, gain);
            learned.unrest += mask::changed_share(&pixels) / scaled.len() as f32;
        }
        Ok(learned)
    }

    /// The empty scene in full resolution, to draw on; frames of one size, at least one.
    pub fn scene(frames: &[Frame]) -> Frame {
        let Some(first) = frames.first() else { return Frame::grey(2, 2, 0) };
        let plane = |pick: fn(&Frame) -> &[u8]| -> Vec<u8> {
            let planes: Vec<&[u8]> = frames.iter().take(MAX_LEARNING_FRAMES).map(pick).collect();
            medians(&planes, pick(first).len()).0
        };
        Frame {
            width: first.width,
            height: first.height,
            luma: plane(|frame| &frame.luma),
            blue: plane(|frame| &frame.blue),
            red: plane(|frame| &frame.red),
        }
    }

    /// Whether planes and size agree: what came in a payload is checked before use.
    pub fn check(&self) -> Result<(), BackgroundError> {
        let (width, height) = (self.width, self.height);
        let pixels = width.saturating_mul(height);
        let planes = [&self.luma, &self.blue, &self.red, &self.spread, &self.held, &self.flicker];
        let fits = planes.iter().all(|plane| plane.len() == pixels)
            && self.tones.len() == TONE_STEPS
            && self.tones.iter().all(|count| count.is_finite())
            && self.unrest.is_finite();
        if fits && width >= 3 && height >= 3 {
            return Ok(());
        }
        Err(BackgroundError::Planes { width, height })
    }

    pub(super) fn check_size(&self, now: &Scaled) -> Result<(), BackgroundError> {
        let (width, height) = (self.width, self.height);
        if (now.width, now.height) == (width, height) && width >= 3 && height >= 3 {
            return Ok(());
        }
        Err(BackgroundError::Size { is_width: now.width, is_height: now.height, width, height })
    }

    /// How much brighter the whole picture is than the background: the median ratio.
    pub(super) fn light_gain(&self, now: &Scaled) -> f32 {
        const STEPS: usize = 512;
        let mut counts = [0u32; STEPS];
        let mut total = 0;
        for (value, before) in now.luma.iter().zip(&self.luma).step_by(7) {
            if *before > 24 && *before < 240 {
                let step = usize::from(*value) * 256 / usize::from(*before);
                counts[step.min(STEPS - 1)] += 1;
                total += 1;
            }
        }
        let mut below = 0;
        for (step, count) in counts.iter().enumerate() {
            if below + count > total / 2 {
                let part = ((total / 2 - below) as f32 / *count as f32).clamp(0.0, 1.0);
                return ((step as f32 + part) / 256.0).clamp(0.6, 1.6);
            }
            below += count;
        }
        1.0
    }

    /// The band of ratios that counts as shadow: around the tone seen most, or a wide guess.
    pub(super) fn shadow_band(&self) -> (f32, f32) {
        let total: f32 = self.tones.iter().sum();
        let around = |at: usize, reach: usize| -> f32 {
            self.tones[at.saturating_sub(reach)..(at + reach + 1).min(TONE_STEPS)].iter().sum()
        };
        let at = |ratio: f32| (ratio * TONE_STEPS as f32) as usize;
        let best = (at(SHADOW_RATIO.start)..at(SHADOW_RATIO.end))
            .max_by(|a, b| around(*a, 1).total_cmp(&around(*b, 1)))
            .unwrap_or(0);
        if total < TONE_PICTURES || around(best, 4) < 0.35 * total {
            return ANY_SHADOW;
        }
        let weighted: f32 = (best - 1..=best + 1).map(|k| self.tones[k] * (k as f32 + 0.5)).sum();
        let peak = weighted / around(best, 1) / TONE_STEPS as f32;
        (peak - SHADOW_BAND, peak + SHADOW_BAND)
    }

    /// Counts tones of smooth, colourless darkening. Every picture has the same say, however much
    /// of it is dark: a grey truck close by must not outvote the shadows of a minute.
    pub(super) fn count_tones(&mut self, counts: &[u32; TONE_STEPS]) {
        let total: u32 = counts.iter().sum();
        for (tone, count) in self.tones.iter_mut().zip(counts) {
            *tone = *tone * TONE_MEMORY + *count as f32 / (total + TONE_PIXELS) as f32;
        }
    }

    /// Moves the scene towards what is seen now, and remembers how long pixels have been objects.
    pub(super) fn update(&mut self, now: &Scaled, pixels: &[u8], gain: f32, unsettled: bool) {
        for (index, pixel) in pixels.iter().enumerate() {
            let is_object = *pixel != mask::SCENE;
            let fading = self.flicker[index].saturating_sub(1);
            let changed = self.held[index] > 0 && !is_object;
            self.flicker[index] =
                if changed { fading.saturating_add(FLICKER_STEP) } else { fading };
            self.held[index] = if is_object { self.held[index].saturating_add(1) } else { 0 };
            let light = (f32::from(now.luma[index]) / gain) as u8;
            if self.held[index] >= SETTLE_FRAMES || (unsettled && self.held[index] >= 8) {
                self.luma[index] = light;
                self.blue[index] = now.blue[index];
                self.red[index] = now.red[index];
                self.held[index] = 0;
            } else if !is_object {
                let off = light.abs_diff(self.luma[index]);
                creep(&mut self.luma[index], light);
                creep(&mut self.blue[index], now.blue[index]);
                creep(&mut self.red[index], now.red[index]);
                creep(&mut self.spread[index], off.min(30) * 4);
            }
        }
    }

    /// Takes pixels that keep changing out of a mask.
    pub(super) fn hide_flicker(&self, pixels: &mut [u8]) {
        for (pixel, flicker) in pixels.iter_mut().zip(&self.flicker) {
            if *flicker > FLICKER_LIMIT {
                *pixel = mask::SCENE;
            }
        }
    }
}

/// One step towards a value, when it is off by more than rounding.
fn creep(value: &mut u8, towards: u8) {
    if towards > value.saturating_add(1) {
        *value += 1;
    } else if value.saturating_sub(1) > towards {
        *value -= 1;
    }
}

/// Per-pixel median, and four times the median distance from it.
fn medians(planes: &[&[u8]], pixels: usize) -> (Vec<u8>, Vec<u8>) {
    let (mut middle, mut spread) = (Vec::with_capacity(pixels), Vec::with_capacity(pixels));
    let mut column = vec![0u8; planes.len()];
    for index in 0..pixels {
        for (value, plane) in column.iter_mut().zip(planes) {
            *value = plane.get(index).copied().unwrap_or(0);
        }
        let half = column.len() / 2;
        let median = *column.select_nth_unstable(half).1;
        column.iter_mut().for_each(|value| *value = value.abs_diff(median));
        let distance = *column.select_nth_unstable(half).1;
        middle.push(median);
        spread.push(distance.min(30) * 4);
    }
    (middle, spread)
}
