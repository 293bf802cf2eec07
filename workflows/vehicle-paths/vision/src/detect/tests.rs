//! The detector on small made-up scenes: grain, a moving car, its shadow, a cloud.

use super::*;
use crate::label::Class;

const SIZE: (usize, usize) = (320, 240);

/// Grainy road with a marking.
fn road(seed: u32) -> Frame {
    let mut frame = Frame::grey(SIZE.0, SIZE.1, 0);
    let mut state = 77u32;
    let mut noise = seed.wrapping_mul(2_654_435_761) | 1;
    for (index, value) in frame.luma.iter_mut().enumerate() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let row = index / SIZE.0;
        let base = if (110..118).contains(&row) { 200 } else { 100 };
        *value = base + (state >> 29) as u8 + (noise >> 30) as u8;
    }
    frame
}

fn paint(frame: &mut Frame, rect: [usize; 4], change: impl Fn(u8) -> u8) {
    for row in rect[1]..rect[3] {
        frame.luma[row * SIZE.0..][rect[0]..rect[2]].iter_mut().for_each(|v| *v = change(*v));
    }
}

/// A grey car, not far from the road's tone, with windows; its shadow to the left.
fn with_car(mut frame: Frame, left: usize) -> Frame {
    paint(&mut frame, [left - 30, 100, left, 130], |v| (f32::from(v) * 0.5) as u8);
    paint(&mut frame, [left, 80, left + 70, 130], |_| 122);
    paint(&mut frame, [left + 10, 84, left + 60, 100], |_| 40);
    paint(&mut frame, [left + 8, 118, left + 20, 130], |_| 20);
    paint(&mut frame, [left + 50, 118, left + 62, 130], |_| 20);
    frame
}

/// Learned while a car passed in every third picture.
fn learned() -> Background {
    let picture = |k: u32| {
        if k.is_multiple_of(3) { with_car(road(k), 40 + k as usize * 8) } else { road(k) }
    };
    Background::learn(&(0..24).map(picture).collect::<Vec<_>>()).unwrap()
}

#[test]
fn a_grey_car_is_found_without_its_shadow() {
    let mut background = learned();
    let frames: Vec<Frame> = (0..3).map(|k| with_car(road(90 + k), 120 + k as usize * 6)).collect();
    let found = detect(&mut background, &frames).unwrap();
    for (one, left) in found.iter().zip([120.0, 126.0, 132.0]) {
        assert_eq!(one.labels.len(), 1, "{one:?}");
        let rect = one.labels[0].rect;
        let expected = Rect { left, top: 80.0, right: left + 70.0, bottom: 130.0 };
        assert!(rect.iou(&expected) > 0.75, "{rect:?} {expected:?}");
        assert_eq!(one.labels[0].class, Class::Vehicle);
    }
}

#[test]
fn an_empty_road_under_a_cloud_stays_empty() {
    let mut background = learned();
    let dimmed = |k: u32| {
        let mut frame = road(k);
        frame.luma.iter_mut().for_each(|v| *v = (f32::from(*v) * 0.9) as u8);
        frame
    };
    let found = detect(&mut background, &(50..54).map(dimmed).collect::<Vec<_>>()).unwrap();
    assert!(found.iter().all(|one| one.labels.is_empty() && !one.unsettled), "{found:?}");
}

#[test]
fn a_camera_that_was_turned_is_said_to_be_unsettled() {
    let mut background = learned();
    let mut turned = road(1);
    for (index, value) in turned.luma.iter_mut().enumerate() {
        *value =
            if (index % SIZE.0 / 24 + index / SIZE.0 / 24).is_multiple_of(2) { 30 } else { 220 };
    }
    let found = detect(&mut background, &[turned]).unwrap();
    assert!(found[0].unsettled && found[0].labels.is_empty());
}

#[test]
fn chunks_or_one_go_make_no_difference_to_the_background() {
    let frames: Vec<Frame> = (0..6).map(|k| with_car(road(k), 60 + k as usize * 9)).collect();
    let (mut whole, mut parts) = (learned(), learned());
    detect(&mut whole, &frames).unwrap();
    frames.chunks(2).for_each(|chunk| drop(detect(&mut parts, chunk).unwrap()));
    assert_eq!(whole.luma, parts.luma);
    assert_eq!(whole.spread, parts.spread);
}

#[test]
fn wrong_sizes_are_errors() {
    assert_eq!(Background::learn(&[]), Err(BackgroundError::NoFrames));
    let mixed = [Frame::grey(64, 64, 9), Frame::grey(32, 32, 9)];
    assert!(matches!(Background::learn(&mixed), Err(BackgroundError::Size { .. })));
    let mut background = learned();
    let other = detect(&mut background, &[Frame::grey(64, 64, 9)]);
    assert!(matches!(other, Err(BackgroundError::Size { .. })));
    background.spread.pop();
    assert!(matches!(background.check(), Err(BackgroundError::Planes { .. })));
}
