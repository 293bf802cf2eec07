//! Explains each pixel as scene, shadow or object.
//!
//! A cast shadow darkens the road by the same share everywhere and leaves its grain and markings
//! standing, only dimmer. A grey or dark car also darkens the road without colouring it, but not
//! by just that share, and it brings edges of its own. So a pixel is shadow only when its
//! darkening lies in the band of tones that this scene's shadows were seen to have, its colour is
//! unchanged, and no new edge lies inside the darkened area.

use super::background::{Background, Scaled, TONE_STEPS};

/// The empty scene.
pub const SCENE: u8 = 0;
/// The scene in a shadow.
pub const SHADOW: u8 = 1;
/// Something that was not there.
pub const OBJECT: u8 = 2;

/// Least difference of luma that counts, levels.
const LEAST_DIFFERENCE: f32 = 11.0;
/// How many usual deviations count as a difference.
const NOISE_FACTOR: f32 = 3.5;
/// Chroma difference (both planes together) from which a pixel is coloured differently.
const COLOUR_DIFFERENCE: i32 = 11;
/// Change of gradient from which a pixel lies on an edge that the scene does not have.
const EDGE_DIFFERENCE: f32 = 20.0;

/// How much more a pixel counts for the shadows' tone when the scene shows through it.
const WITNESS: u32 = 60;
/// Least slope of the scene that can be recognized, levels over two pixels.
const WITNESS_SLOPE: f32 = 24.0;

/// What is known about one pixel before its surroundings are looked at.
#[derive(Clone, Copy)]
struct Change {
    ratio: f32,
    colour: i32,
    edge: bool,
}

/// One explanation per half pixel; also counts the shadow tones seen.
pub fn explain(background: &mut Background, now: &Scaled, gain: f32) -> Vec<u8> {
    let (width, height) = (now.width, now.height);
    let band = background.shadow_band();
    let expected: Vec<f32> = (0..256).map(|value| (value as f32 * gain).min(255.0)).collect();
    let mut out = vec![SCENE; width * height];
    let mut counts = [0u32; TONE_STEPS];
    for row in 1..height - 1 {
        for index in row * width + 1..(row + 1) * width - 1 {
            let was = expected[usize::from(background.luma[index])];
            let difference = f32::from(now.luma[index]) - was;
            let colour = i32::from(now.blue[index].abs_diff(background.blue[index]))
                + i32::from(now.red[index].abs_diff(background.red[index]));
            let noise = f32::from(background.spread[index]) / 4.0;
            let limit = LEAST_DIFFERENCE.max(noise * NOISE_FACTOR);
            if difference.abs() <= limit && colour <= COLOUR_DIFFERENCE {
                continue;
            }
            let ratio = f32::from(now.luma[index]) / was.max(1.0);
            let edge = has_new_edge(background, now, index, ratio);
            let change = Change { ratio, colour, edge };
            let dark = difference < 0.0 && colour <= COLOUR_DIFFERENCE;
            if dark && !edge && ratio < 1.0 {
                let weight = if shows_scene(background, now, index, ratio) { WITNESS } else { 1 };
                counts[((ratio * TONE_STEPS as f32) as usize).min(TONE_STEPS - 1)] += weight;
            }
            out[index] = if dark && is_shadow(change, band) { SHADOW } else { OBJECT };
        }
    }
    background.count_tones(&counts);
    soften_borders(&mut out, width, height);
    out
}

/// Share of the pixels that are not the empty scene.
pub fn changed_share(pixels: &[u8]) -> f32 {
    let changed = pixels.iter().filter(|pixel| **pixel != SCENE).count();
    changed as f32 / pixels.len().max(1) as f32
}

fn is_shadow(change: Change, band: (f32, f32)) -> bool {
    change.colour <= COLOUR_DIFFERENCE
        && change.ratio >= band.0
        && change.ratio <= band.1
        && !change.edge
}

/// Whether the gradient is not that of the scene, dimmed by `ratio`.
fn has_new_edge(background: &Background, now: &Scaled, index: usize, ratio: f32) -> bool {
    let width = now.width;
    let slope =
        |plane: &[u8], step: usize| f32::from(plane[index + step]) - f32::from(plane[index - step]);
    let dim = ratio.min(1.2);
    let across = slope(&now.luma, 1) - dim * slope(&background.luma, 1);
    let down = slope(&now.luma, width) - dim * slope(&background.luma, width);
    across.abs() + down.abs() > EDGE_DIFFERENCE
}

/// Whether a marking or border of the scene is still to be seen, dimmed by `ratio`: what lies over
/// the scene would hide it, so this is a shadow for certain.
fn shows_scene(background: &Background, now: &Scaled, index: usize, ratio: f32) -> bool {
    let width = now.width;
    let slope =
        |plane: &[u8], step: usize| f32::from(plane[index + step]) - f32::from(plane[index - step]);
    [1, width].into_iter().any(|step| {
        let (was, is) = (slope(&background.luma, step), slope(&now.luma, step));
        was.abs() > WITNESS_SLOPE && (is - ratio * was).abs() < 0.3 * ratio * was.abs()
    })
}

/// A shadow's own border is an edge and half as dark: thin object lines between shadow and scene
/// become shadow, so that they do not outline it.
fn soften_borders(pixels: &mut [u8], width: usize, height: usize) {
    let before = pixels.to_vec();
    for row in 2..height.saturating_sub(2) {
        for index in row * width + 2..(row + 1) * width - 2 {
            if before[index] != OBJECT {
                continue;
            }
            let mut count = [0u8; 3];
            for near in [row - 2, row, row + 2] {
                let at = near * width + index - row * width;
                for pixel in [before[at - 2], before[at], before[at + 2]] {
                    count[usize::from(pixel)] += 1;
                }
            }
            if count[usize::from(SHADOW)] >= 2 && count[usize::from(OBJECT)] <= 4 {
                pixels[index] = SHADOW;
            }
        }
    }
}
