//! Makes people and number plates unrecognizable.
//!
//! A person's whole box is coarsened, not only a detected face: at street distances a face is a
//! dozen pixels, too small for a face detector to find reliably, and clothes and gait identify
//! too. Of a vehicle, the band in which plates are mounted is coarsened at both ends' height.
//! Coarsening replaces each cell by its mean and then smooths: the detail is gone from the data,
//! it is not merely hidden.

use crate::frame::Frame;
use crate::label::{Class, Label, Rect};

/// A plate sits in the lower part of a vehicle's box: this share of its height, from below.
const PLATE_BAND: f32 = 0.45;
/// Cells per box side: a person or a band keeps fewer details than any identification needs.
const CELLS_ACROSS_PERSON: f32 = 4.0;
/// Height of a plate cell relative to the band: no character survives.
const CELLS_DOWN_BAND: f32 = 3.0;
/// A box narrower than this many heights may hold a group of people, whatever it was taken for,
/// and is coarsened as a whole: a roof lost costs less than a face shown.
const GROUP_ASPECT: f32 = 1.35;
/// Cells across the picture of the empty scene. A head is narrower than a cell in any street view
/// that shows more than a few people, and a plate is a smear.
const CELLS_ACROSS_SCENE: usize = 96;
/// Least side of a cell, pixels.
const LEAST_CELL: usize = 6;
/// Boxes are widened by this share, because the detector may cut hair or shoes off.
const MARGIN: f32 = 0.08;

/// Coarsens every label's identifying part in place.
pub fn anonymize(frame: &mut Frame, labels: &[Label]) {
    for label in labels {
        let (area, cell) = identifying_part(label);
        coarsen(frame, &area, (cell as usize).max(LEAST_CELL));
    }
}

/// Coarsens a picture as a whole. The empty scene shows those whom no motion gives away: people who
/// stood still while it was learned, parked vehicles. Nobody can say where they are, so nothing in
/// it stays finer than a cell.
pub fn anonymize_scene(scene: &mut Frame) {
    let whole =
        Rect { left: 0.0, top: 0.0, right: scene.width as f32, bottom: scene.height as f32 };
    coarsen(scene, &whole, scene.width.div_ceil(CELLS_ACROSS_SCENE).max(LEAST_CELL));
}

/// The area to coarsen and the side of a cell, pixels.
fn identifying_part(label: &Label) -> (Rect, f32) {
    let rect = &label.rect;
    let (wide, high) = (rect.width() * MARGIN, rect.height() * MARGIN);
    let mut area = Rect {
        left: rect.left - wide,
        top: rect.top - high,
        right: rect.right + wide,
        bottom: rect.bottom + high,
    };
    let may_be_people = rect.width() < GROUP_ASPECT * rect.height();
    match label.class {
        Class::Vehicle if may_be_people => (area, rect.width() / CELLS_ACROSS_PERSON / 2.0),
        Class::Person => (area, rect.width() / CELLS_ACROSS_PERSON),
        Class::Vehicle => {
            area.top = rect.bottom - rect.height() * PLATE_BAND;
            (area, rect.height() * PLATE_BAND / CELLS_DOWN_BAND)
        }
    }
}

fn coarsen(frame: &mut Frame, area: &Rect, cell: usize) {
    // Whole chroma pixels, so that luma and chroma cells cover each other.
    let cell = cell.next_multiple_of(2);
    let left = (area.left.max(0.0) as usize) & !1;
    let top = (area.top.max(0.0) as usize) & !1;
    let right = (area.right.max(0.0).ceil() as usize).min(frame.width);
    let bottom = (area.bottom.max(0.0).ceil() as usize).min(frame.height);
    if left >= right || top >= bottom {
        return;
    }
    let (chroma_width, _) = frame.chroma_size();
    let luma = [left, top, right, bottom];
    let chroma = [left / 2, top / 2, right.div_ceil(2), bottom.div_ceil(2)];
    for (plane, stride, bounds, cell) in [
        (&mut frame.luma, frame.width, luma, cell),
        (&mut frame.blue, chroma_width, chroma, cell / 2),
        (&mut frame.red, chroma_width, chroma, cell / 2),
    ] {
        average_cells(plane, stride, bounds, cell);
        smooth(plane, stride, bounds, cell / 2);
    }
}

fn average_cells(plane: &mut [u8], stride: usize, bounds: [usize; 4], cell: usize) {
    let [left, top, right, bottom] = bounds;
    for row in (top..bottom).step_by(cell) {
        for column in (left..right).step_by(cell) {
            let (end_row, end) = ((row + cell).min(bottom), (column + cell).min(right));
            let mut sum = 0u32;
            for y in row..end_row {
                sum += plane[y * stride..][column..end].iter().map(|v| u32::from(*v)).sum::<u32>();
            }
            let mean = (sum / ((end_row - row) * (end - column)) as u32) as u8;
            for y in row..end_row {
                plane[y * stride..][column..end].fill(mean);
            }
        }
    }
}

/// One box blur along rows and one along columns: cells without hard borders look less odd and
/// give the detectors that train on the dataset no artificial edges.
fn smooth(plane: &mut [u8], stride: usize, bounds: [usize; 4], reach: usize) {
    let [left, top, right, bottom] = bounds;
    let mut line = Vec::new();
    for row in top..bottom {
        line.clear();
        line.extend_from_slice(&plane[row * stride..][left..right]);
        for (offset, mean) in running_mean(&line, reach).enumerate() {
            plane[row * stride + left + offset] = mean;
        }
    }
    for column in left..right {
        line.clear();
        line.extend((top..bottom).map(|row| plane[row * stride + column]));
        for (offset, mean) in running_mean(&line, reach).enumerate() {
            plane[(top + offset) * stride + column] = mean;
        }
    }
}

fn running_mean(line: &[u8], reach: usize) -> impl Iterator<Item = u8> + '_ {
    let mut sum: u32 = line.iter().take(reach).map(|value| u32::from(*value)).sum();
    let mut count = reach.min(line.len()) as u32;
    (0..line.len()).map(move |index| {
        if let Some(value) = line.get(index + reach) {
            sum += u32::from(*value);
            count += 1;
        }
        if index > reach {
            sum -= u32::from(line[index - reach - 1]);
            count -= 1;
        }
        (sum / count.max(1)) as u8
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stripes(width: usize, height: usize) -> Frame {
        let mut frame = Frame::grey(width, height, 0);
        for (index, value) in frame.luma.iter_mut().enumerate() {
            *value = if index % 4 < 2 { 20 } else { 220 };
        }
        frame
    }

    fn contrast(frame: &Frame, row: usize, columns: std::ops::Range<usize>) -> u8 {
        let line = &frame.luma[row * frame.width..][columns];
        line.iter().max().unwrap() - line.iter().min().unwrap()
    }

    fn label(class: Class) -> Label {
        let rect = Rect { left: 20.0, top: 10.0, right: 80.0, bottom: 70.0 };
        Label { class, rect, confidence: 1.0, tone: [0; 3] }
    }

    #[test]
    fn a_person_is_coarsened_from_head_to_foot_and_nothing_else() {
        let mut frame = stripes(100, 80);
        anonymize(&mut frame, &[label(Class::Person)]);
        for row in [11, 40, 69] {
            assert!(contrast(&frame, row, 22..78) < 40, "row {row}");
        }
        assert_eq!(contrast(&frame, 40, 90..100), 200);
    }

    #[test]
    fn a_vehicle_keeps_its_roof() {
        let mut frame = stripes(100, 80);
        let mut car = label(Class::Vehicle);
        car.rect.top = 30.0;
        anonymize(&mut frame, &[car]);
        assert_eq!(contrast(&frame, 35, 22..78), 200);
        assert!(contrast(&frame, 65, 22..78) < 70);
    }

    #[test]
    fn a_vehicle_that_may_be_a_group_of_people_is_coarsened_as_a_whole() {
        let mut frame = stripes(100, 80);
        anonymize(&mut frame, &[label(Class::Vehicle)]);
        assert!(contrast(&frame, 14, 22..78) < 60);
    }

    #[test]
    fn somebody_standing_in_the_empty_scene_is_coarsened_without_a_box() {
        let mut scene = stripes(768, 576);
        anonymize_scene(&mut scene);
        for row in [0, 288, 575] {
            assert!(contrast(&scene, row, 0..768) < 40, "row {row}");
        }
    }

    #[test]
    fn boxes_over_the_border_and_empty_ones_do_no_harm() {
        let mut frame = stripes(31, 33);
        let mut outside = label(Class::Person);
        outside.rect = Rect { left: -50.0, top: -9.0, right: 500.0, bottom: 900.0 };
        let empty = Label { rect: Rect::default(), ..outside };
        anonymize(&mut frame, &[outside, empty]);
        assert!(contrast(&frame, 16, 0..31) < 60);
    }
}
