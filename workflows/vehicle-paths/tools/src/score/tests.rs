//! What the score must not let pass: fragments, inventions, switched identities.

use vision::track::PathPoint;

use super::lenient::lenient;
use super::*;
use crate::scene::truth::{Seen, VehicleTruth};

const FPS: f64 = 10.0;
const PICTURES: u32 = 60;

/// Two lanes, driven at 10 m/s: eastward and, 10 m beside it, westward.
fn east(number: u32) -> [f64; 2] {
    [f64::from(number), 0.0]
}

fn west(number: u32) -> [f64; 2] {
    [60.0 - f64::from(number), 10.0]
}

/// The camera sees every vehicle large and clear in these pictures.
fn truth(vehicles: &[fn(u32) -> [f64; 2]], seen_in: std::ops::Range<u32>) -> Truth {
    let vehicle = |(track, id): (&fn(u32) -> [f64; 2], u16)| VehicleTruth {
        id,
        kind: "car".to_owned(),
        route: "E".to_owned(),
        track: (0..PICTURES).map(|n| (n, track(n)[0], track(n)[1], 0.0, 10.0)).collect(),
    };
    let seen = |id| Seen { id, bbox: [0.0, 0.0, 80.0, 40.0], visible: 1.0, cut: false };
    let picture =
        |n: u32| (1..=vehicles.len() as u16).filter(|_| seen_in.contains(&n)).map(seen).collect();
    Truth {
        seed: 0,
        fps: FPS,
        width: 1280,
        height: 720,
        cameras: vec![CameraTruth {
            video: String::new(),
            homography: [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0],
            position: [30.0, -20.0, 9.0],
            frames: (0..PICTURES).map(picture).collect(),
        }],
        vehicles: vehicles.iter().zip(1..).map(vehicle).collect(),
    }
}

fn path(numbers: std::ops::Range<u32>, place: impl Fn(u32) -> [f64; 2]) -> Path {
    let point = |number: u32| PathPoint {
        number,
        time_ms: number * 100,
        pixel: [0.0; 2],
        world: Some(place(number).map(|value| value as f32)),
        speed: 10.0,
    };
    Path { id: 0, typical_speed: 36.0, points: numbers.map(point).collect(), labels: vec![] }
}

fn scored(truth: &Truth, paths: &[Path]) -> Score {
    score(truth, 0, paths).unwrap()
}

#[test]
fn one_whole_path_for_each_vehicle_is_perfect() {
    let truth = truth(&[east, west], 0..PICTURES);
    let score = scored(&truth, &[path(0..60, east), path(0..60, west)]);
    assert_eq!((score.present, score.found, score.missed), (2, 2, 0));
    assert_eq!((score.invented, score.fragments, score.identity_switches), (0, 0, 0));
    assert!(score.mean_error_m < 1e-6 && score.mota > 0.999 && score.idf1 > 0.999, "{score:?}");
}

#[test]
fn nothing_found_is_missed_and_not_an_error_of_zero_vehicles() {
    let score = scored(&truth(&[east], 0..PICTURES), &[]);
    assert_eq!((score.present, score.found, score.missed), (1, 0, 1));
    assert!(score.mota < 1e-6 && score.idf1 < 1e-6, "{score:?}");
}

#[test]
fn two_halves_are_one_vehicle_and_a_fragment() {
    let truth = truth(&[east], 0..PICTURES);
    let score = scored(&truth, &[path(0..35, east), path(35..60, east)]);
    assert_eq!((score.found, score.fragments, score.identity_switches), (1, 1, 1));
    assert_eq!(score.invented, 0);
    assert!(score.idf1 < 0.7 && score.mota < 0.999, "{score:?}");
}

#[test]
fn three_pieces_of_which_none_is_half_do_not_find_a_vehicle() {
    let truth = truth(&[east], 0..PICTURES);
    let pieces = [path(0..20, east), path(20..40, east), path(40..60, east)];
    let score = scored(&truth, &pieces);
    assert_eq!((score.found, score.missed, score.fragments), (0, 1, 2));
    assert_eq!(score.identity_switches, 2);
    // The forgiving way of counting is content with that.
    assert_eq!(lenient(&truth, &pieces).covered, [1]);
}

#[test]
fn a_path_over_nothing_is_an_invention() {
    let truth = truth(&[east], 0..PICTURES);
    let nobody = |n: u32| [f64::from(n), 25.0];
    let score = scored(&truth, &[path(0..60, east), path(10..40, nobody)]);
    assert_eq!((score.found, score.invented, score.fragments), (1, 1, 0));
    assert!((score.mota - 0.5).abs() < 1e-6, "30 false places of 60: {score:?}");
    assert!(lenient(&truth, &[path(0..60, nobody)]).mean_error_m > 20.0);
}

#[test]
fn paths_that_change_vehicles_in_the_middle_switch_and_are_far_off() {
    let truth = truth(&[east, west], 0..PICTURES);
    let first = path(0..60, |n| if n < 32 { east(n) } else { west(n) });
    let second = path(0..60, |n| if n < 32 { west(n) } else { east(n) });
    let score = scored(&truth, &[first, second]);
    assert_eq!((score.found, score.identity_switches), (2, 2));
    assert!(score.mean_error_m > 5.0 && score.idf1 < 0.6, "{score:?}");
}

#[test]
fn one_path_cannot_be_two_vehicles() {
    let truth = truth(&[east, |n| [f64::from(n), 2.0]], 0..PICTURES);
    let score = scored(&truth, &[path(0..60, |n| [f64::from(n), 1.0])]);
    assert_eq!((score.present, score.found, score.missed), (2, 1, 1));
}

#[test]
fn whoever_is_seen_for_a_moment_only_is_neither_missed_nor_invented() {
    let truth = truth(&[east], 0..14);
    assert_eq!(scored(&truth, &[]).present, 0);
    let score = scored(&truth, &[path(0..60, east)]);
    assert_eq!((score.present, score.invented, score.fragments), (0, 0, 0));
}

#[test]
fn an_offset_is_the_error_and_beyond_three_metres_no_agreement() {
    let truth = truth(&[east], 0..PICTURES);
    let beside = |off: f64| scored(&truth, &[path(0..60, |n| [f64::from(n), off])]);
    assert!((beside(2.0).mean_error_m - 2.0).abs() < 1e-6);
    assert_eq!((beside(2.0).found, beside(3.5).found, beside(3.5).invented), (1, 0, 1));
}
