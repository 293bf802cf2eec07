//! From labels to the paths of vehicles: follow, join, place exactly, smooth, measure speed.
//!
//! Everything looks at the whole recording at once, so an object's identity is decided with what
//! came after as well as before.

pub mod assign;
mod cuboid;
mod double;
mod follow;
mod kalman;
mod matrix;
mod stitch;
mod view;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::geometry::Matrix3;
use crate::label::FrameLabels;
use cuboid::Sight;
use follow::{Track, seconds};
use kalman::{Measured, State};
use view::View;

/// Random acceleration while smoothing, metres per second squared.
const ACCELERATION: f64 = 1.8;
/// Start speed uncertainty while smoothing, metres per second.
const START_SPEED: f64 = 12.0;
/// A path shorter than this, metres, or of fewer seconds, shows no driving.
const LEAST_LENGTH: f64 = 6.0;
const LEAST_SECONDS: f64 = 0.7;
/// A path that was inferred for most of its time from boxes shared with others is a guess.
const LEAST_OWN_SHARE: f64 = 0.3;
/// A typical speed below this, metres per second, is somebody walking, unless large.
const WALKING_SPEED: f64 = 2.6;
/// Share of sightings that must look like a vehicle in a path as slow as walking.
const VEHICLE_SHARE: f64 = 0.7;
/// The same where the metre is only guessed: a group of people looks like a vehicle at times.
const SURE_SHARE: f64 = 0.9;
/// Pictures in a request, at most.
pub const MAX_FRAMES: usize = 500_000;

/// Why no paths can be reconstructed.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum TrackError {
    /// The homography is singular or not finite.
    #[error(
        "the homography {matrix:?} cannot be inverted; give nine numbers, row by row, that take world metres (x, y, 1) to pixels"
    )]
    Homography {
        /// What was given.
        matrix: Matrix3,
    },
    /// More pictures than one request may have.
    #[error(
        "{frames} pictures are more than the {MAX_FRAMES} of one request; sample fewer a second or cut the video"
    )]
    TooLong {
        /// How many.
        frames: usize,
    },
    /// Pictures are not in order of time.
    #[error("picture {number} is not later than the one before it")]
    Order {
        /// Number of the picture.
        number: u32,
    },
}

/// The way of one vehicle.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Path {
    /// From 1.
    pub id: u32,
    /// Typical speed while moving: kilometres an hour, or pixels a second without a homography.
    pub typical_speed: f32,
    /// By time.
    pub points: Vec<PathPoint>,
    /// (picture, label) pairs that were this vehicle.
    pub labels: Vec<(u32, u32)>,
}

/// A vehicle at one time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PathPoint {
    /// Number of the sampled picture.
    pub number: u32,
    /// Milliseconds from the start of the video.
    pub time_ms: u32,
    /// Where its middle stands in the picture, pixels.
    pub pixel: [f32; 2],
    /// Where its middle stands on the ground, metres, when the homography is known.
    pub world: Option<[f32; 2]>,
    /// Metres per second, or pixels per second without a homography.
    pub speed: f32,
}

/// Finds the vehicles' paths. `size` is the picture's in pixels; `homography` takes world
/// (x, y, 1) on the ground to pixels.
pub fn reconstruct(
    frames: &[FrameLabels],
    size: (usize, usize),
    homography: Option<&Matrix3>,
) -> Result<Vec<Path>, TrackError> {
    if frames.len() > MAX_FRAMES {
        return Err(TrackError::TooLong { frames: frames.len() });
    }
    if let Some(pair) = frames.windows(2).find(|pair| pair[1].time_ms <= pair[0].time_ms) {
        return Err(TrackError::Order { number: pair[1].number });
    }
    let view = View::new(homography, size).ok_or_else(|| TrackError::Homography {
        matrix: homography.copied().unwrap_or_default(),
    })?;
    let tracks = stitch::drop_doubles(follow::follow(frames, &view, size));
    let tracks = stitch::drop_doubles(stitch::stitch(tracks, frames, size));
    let mut paths = paths(tracks, |track| path(track, frames, size, &view));
    paths.sort_by_key(|path| path.points.first().map(|point| point.time_ms));
    paths.iter_mut().zip(1..).for_each(|(path, id)| path.id = id);
    Ok(paths)
}

/// One path for each vehicle: tracks whose paths turn out to be one vehicle's are put together.
fn paths(tracks: Vec<Track>, path: impl Fn(&Track) -> Option<Path>) -> Vec<Path> {
    let mut all: Vec<(Track, Path)> = Vec::new();
    for mut track in tracks {
        let Some(mut found) = path(&track) else { continue };
        while let Some(at) = all.iter().position(|(_, known)| double::is_double(known, &found)) {
            let (mut known, before) = all.remove(at);
            known.absorb(track);
            found = path(&known).unwrap_or(before);
            track = known;
        }
        all.push((track, found));
    }
    all.into_iter().map(|(_, path)| path).collect()
}

/// The smoothed path of a track, when it is a vehicle's.
fn path(track: &Track, frames: &[FrameLabels], size: (usize, usize), view: &View) -> Option<Path> {
    let first = track.sightings.first()?.frame;
    let last = track.sightings.last()?.frame;
    let mut measured: Vec<(f64, Option<Measured>)> =
        frames[first..=last].iter().map(|frame| (seconds(frame), None)).collect();
    for sighting in &track.sightings {
        measured[sighting.frame - first].1 = Some((sighting.spot.place, sighting.spot.noise));
    }
    let metre = median(track.sightings.iter().map(|sighting| sighting.spot.metre))?;
    let smooth = |steps: &[_]| kalman::smooth(steps, ACCELERATION * metre, START_SPEED * metre);
    let mut states = smooth(&measured);
    for _ in 0..2 {
        if place_exactly(track, first, size, view, &states, &mut measured) {
            states = smooth(&measured);
        }
    }
    is_vehicle(track, &states, &measured, metre, view.is_world())
        .then(|| describe(track, frames, view, first, &states))
}

/// Replaces the measured places by those of fitted cuboids; false when the camera is unknown.
fn place_exactly(
    track: &Track,
    first: usize,
    size: (usize, usize),
    view: &View,
    states: &[State],
    measured: &mut [(f64, Option<Measured>)],
) -> bool {
    let Some(camera) = view.camera() else { return false };
    let headings = headings(states);
    let sight = |sighting: &follow::Sighting| {
        let at = sighting.frame - first;
        Sight { rect: sighting.rect, heading: headings[at], guess: states[at].place() }
    };
    let own: Vec<Sight> =
        track.sightings.iter().filter(|one| one.label.is_some()).map(sight).collect();
    let Some(kind) = cuboid::choose_size(camera, size, &own) else { return false };
    for sighting in &track.sightings {
        if let Some(fit) = cuboid::fit(camera, size, &sight(sighting), kind) {
            // A box that fits badly is a part of the vehicle or more than it.
            let doubt =
                1.0 + (fit.error / 0.06).powi(2) + if sighting.label.is_none() { 4.0 } else { 0.0 };
            let noise = sighting.spot.noise.scaled(0.6 * doubt);
            measured[sighting.frame - first].1 = Some((fit.place, noise));
        }
    }
    true
}

/// Directions of travel; while it hardly moves, a vehicle keeps its last one.
fn headings(states: &[State]) -> Vec<f64> {
    let mut last = states
        .iter()
        .find(|state| state.speed() > 1.0)
        .map_or(0.0, |state| state.velocity()[1].atan2(state.velocity()[0]));
    let turn = |state: &State| {
        if state.speed() > 1.0 {
            last = state.velocity()[1].atan2(state.velocity()[0]);
        }
        last
    };
    states.iter().map(turn).collect()
}

fn is_vehicle(
    track: &Track,
    states: &[State],
    measured: &[(f64, Option<Measured>)],
    metre: f64,
    in_metres: bool,
) -> bool {
    let (Some(start), Some(end)) = (states.first(), states.last()) else { return false };
    let lasted = measured.last().map_or(0.0, |step| step.0) - measured[0].0;
    let own_share = track.own_hits() as f64 / track.sightings.len() as f64;
    let way = (end.place()[0] - start.place()[0]).hypot(end.place()[1] - start.place()[1]) / metre;
    if way < LEAST_LENGTH || lasted < LEAST_SECONDS || own_share < LEAST_OWN_SHARE {
        return false;
    }
    let speed = typical_speed(states) / metre;
    let votes = track.vehicle_votes as f64 / track.own_hits().max(1) as f64;
    if !in_metres && votes < VEHICLE_SHARE {
        // The metre is only guessed: what looks like people must be too fast for them, all the way.
        return way / lasted > 2.5 * WALKING_SPEED;
    }
    let drives = speed > WALKING_SPEED && way / lasted > 0.5 * WALKING_SPEED;
    let enough = if in_metres { VEHICLE_SHARE } else { SURE_SHARE };
    drives || votes > enough && speed > 1.8
}

/// Median speed over the times of moving.
fn typical_speed(states: &[State]) -> f64 {
    let top = states.iter().map(State::speed).fold(0.0, f64::max);
    let moving = states.iter().map(State::speed).filter(|speed| *speed > 0.2 * top);
    median(moving).unwrap_or(0.0)
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    if values.is_empty() {
        return None;
    }
    let half = values.len() / 2;
    Some(*values.select_nth_unstable_by(half, f64::total_cmp).1)
}

fn describe(
    track: &Track,
    frames: &[FrameLabels],
    view: &View,
    first: usize,
    states: &[State],
) -> Path {
    let point = |(frame, state): (&FrameLabels, &State)| {
        let place = state.place();
        let pixel = view.pixel(place)?.map(|value| value as f32);
        let world = view.is_world().then(|| place.map(|value| value as f32));
        let speed = state.speed() as f32;
        Some(PathPoint { number: frame.number, time_ms: frame.time_ms, pixel, world, speed })
    };
    let points = frames[first..].iter().zip(states).filter_map(point).collect();
    let labels = track
        .sightings
        .iter()
        .filter_map(|one| Some((frames[one.frame].number, one.label? as u32)))
        .collect();
    let factor = if view.is_world() { 3.6 } else { 1.0 };
    Path { id: 0, typical_speed: (typical_speed(states) * factor) as f32, points, labels }
}

#[cfg(test)]
mod tests;
