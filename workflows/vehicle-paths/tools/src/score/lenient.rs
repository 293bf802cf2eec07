//! The counting that the project's first experiments used, kept so that their figures can be
//! compared: each path goes to the vehicle that it is nearest to on average, a vehicle is covered
//! when any path went to it, and nothing is said against fragments, gaps and switches.

use std::collections::{HashMap, HashSet};

use serde::Serialize;
use vision::track::Path;

use super::{distance, picture_at};
use crate::scene::truth::Truth;

/// Distance of a path from a vehicle that it has no picture in common with, metres.
const NOWHERE_NEAR: f64 = 99.0;

/// Figures that forgive fragments.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Lenient {
    /// Vehicles that are the nearest to at least one path.
    pub covered: Vec<u32>,
    /// Mean distance of the paths' points from the nearest vehicle of their path, metres.
    pub mean_error_m: f64,
}

/// Counts as the first experiments did.
pub fn lenient(truth: &Truth, paths: &[Path]) -> Lenient {
    let (mut covered, mut sum, mut points) = (HashSet::new(), 0.0, 0);
    for path in paths {
        let means = truth.vehicles.iter().map(|vehicle| {
            let places: HashMap<u32, [f64; 2]> =
                vehicle.track.iter().map(|(n, x, y, _, _)| (*n, [*x, *y])).collect();
            (mean_distance(path, &places, truth.fps), u32::from(vehicle.id))
        });
        if let Some((error, id)) = means.min_by(|a, b| a.0.total_cmp(&b.0)) {
            covered.insert(id);
            sum += error * path.points.len() as f64;
            points += path.points.len();
        }
    }
    let mut covered: Vec<u32> = covered.into_iter().collect();
    covered.sort_unstable();
    Lenient { covered, mean_error_m: sum / points.max(1) as f64 }
}

fn mean_distance(path: &Path, places: &HashMap<u32, [f64; 2]>, fps: f64) -> f64 {
    let distances: Vec<f64> = path
        .points
        .iter()
        .filter_map(|point| {
            let at = places.get(&(picture_at(point.time_ms, fps) as u32))?;
            Some(distance(*at, point.world?.map(f64::from)))
        })
        .collect();
    if distances.is_empty() {
        return NOWHERE_NEAR;
    }
    distances.iter().sum::<f64>() / distances.len() as f64
}
