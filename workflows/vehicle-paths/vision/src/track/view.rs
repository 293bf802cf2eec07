//! Where boxes stand: on the ground in metres when the camera's homography is known, else in the
//! picture, with the size of the boxes as the measure of a metre. The tracker is the same in both.

use super::matrix::Matrix;
use crate::geometry::{Camera, Matrix3, apply, invert};
use crate::label::Rect;

/// From where in its box a vehicle's ground point is taken: this share of the height from the top.
const GROUND_SHARE: f32 = 0.8;
/// A box is off by at least this many pixels, or by this share of its size.
const BOX_NOISE_PIXELS: f64 = 2.5;
const BOX_NOISE_SHARE: f64 = 0.07;
/// Where one metre covers fewer pixels than this, boxes say too little.
const LEAST_PIXELS_PER_METRE: f64 = 6.0;
/// A typical box side in metres, to guess the scale where no homography is known.
const TYPICAL_SIDE_METRES: f64 = 2.4;

/// How pixels and places relate.
#[derive(Clone, Debug)]
pub enum View {
    /// A known ground plane.
    World {
        /// World to pixels.
        to_pixels: Box<Matrix3>,
        /// Pixels to world.
        to_world: Box<Matrix3>,
        /// What the homography says about the camera, when it says something.
        camera: Option<Box<Camera>>,
    },
    /// Only the picture.
    Image,
}

/// A box's place.
#[derive(Clone, Copy, Debug)]
pub struct Spot {
    /// Metres on the ground, or pixels.
    pub place: [f64; 2],
    /// Covariance of the place.
    pub noise: Matrix<2, 2>,
    /// How many units of the plane a metre has here: 1 in the world, pixels in the image.
    pub metre: f64,
}

impl View {
    /// A view for a video of this size. `None` when the homography cannot be inverted.
    pub fn new(homography: Option<&Matrix3>, size: (usize, usize)) -> Option<Self> {
        let Some(to_pixels) = homography else { return Some(Self::Image) };
        let to_world = invert(to_pixels)?;
        let camera = Camera::from_homography(to_pixels, size).map(Box::new);
        Some(Self::World { to_pixels: Box::new(*to_pixels), to_world: Box::new(to_world), camera })
    }

    /// The camera, when it is known.
    pub fn camera(&self) -> Option<&Camera> {
        match self {
            Self::World { camera, .. } => camera.as_deref(),
            Self::Image => None,
        }
    }

    /// Whether places are metres.
    pub fn is_world(&self) -> bool {
        matches!(self, Self::World { .. })
    }

    /// Where a box stands; `None` when that cannot be told: at the horizon, far away.
    pub fn spot(&self, rect: &Rect) -> Option<Spot> {
        let foot = foot(rect);
        let side = f64::from(rect.area().sqrt());
        let pixels = BOX_NOISE_PIXELS.max(BOX_NOISE_SHARE * side);
        match self {
            Self::Image => {
                let noise = Matrix::identity().scaled(pixels * pixels);
                let metre = (side / TYPICAL_SIDE_METRES).max(2.0);
                Some(Spot { place: foot, noise, metre })
            }
            Self::World { to_world, .. } => {
                let place = apply(to_world, foot)?;
                let across = apply(to_world, [foot[0] + 1.0, foot[1]])?;
                let down = apply(to_world, [foot[0], foot[1] + 1.0])?;
                let slope = Matrix([
                    [across[0] - place[0], down[0] - place[0]],
                    [across[1] - place[1], down[1] - place[1]],
                ]);
                if self.pixels_per_metre(place)? < LEAST_PIXELS_PER_METRE {
                    return None;
                }
                let mut noise = slope.times(&slope.transposed()).scaled(pixels * pixels);
                noise.0[0][0] += 0.05;
                noise.0[1][1] += 0.05;
                Some(Spot { place, noise, metre: 1.0 })
            }
        }
    }

    /// Pixel of a place.
    pub fn pixel(&self, place: [f64; 2]) -> Option<[f64; 2]> {
        match self {
            Self::Image => Some(place),
            Self::World { to_pixels, .. } => apply(to_pixels, place),
        }
    }

    /// How many pixels a metre covers at a place; 1 in the image, where it does not matter.
    pub fn pixels_per_metre(&self, place: [f64; 2]) -> Option<f64> {
        if !self.is_world() {
            return Some(1.0);
        }
        let at = self.pixel(place)?;
        // Across the view a metre is not foreshortened: the larger of both axes is nearest to it.
        let length = |to: [f64; 2]| (to[0] - at[0]).hypot(to[1] - at[1]);
        let east = length(self.pixel([place[0] + 1.0, place[1]])?);
        let north = length(self.pixel([place[0], place[1] + 1.0])?);
        Some(east.max(north))
    }
}

/// The pixel of a box that stands for its place.
pub fn foot(rect: &Rect) -> [f64; 2] {
    let x = f64::from(rect.left + rect.right) / 2.0;
    [x, f64::from(rect.top + rect.height() * GROUND_SHARE)]
}
