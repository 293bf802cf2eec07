//! Paths from made-up labels: gaps, crossings, walkers, wrong input.

use super::*;
use crate::label::{Class, Label, Rect};

const SIZE: (usize, usize) = (1280, 720);

fn label(x: f32, y: f32, width: f32, height: f32) -> Label {
    let rect = Rect { left: x, top: y, right: x + width, bottom: y + height };
    let class = if width > height { Class::Vehicle } else { Class::Person };
    Label { class, rect, confidence: 0.9, tone: [90, 128, 128] }
}

fn frames(count: u32, at: impl Fn(u32) -> Vec<Label>) -> Vec<FrameLabels> {
    (0..count).map(|k| FrameLabels { number: k, time_ms: k * 100, labels: at(k) }).collect()
}

#[test]
fn a_gap_and_a_crossing_leave_two_whole_paths() {
    let recording = frames(60, |k| {
        let step = k as f32 * 16.0;
        let mut labels = vec![label(60.0 + step, 300.0, 90.0, 45.0)];
        if !(25..33).contains(&k) {
            labels.push(label(1100.0 - step, 420.0, 90.0, 45.0));
        }
        labels
    });
    let paths = reconstruct(&recording, SIZE, None).unwrap();
    assert_eq!(paths.len(), 2, "{paths:?}");
    for path in &paths {
        assert_eq!(path.points.len(), 60);
        assert!((path.typical_speed - 160.0).abs() < 16.0, "{}", path.typical_speed);
        assert!(path.points[0].world.is_none());
    }
}

#[test]
fn somebody_walking_is_no_vehicle() {
    let recording = frames(80, |k| vec![label(100.0 + k as f32 * 4.0, 300.0, 26.0, 66.0)]);
    assert!(reconstruct(&recording, SIZE, None).unwrap().is_empty());
}

#[test]
fn without_a_homography_somebody_upright_must_be_fast_all_the_way() {
    let walks_up_and_stands = frames(140, |k| {
        let x = 100.0 + 12.0 * k.min(40) as f32;
        vec![label(x, 300.0, 26.0, 66.0)]
    });
    assert!(reconstruct(&walks_up_and_stands, SIZE, None).unwrap().is_empty());
    let bus_from_ahead = frames(40, |k| vec![label(100.0 + 14.0 * k as f32, 300.0, 26.0, 66.0)]);
    assert_eq!(reconstruct(&bus_from_ahead, SIZE, None).unwrap().len(), 1);
}

#[test]
fn without_a_homography_a_slow_group_that_looks_wide_at_times_is_no_vehicle() {
    let recording = frames(120, |k| {
        let width = if k % 5 == 0 { 40.0 } else { 62.0 };
        vec![label(100.0 + 4.4 * k as f32, 300.0, width, 44.0)]
    });
    assert!(reconstruct(&recording, SIZE, None).unwrap().is_empty());
}

#[test]
fn a_homography_gives_metres() {
    // From straight above: 10 pixels a metre.
    let above = [10.0, 0.0, 100.0, 0.0, 10.0, 100.0, 0.0, 0.0, 1.0];
    let recording = frames(50, |k| vec![label(150.0 + k as f32 * 10.0, 300.0, 44.0, 18.0)]);
    let paths = reconstruct(&recording, SIZE, Some(&above)).unwrap();
    assert_eq!(paths.len(), 1);
    assert!((paths[0].typical_speed - 36.0).abs() < 2.0, "{}", paths[0].typical_speed);
    let world = paths[0].points[0].world.unwrap();
    assert!((world[0] - 7.2).abs() < 1.0, "{world:?}");
}

#[test]
fn wrong_input_is_an_error() {
    let singular = reconstruct(&frames(3, |_| vec![]), SIZE, Some(&[0.0; 9]));
    assert!(matches!(singular, Err(TrackError::Homography { .. })));
    let mut twice = frames(3, |_| vec![]);
    twice[2].time_ms = 100;
    assert_eq!(reconstruct(&twice, SIZE, None), Err(TrackError::Order { number: 2 }));
    assert_eq!(reconstruct(&[], SIZE, None), Ok(vec![]));
}

/// World metres from straight above, 10 pixels a metre.
const ABOVE: [f64; 9] = [10.0, 0.0, 100.0, 0.0, 10.0, 100.0, 0.0, 0.0, 1.0];

/// The box around both.
fn melted(a: Label, b: Label) -> Label {
    let (left, top) = (a.rect.left.min(b.rect.left), a.rect.top.min(b.rect.top));
    let right = a.rect.right.max(b.rect.right);
    label(left, top, right - left, a.rect.bottom.max(b.rect.bottom) - top)
}

#[test]
fn two_cars_that_melt_into_one_box_while_passing_keep_their_paths() {
    let recording = frames(60, |k| {
        let step = k as f32 * 10.0;
        let (there, back) =
            (label(100.0 + step, 300.0, 44.0, 18.0), label(690.0 - step, 322.0, 44.0, 18.0));
        if (there.rect.left - back.rect.left).abs() < 46.0 {
            vec![melted(there, back)]
        } else {
            vec![there, back]
        }
    });
    let paths = reconstruct(&recording, SIZE, Some(&ABOVE)).unwrap();
    assert_eq!(paths.len(), 2, "{paths:?}");
    assert!(paths.iter().all(|path| path.points.len() == 60));
    let across = |path: &Path| path.points[59].world.unwrap()[0] - path.points[0].world.unwrap()[0];
    assert!(paths.iter().map(across).any(|way| way > 55.0), "{paths:?}");
    assert!(paths.iter().map(across).any(|way| way < -55.0), "{paths:?}");
}

#[test]
fn a_truck_keeps_its_own_box_when_people_are_in_it_as_well() {
    let walkers = |k: u32| [0.0, 40.0].map(|x| label(380.0 + x + k as f32, 262.0, 7.0, 17.0));
    let recording = frames(80, |k| {
        let truck = label(60.0 + k as f32 * 9.0, 260.0, 115.0, 60.0);
        let outside =
            |one: &Label| one.rect.left > truck.rect.right || one.rect.right < truck.rect.left;
        walkers(k).into_iter().filter(outside).chain([truck]).collect()
    });
    let paths = reconstruct(&recording, SIZE, Some(&ABOVE)).unwrap();
    assert_eq!(paths.len(), 1, "{paths:?}");
    assert_eq!(paths[0].labels.len(), 80);
}

#[test]
fn front_and_back_of_a_van_are_one_vehicle() {
    let recording = frames(60, |k| {
        let left = 60.0 + k as f32 * 9.0;
        let back = label(left, 300.0, 26.0, 20.0);
        let front = label(left + 38.0, 300.0, 26.0, 20.0);
        if (20..40).contains(&k) { vec![back, front] } else { vec![melted(back, front)] }
    });
    let paths = reconstruct(&recording, SIZE, Some(&ABOVE)).unwrap();
    assert_eq!(paths.len(), 1, "{paths:?}");
    assert_eq!(paths[0].points.len(), 60);
}
