//! A model-free detector of moving vehicles and people for a camera that stands still.
//!
//! It keeps a picture of the empty scene ([`Background`]) and explains every pixel as scene,
//! shadow or object ([`mask`]); objects are cleaned and collected into boxes ([`shape`]) and
//! judged by shape and by whether they last ([`judge`]). What it must remember between pictures
//! is a `Background`, small enough to travel with each request: no function keeps state.

mod background;
mod judge;
mod mask;
mod shape;

pub use background::{Background, BackgroundError};

use crate::frame::Frame;
use crate::label::{Label, Rect};
use background::Scaled;

/// Share of changed pixels above which the camera itself must have moved or the light jumped.
const MAX_CHANGED_SHARE: f32 = 0.45;
/// Mean of that share above which there is no scene to compare with: the camera moves all the
/// time, or the video was cut together from several. A street with a lorry close by stays below
/// 0.1, a camera turned by 16 pixels a second is at 0.3.
const MAX_UNREST: f32 = 0.18;
/// Weight of one picture in that mean.
const UNREST_RATE: f32 = 0.01;

/// What was found in one picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Objects; empty when the scene is unsettled.
    pub labels: Vec<Label>,
    /// So much of the picture, or of the pictures before it, changed that nothing in it can be told
    /// apart.
    pub unsettled: bool,
}

/// Finds objects in consecutive frames and moves the background on.
pub fn detect(
    background: &mut Background,
    frames: &[Frame],
) -> Result<Vec<Found>, BackgroundError> {
    let mut found = Vec::with_capacity(frames.len());
    for frame in frames {
        found.push(detect_one(background, frame)?);
    }
    let previous = std::mem::take(&mut background.previous);
    judge::drop_flashes(&previous, &mut found);
    background.previous = found.last().map(|last| rects(&last.labels)).unwrap_or_default();
    Ok(found)
}

fn rects(labels: &[Label]) -> Vec<Rect> {
    labels.iter().map(|label| label.rect).collect()
}

fn detect_one(background: &mut Background, frame: &Frame) -> Result<Found, BackgroundError> {
    let now = Scaled::new(frame);
    background.check_size(&now)?;
    let gain = background.light_gain(&now);
    let mut pixels = mask::explain(background, &now, gain);
    let changed = mask::changed_share(&pixels);
    background.unrest += UNREST_RATE * (changed - background.unrest);
    let unsettled = changed > MAX_CHANGED_SHARE || background.unrest > MAX_UNREST;
    background.update(&now, &pixels, gain, unsettled);
    if unsettled {
        return Ok(Found { labels: Vec::new(), unsettled });
    }
    background.hide_flicker(&mut pixels);
    let blobs = shape::blobs(&pixels, now.width, now.height);
    let labels = judge::labels(&blobs, &now, (frame.width, frame.height));
    Ok(Found { labels, unsettled })
}

#[cfg(test)]
mod tests;
