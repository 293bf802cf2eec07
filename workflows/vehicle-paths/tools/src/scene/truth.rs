//! The ground truth file: what the generator writes and the scorer reads.

use serde::{Deserialize, Serialize};

/// Everything that is known about a generated scene.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Truth {
    /// The seed that made it.
    pub seed: u64,
    /// Pictures a second.
    pub fps: f64,
    /// Picture size in pixels.
    pub width: usize,
    /// Picture size in pixels.
    pub height: usize,
    /// One entry per camera, in file order.
    pub cameras: Vec<CameraTruth>,
    /// All vehicles, seen or not.
    pub vehicles: Vec<VehicleTruth>,
}

/// One camera and what it saw.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CameraTruth {
    /// The video's file name, beside this file.
    pub video: String,
    /// World (x, y, 1) on the ground to pixels, row by row.
    pub homography: [f64; 9],
    /// Where the camera hangs, metres.
    pub position: [f64; 3],
    /// By picture number.
    pub frames: Vec<Vec<Seen>>,
}

/// One vehicle or pedestrian in one picture.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seen {
    /// Vehicle id, or a pedestrian's from 1000.
    pub id: u16,
    /// Left, top, width, height of all its pixels within the picture, hidden ones included.
    pub bbox: [f32; 4],
    /// Share of those pixels that nothing hides.
    pub visible: f32,
    /// Whether the box touches the picture's border.
    pub cut: bool,
}

/// A vehicle's way through the world.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VehicleTruth {
    /// From 1.
    pub id: u16,
    /// car, suv, van, truck, bus or motorbike.
    pub kind: String,
    /// Name of its route.
    pub route: String,
    /// Picture number, x, y, heading, speed.
    pub track: Vec<(u32, f64, f64, f64, f64)>,
}
