//! From blobs to labels: vehicle or person, how sure, and whether it lasts.

use super::Found;
use super::background::Scaled;
use super::shape::Blob;
use crate::label::{Class, Label, Rect};

/// Width over height below which a blob stands upright like a person or two beside each other.
const PERSON_ASPECT: f32 = 1.05;
/// Share of its box that a solid object fills.
const SOLID_FILL: f32 = 0.6;
/// Least share of the box that object pixels must fill.
const LEAST_FILL: f32 = 0.22;

/// Labels in full-resolution pixels.
pub fn labels(blobs: &[Blob], now: &Scaled, size: (usize, usize)) -> Vec<Label> {
    blobs.iter().filter_map(|blob| label(blob, now, size)).collect()
}

fn label(blob: &Blob, now: &Scaled, size: (usize, usize)) -> Option<Label> {
    let fill = blob.area as f32 / (blob.width() * blob.height()) as f32;
    if fill < LEAST_FILL {
        return None;
    }
    let aspect = blob.width() as f32 / blob.height() as f32;
    let class = if aspect < PERSON_ASPECT { Class::Person } else { Class::Vehicle };
    let rect = Rect {
        left: (blob.left * 2) as f32,
        top: (blob.top * 2) as f32,
        right: (blob.right * 2).min(size.0) as f32,
        bottom: (blob.bottom * 2).min(size.1) as f32,
    };
    let large = (blob.area as f32 / 150.0).min(1.0);
    let confidence = 0.35 + 0.35 * (fill / SOLID_FILL).min(1.0) + 0.3 * large;
    Some(Label { class, rect, confidence, tone: tone(blob, now) })
}

/// Mean colour of the middle of a blob's box.
fn tone(blob: &Blob, now: &Scaled) -> [u8; 3] {
    let (quarter_across, quarter_down) = (blob.width() / 4, blob.height() / 4);
    let (mut sums, mut count) = ([0u32; 3], 0u32);
    for row in blob.top + quarter_down..blob.bottom - quarter_down {
        for column in blob.left + quarter_across..blob.right - quarter_across {
            let index = row * now.width + column;
            for (sum, plane) in sums.iter_mut().zip([&now.luma, &now.blue, &now.red]) {
                *sum += u32::from(plane[index]);
            }
            count += 1;
        }
    }
    sums.map(|sum| (sum / count.max(1)) as u8)
}

/// Drops what was neither in the picture before nor is in the one after: noise flashes, objects
/// last. `before` are the boxes of the picture before the first.
pub fn drop_flashes(before: &[Rect], found: &mut [Found]) {
    let all: Vec<Vec<Rect>> =
        found.iter().map(|one| one.labels.iter().map(|label| label.rect).collect()).collect();
    for (index, one) in found.iter_mut().enumerate() {
        let earlier = if index == 0 { before } else { &all[index - 1] };
        let later = all.get(index + 1).map_or(&[][..], Vec::as_slice);
        let alone = index == 0 && before.is_empty() && later.is_empty();
        one.labels.retain(|label| {
            alone || earlier.iter().chain(later).any(|other| is_same(&label.rect, other))
        });
    }
}

/// Whether two boxes of neighbouring pictures may show the same object.
fn is_same(a: &Rect, b: &Rect) -> bool {
    let (size_a, size_b) = (a.area().sqrt(), b.area().sqrt());
    let shift_x = (a.left + a.right - b.left - b.right).abs() / 2.0;
    let shift_y = (a.top + a.bottom - b.top - b.bottom).abs() / 2.0;
    let alike = size_a < 2.2 * size_b && size_b < 2.2 * size_a;
    alike && shift_x.max(shift_y) < 0.9 * size_a.max(size_b) + 8.0
}
