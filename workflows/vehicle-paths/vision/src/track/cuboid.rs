//! Where exactly a vehicle stands: the cuboid of a plausible size whose outline fits its box.
//!
//! The bottom of a box is the near edge of a vehicle, not its middle, and how far the middle is
//! behind depends on size, heading and viewing angle. With a calibrated camera all of that can be
//! computed, so a box gives the middle of the vehicle to a fraction of a metre.

use crate::geometry::Camera;
use crate::label::Rect;

/// Length, width and height of kinds of vehicles, metres.
const SIZES: [[f64; 3]; 6] = [
    [2.1, 0.7, 1.6],
    [4.3, 1.8, 1.45],
    [4.8, 1.9, 1.7],
    [5.4, 2.0, 2.2],
    [8.5, 2.4, 3.1],
    [11.5, 2.5, 3.0],
];
/// Passes of the Gauss-Newton fit.
const PASSES: usize = 4;
/// How firmly the fit holds on to where it started, metres.
const HOLD: f64 = 6.0;

/// One box with the heading that the vehicle has in it and a first guess of its place.
#[derive(Clone, Copy, Debug)]
pub struct Sight {
    /// The box.
    pub rect: Rect,
    /// Direction of travel, radians.
    pub heading: f64,
    /// Place to start from.
    pub guess: [f64; 2],
}

/// What a fit found.
#[derive(Clone, Copy, Debug)]
pub struct Fit {
    /// Middle of the vehicle on the ground.
    pub place: [f64; 2],
    /// Mean distance of the sides of outline and box, as a share of the box's size.
    pub error: f64,
}

/// The size that explains most of the boxes best.
pub fn choose_size(camera: &Camera, picture: (usize, usize), sights: &[Sight]) -> Option<[f64; 3]> {
    let median_error = |size: &[f64; 3]| -> Option<f64> {
        let mut errors: Vec<f64> = sights
            .iter()
            .filter_map(|sight| fit(camera, picture, sight, *size).map(|fit| fit.error))
            .collect();
        if errors.len() * 2 < sights.len() || errors.is_empty() {
            return None;
        }
        let half = errors.len() / 2;
        Some(*errors.select_nth_unstable_by(half, f64::total_cmp).1)
    };
    SIZES
        .iter()
        .filter_map(|size| Some((size, median_error(size)?)))
        .min_by(|a, b| a.1.total_cmp(&b.1))
        .map(|(size, _)| *size)
}

/// Moves a cuboid until its outline, clipped to the picture, fits the box.
pub fn fit(camera: &Camera, picture: (usize, usize), sight: &Sight, size: [f64; 3]) -> Option<Fit> {
    let tolerance = 3.0 + 0.05 * f64::from(sight.rect.area().sqrt());
    let sides = |place: [f64; 2]| -> Option<[f64; 4]> {
        let rect = clip(&camera.cuboid_rect(place, sight.heading, size)?, picture);
        Some(differences(&rect, &sight.rect).map(|value| value / tolerance))
    };
    let mut place = sight.guess;
    for _ in 0..PASSES {
        let here = sides(place)?;
        let step = 0.1;
        let east = sides([place[0] + step, place[1]])?;
        let north = sides([place[0], place[1] + step])?;
        let slope: [[f64; 2]; 4] =
            std::array::from_fn(|k| [(east[k] - here[k]) / step, (north[k] - here[k]) / step]);
        let hold = 1.0 / (HOLD * HOLD);
        let (mut a, mut b, mut c) = (hold, 0.0, hold);
        let mut right = [0, 1].map(|k| (sight.guess[k] - place[k]) * hold);
        for (row, off) in slope.iter().zip(here) {
            a += row[0] * row[0];
            b += row[0] * row[1];
            c += row[1] * row[1];
            right[0] -= row[0] * off;
            right[1] -= row[1] * off;
        }
        let determinant = a * c - b * b;
        let move_by = [
            (c * right[0] - b * right[1]) / determinant,
            (a * right[1] - b * right[0]) / determinant,
        ];
        place = [0, 1].map(|k| place[k] + move_by[k].clamp(-4.0, 4.0));
    }
    let rect = clip(&camera.cuboid_rect(place, sight.heading, size)?, picture);
    let off: f64 = differences(&rect, &sight.rect).iter().map(|value| value.abs()).sum();
    let around = f64::from(sight.rect.width() + sight.rect.height()).max(1.0);
    Some(Fit { place, error: off / around })
}

fn differences(a: &Rect, b: &Rect) -> [f64; 4] {
    [a.left - b.left, a.top - b.top, a.right - b.right, a.bottom - b.bottom].map(f64::from)
}

fn clip(rect: &Rect, picture: (usize, usize)) -> Rect {
    let (width, height) = (picture.0 as f32, picture.1 as f32);
    Rect {
        left: rect.left.clamp(0.0, width),
        top: rect.top.clamp(0.0, height),
        right: rect.right.clamp(0.0, width),
        bottom: rect.bottom.clamp(0.0, height),
    }
}
