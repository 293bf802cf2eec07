//! Compares reconstructed paths with the ground truth of a generated scene, in metres.
//!
//! The score is meant to be hard to please: each vehicle may be claimed by one path only, chosen
//! so that the number of pictures in which they agree is largest (global one-to-one assignment);
//! whatever else a second path covers is a fragment, whatever covers nothing is an invention, and
//! the error of a pair is taken over *all* their common pictures, also those far off.

pub mod lenient;

use std::collections::HashMap;

use serde::Serialize;
use vision::track::Path;
use vision::track::assign::assign;

use crate::scene::truth::{CameraTruth, Truth};

/// A path agrees with a vehicle in a picture when they are this near, metres.
pub const NEAR_METRES: f64 = 3.0;
/// A vehicle counts in pictures where its box is at least this large, pixels,
const LEAST_WIDTH: f32 = 20.0;
const LEAST_HEIGHT: f32 = 16.0;
/// at least this share of it is visible,
const LEAST_VISIBLE: f32 = 0.4;
/// it is at most this far from the camera, metres,
const FARTHEST: f64 = 75.0;
/// and it is like that for this long, seconds.
const LEAST_SECONDS: f64 = 1.5;
/// A vehicle is found when its path agrees with it in this share of its pictures.
const FOUND_SHARE: f64 = 0.5;

/// The figures of one camera.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Score {
    /// Vehicles that could be seen long enough.
    pub present: usize,
    /// Of those, with a path of their own over at least half of the time.
    pub found: usize,
    /// Of those, without.
    pub missed: usize,
    /// Paths that follow no vehicle.
    pub invented: usize,
    /// Paths beside the one of a vehicle that already has one.
    pub fragments: usize,
    /// How often a vehicle's nearest path changed from one picture to the next.
    pub identity_switches: usize,
    /// Mean distance of path and vehicle, metres.
    pub mean_error_m: f64,
    /// 95th percentile of it.
    pub p95_error_m: f64,
    /// Multiple object tracking accuracy: 1 − (misses + false places + switches) / places.
    pub mota: f64,
    /// Identity F1: agreement under the one-to-one assignment.
    pub idf1: f64,
    /// The vehicles present, by their number in the truth.
    pub present_ids: Vec<u32>,
}

/// Where things are in one picture.
type Places = HashMap<u32, [f64; 2]>;

/// What the truth says about one camera, per sampled picture.
struct Expected {
    /// Vehicles that must be found.
    counted: Vec<Places>,
    /// All vehicles, also those that nobody could be blamed for missing.
    all: Vec<Places>,
    present: Vec<u32>,
}

/// Scores the paths of one camera. Paths must have world coordinates.
pub fn score(truth: &Truth, camera: usize, paths: &[Path]) -> Option<Score> {
    let times = sampled_times(paths, truth);
    let expected = expected(truth, truth.cameras.get(camera)?, &times);
    let claimed = claimed(paths, &times);
    let agreed = agreement(&expected, &claimed, paths);
    let pairs = pair_up(&agreed, &expected.present, paths);
    let present_ids = expected.present.clone();
    let mut score = Score { present: present_ids.len(), present_ids, ..Score::default() };
    judge_vehicles(&mut score, &expected, &pairs, &agreed);
    judge_paths(&mut score, &expected, &claimed, paths, &pairs);
    judge_errors(&mut score, &expected, &claimed, &pairs);
    judge_places(&mut score, &expected, &claimed, &pairs);
    Some(score)
}

/// Times (ms) at which any path says something, and all sampled ones between.
fn sampled_times(paths: &[Path], truth: &Truth) -> Vec<u32> {
    let mut times: Vec<u32> =
        paths.iter().flat_map(|path| path.points.iter().map(|point| point.time_ms)).collect();
    times.sort_unstable();
    times.dedup();
    let step = times.windows(2).map(|pair| pair[1] - pair[0]).min().unwrap_or(100).max(1);
    let seconds = truth.cameras.first().map_or(0, |camera| camera.frames.len()) as f64 / truth.fps;
    // The whole recording counts, not only the part in which something was claimed.
    (0..).map(|k| k * step).take_while(|time| f64::from(*time) < seconds * 1000.0).collect()
}

fn picture_at(time_ms: u32, fps: f64) -> usize {
    (f64::from(time_ms) * fps / 1000.0).round() as usize
}

fn expected(truth: &Truth, camera: &CameraTruth, times: &[u32]) -> Expected {
    let tracks: HashMap<u16, HashMap<u32, [f64; 2]>> = truth
        .vehicles
        .iter()
        .map(|vehicle| {
            let places = vehicle.track.iter().map(|(n, x, y, _, _)| (*n, [*x, *y])).collect();
            (vehicle.id, places)
        })
        .collect();
    let (mut counted, mut all) = (Vec::new(), Vec::new());
    for time in times {
        let n = picture_at(*time, truth.fps);
        let (mut sure, mut any) = (Places::new(), Places::new());
        for (id, track) in &tracks {
            any.extend(track.get(&(n as u32)).map(|place| (u32::from(*id), *place)));
        }
        for seen in camera.frames.get(n).into_iter().flatten() {
            let Some(place) = any.get(&u32::from(seen.id)) else { continue };
            let away = (place[0] - camera.position[0]).hypot(place[1] - camera.position[1]);
            let clear = seen.visible >= LEAST_VISIBLE && !seen.cut && away <= FARTHEST;
            if clear && seen.bbox[2] >= LEAST_WIDTH && seen.bbox[3] >= LEAST_HEIGHT {
                sure.insert(u32::from(seen.id), *place);
            }
        }
        counted.push(sure);
        all.push(any);
    }
    let step = times.get(1).map_or(0.1, |step| f64::from(*step) / 1000.0);
    let mut present: Vec<u32> = tracks.keys().map(|id| u32::from(*id)).collect();
    present.retain(|id| {
        counted.iter().filter(|places| places.contains_key(id)).count() as f64 * step
            >= LEAST_SECONDS
    });
    present.sort_unstable();
    for places in &mut counted {
        places.retain(|id, _| present.binary_search(id).is_ok());
    }
    Expected { counted, all, present }
}

/// Places of the paths in each sampled picture, by index into `paths`.
fn claimed(paths: &[Path], times: &[u32]) -> Vec<Places> {
    let mut out = vec![Places::new(); times.len()];
    let step = times.get(1).copied().unwrap_or(100).max(1);
    for (path, index) in paths.iter().zip(0..) {
        for point in &path.points {
            let Some(world) = point.world else { continue };
            let at = ((point.time_ms + step / 2) / step) as usize;
            if let Some(places) = out.get_mut(at) {
                places.insert(index, world.map(f64::from));
            }
        }
    }
    out
}

fn distance(a: [f64; 2], b: [f64; 2]) -> f64 {
    (a[0] - b[0]).hypot(a[1] - b[1])
}

/// In how many counted pictures each (vehicle, path) agree.
fn agreement(
    expected: &Expected,
    claimed: &[Places],
    paths: &[Path],
) -> HashMap<(u32, u32), usize> {
    let mut agreed = HashMap::new();
    for (vehicles, claims) in expected.counted.iter().zip(claimed) {
        for (id, place) in vehicles {
            for index in 0..paths.len() as u32 {
                let near =
                    claims.get(&index).is_some_and(|at| distance(*at, *place) <= NEAR_METRES);
                if near {
                    *agreed.entry((*id, index)).or_insert(0) += 1;
                }
            }
        }
    }
    agreed
}

/// The one-to-one assignment with the most agreeing pictures: vehicle to path.
fn pair_up(
    agreed: &HashMap<(u32, u32), usize>,
    present: &[u32],
    paths: &[Path],
) -> HashMap<u32, u32> {
    const MANY: f64 = 1e6;
    let cost = |id: u32, index: u32| match agreed.get(&(id, index)) {
        Some(count) => MANY - *count as f64,
        None => f64::INFINITY,
    };
    let costs: Vec<Vec<f64>> = present
        .iter()
        .map(|id| (0..paths.len() as u32).map(|index| cost(*id, index)).collect())
        .collect();
    let chosen = assign(&costs, MANY);
    present.iter().zip(chosen).filter_map(|(id, path)| Some((*id, path? as u32))).collect()
}

fn judge_vehicles(
    score: &mut Score,
    expected: &Expected,
    pairs: &HashMap<u32, u32>,
    agreed: &HashMap<(u32, u32), usize>,
) {
    for id in &expected.present {
        let seen = expected.counted.iter().filter(|places| places.contains_key(id)).count();
        let covered = pairs.get(id).and_then(|path| agreed.get(&(*id, *path))).copied();
        if covered.unwrap_or(0) as f64 >= FOUND_SHARE * seen as f64 {
            score.found += 1;
        } else {
            score.missed += 1;
        }
    }
}

/// Paths that belong to nobody: fragments of somebody, or inventions. A path that follows a
/// vehicle which is not counted (too far, too hidden) is neither.
fn judge_paths(
    score: &mut Score,
    expected: &Expected,
    claimed: &[Places],
    paths: &[Path],
    pairs: &HashMap<u32, u32>,
) {
    for index in 0..paths.len() as u32 {
        if pairs.values().any(|path| *path == index) {
            continue;
        }
        let (mut points, mut of) = (0, HashMap::<u32, usize>::new());
        for (claims, vehicles) in claimed.iter().zip(&expected.all) {
            let Some(place) = claims.get(&index) else { continue };
            points += 1;
            for (id, at) in vehicles {
                if distance(*place, *at) <= NEAR_METRES {
                    *of.entry(*id).or_default() += 1;
                }
            }
        }
        let best = of.into_iter().max_by_key(|(_, count)| *count);
        match best.filter(|(_, count)| *count * 2 >= points) {
            None => score.invented += 1,
            Some((id, _)) if expected.present.binary_search(&id).is_ok() => score.fragments += 1,
            Some(_) => {}
        }
    }
}

fn judge_errors(
    score: &mut Score,
    expected: &Expected,
    claimed: &[Places],
    pairs: &HashMap<u32, u32>,
) {
    let mut errors: Vec<f64> = Vec::new();
    for (vehicles, claims) in expected.all.iter().zip(claimed) {
        for (id, path) in pairs {
            if let (Some(a), Some(b)) = (vehicles.get(id), claims.get(path)) {
                errors.push(distance(*a, *b));
            }
        }
    }
    errors.sort_by(f64::total_cmp);
    if let Some(last) = errors.len().checked_sub(1) {
        score.mean_error_m = errors.iter().sum::<f64>() / errors.len() as f64;
        score.p95_error_m = errors[(last as f64 * 0.95).round() as usize];
    }
}

/// Picture by picture: who is missed, what is false, whose path changed.
fn judge_places(
    score: &mut Score,
    expected: &Expected,
    claimed: &[Places],
    pairs: &HashMap<u32, u32>,
) {
    let (mut truths, mut misses, mut falses, mut same, mut claims_total) = (0, 0, 0, 0, 0);
    let mut follows: HashMap<u32, u32> = HashMap::new();
    for ((vehicles, all), claims) in expected.counted.iter().zip(&expected.all).zip(claimed) {
        let (ids, paths): (Vec<u32>, Vec<u32>) =
            (vehicles.keys().copied().collect(), claims.keys().copied().collect());
        let cost = |id: &u32, path: &u32| {
            // Staying with the path of the picture before is preferred.
            let habit = if follows.get(id) == Some(path) { 0.0 } else { 1.0 };
            distance(vehicles[id], claims[path]) + habit
        };
        let costs: Vec<Vec<f64>> =
            ids.iter().map(|id| paths.iter().map(|path| cost(id, path)).collect()).collect();
        let mut used = Vec::new();
        for (id, choice) in ids.iter().zip(assign(&costs, NEAR_METRES + 1.0)) {
            truths += 1;
            let Some(path) = choice.map(|choice| paths[choice]) else {
                misses += 1;
                continue;
            };
            used.push(path);
            same += usize::from(pairs.get(id) == Some(&path));
            if follows.insert(*id, path).is_some_and(|before| before != path) {
                score.identity_switches += 1;
            }
        }
        for path in paths.iter().filter(|path| !used.contains(path)) {
            let excused = all.values().any(|at| distance(*at, claims[path]) <= NEAR_METRES);
            falses += usize::from(!excused);
            claims_total += usize::from(!excused);
        }
        claims_total += used.len();
    }
    let total = truths.max(1) as f64;
    score.mota = 1.0 - (misses + falses + score.identity_switches) as f64 / total;
    score.idf1 = 2.0 * same as f64 / (truths + claims_total).max(1) as f64;
}

#[cfg(test)]
mod tests;
